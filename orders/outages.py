"""The one place where the service's word for an outage becomes the engine's."""

from collections.abc import Iterator
from contextlib import contextmanager

from orders.errors import StorageUnavailable
from worker import Unavailable


@contextmanager
def outages() -> Iterator[None]:
    """Raises Unavailable."""
    try:
        yield
    except StorageUnavailable as error:
        raise Unavailable(str(error)) from error
