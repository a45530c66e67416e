"""The queues as the page shows them."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import redis

from orders.features.operators import answering
from worker import DelayQueue, Letter, Pause, Pauses, Stats, TaskState, Unavailable, WorkerStatus
from worker.runtime import pauses

#: How many dead letters of a queue are shown.
MOST = 100


class ShownQueue(NamedTuple):
    """A queue's counts, its pause and its workers."""

    name: str
    stats: Stats
    pause: Pause | None
    workers: Sequence[WorkerStatus]

    @property
    def is_paused(self) -> bool:
        return self.stats.paused or self.pause is not None

    @property
    def live(self) -> list[WorkerStatus]:
        return [each for each in self.workers if not each.silent]

    @property
    def is_down(self) -> bool:
        """Whether it has workers, and none of them can do anything."""
        return bool(self.live) and not any(each.details.get("up", True) for each in self.live)


def state(queues: Iterable[tuple[DelayQueue, Pauses]]) -> list[ShownQueue] | None:
    """All queues; None if Redis does not answer."""
    with suppress(redis.RedisError):
        return [_shown(*each) for each in queues]
    return None


def put_off(queue: DelayQueue, order_ids: Sequence[str]) -> list[TaskState]:
    """Those of these orders' checks that are to be tried again later."""
    found: list[TaskState] = []
    with suppress(redis.RedisError):
        found = [*queue.look_up_many(order_ids).values()]
    return [each for each in found if each.attempts and each.in_ms and each.in_ms > 0]


def letters(queue: DelayQueue) -> tuple[list[Letter], int]:
    """The newest dead letters, and the server's time in ms. Raises QueueUnavailable."""
    with answering():
        newest: list[str] = next(queue.newest_dead_ids(), [])
        return queue.letters(newest, with_payloads=False), queue.server_time_ms()


def _shown(queue: DelayQueue, kept: Pauses) -> ShownQueue:
    stats, pause = queue.stats(), None
    with suppress(Unavailable):
        pause = pauses.find(queue, kept)
    return ShownQueue(queue.name, stats, pause, queue.workers())
