"""Translates the service's error for an outage into the engine's."""

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
