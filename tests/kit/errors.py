"""Every error that there is."""

from orders.errors import OrderError
from orders.feature import features
from orders.http import problems


def below(error: type[OrderError]) -> set[type[OrderError]]:
    """All kinds of it, the features' too."""
    kinds = error.__subclasses__()
    return {*kinds}.union(*map(below, kinds))


features()  # so that theirs are known
#: All but kinds of errors, which are not raised themselves.
EVERY = below(OrderError) - {each for each in problems.STATUS if each.__subclasses__()}
