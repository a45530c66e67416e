"""The names of the service's queues."""

from orders.feature import features

#: The queue of the checks on unpaid orders, whose ids are the orders'.
QUEUE = "order-timeout"


def queue_names() -> tuple[str, ...]:
    """This and those of features."""
    return (QUEUE, *(name for feature in features() for name in feature.queues))
