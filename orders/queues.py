"""The service's queues: their names, and whether an operator has paused one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import redis

from orders.errors import QueueUnavailable, StorageUnavailable
from worker import DelayQueue, Pauses, Unavailable
from worker.runtime import pauses

#: The queue of the checks on unpaid orders, whose ids are the orders', and that of webhooks, whose ids
#: are those of deliveries that are due, and of subscriptions that are behind; those of freezes and of
#: payment attempts; and that of retention, whose ids are the times when it runs.
QueueName = Literal["order-timeout", "webhooks", "freezes", "attempts", "retention"]
QUEUES: tuple[str, ...] = get_args(QueueName)
QUEUE, WEBHOOK_QUEUE, FREEZE_QUEUE, ATTEMPT_QUEUE, RETENTION_QUEUE = QUEUES


@contextmanager
def answering() -> Iterator[None]:
    """Raises QueueUnavailable when Redis does not answer, StorageUnavailable when pauses cannot be read."""
    try:
        yield
    except redis.RedisError as error:
        raise QueueUnavailable from error
    except Unavailable as error:
        raise StorageUnavailable from error


def is_paused(queue: DelayQueue, kept: Pauses) -> bool:
    """Whether a queue is paused, in Redis or beside the orders. Raises as `answering` does."""
    with answering():
        return pauses.find(queue, kept) is not None
