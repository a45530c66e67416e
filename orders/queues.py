"""The service's queues: their names, and what it raises while they do not answer."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from orders.errors import QueueUnavailable, StorageUnavailable
from orders.feature import features
from worker import Unavailable

#: The queue of the checks on unpaid orders, whose ids are the orders'.
QUEUE = "order-timeout"


def queue_names() -> tuple[str, ...]:
    """This and those of features."""
    return (QUEUE, *(name for feature in features() for name in feature.queues))


@contextmanager
def answering() -> Iterator[None]:
    """Raises QueueUnavailable when Redis does not answer, StorageUnavailable when pauses cannot be read."""
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable from error
    except StorageUnavailable:
        raise
    except Unavailable as error:
        raise StorageUnavailable from error
