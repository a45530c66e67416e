"""The queues as the page shows them."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import redis

from orders.features.operators import answering
from worker import DelayQueue, Pauses, TaskState, Unavailable, WorkerStatus
from worker.runtime import pauses

Json = dict[str, Any]

#: How many dead letters of a queue are shown.
MOST = 100


def state(queues: Iterable[tuple[DelayQueue, Pauses]]) -> Json:
    """Each queue's counts and workers; or that Redis does not answer."""
    try:
        return {"answers": True, "queues": [_queue(*each) for each in queues]}
    except redis.RedisError:
        return {"answers": False}


def put_off(queue: DelayQueue, order_ids: Sequence[str]) -> Json:
    """How many of these orders' checks are to be tried again later, and what became of the first one."""
    found: list[TaskState] = []
    with suppress(redis.RedisError):
        found = [*queue.look_up_many(order_ids).values()]
    later = [each for each in found if each.attempts and each.in_ms and each.in_ms > 0]
    return {"count": len(later), "such": str(later[0]) if later else ""}


def letters(queue: DelayQueue) -> list[Json]:
    """The newest dead letters, with why each is dead. Raises QueueUnavailable."""
    with answering():
        newest: list[str] = next(queue.newest_dead_ids(), [])
        found, now_ms = queue.letters(newest, with_payloads=False), queue.server_time_ms()
    return [
        {**each.story, "id": each.id, "died_ms_ago": max(0, now_ms - each.story["died_at_ms"])}
        for each in found
    ]


def _queue(queue: DelayQueue, kept: Pauses) -> Json:
    stats, pause = asdict(queue.stats()), None
    with suppress(Unavailable):
        pause = pauses.find(queue, kept)
    return {
        "name": queue.name,
        **stats,
        "paused": stats["paused"] or pause is not None,
        "pause": str(pause or ""),
        "workers": [_worker(each) for each in queue.workers()],
    }


def _worker(worker: WorkerStatus) -> Json:
    details = worker.details
    return {
        "id": worker.id,
        "silent": worker.silent,
        "heard_ms_ago": worker.heard_ms_ago,
        "up": details.get("up", True),
        "started_at": details.get("started_at"),
        "holds": details.get("holds", 0),
        "oldest_seconds": details.get("oldest_seconds", 0.0),
    }
