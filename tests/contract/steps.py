"""What several tests of the contract do on the way to what they test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import redis

from worker import DelayQueue, Task
from worker.queue.replies import Put


@contextmanager
def reply_lost(
    queue: DelayQueue, error: type[redis.RedisError] = redis.TimeoutError
) -> Iterator[None]:
    """The server does what it is asked in here, and its client never hears of it."""
    run = queue._run

    def unheard(*args: object) -> None:
        run(*args)  # type: ignore[arg-type]  # whatever a method passes on
        raise error("no reply")

    with patch.object(queue, "_run", unheard), pytest.raises(error, match="no reply"):
        yield


@contextmanager
def never_sent(queue: DelayQueue) -> Iterator[Any]:
    """There is no connection in here. Yields a mock with what should have been sent."""
    error = redis.ConnectionError("refused")
    with (
        patch.object(queue, "_run", side_effect=error) as run,
        pytest.raises(redis.ConnectionError, match="refused"),
    ):
        yield run


def bury(queue: DelayQueue, *ids: str) -> None:
    """Bury tasks that were due at 0, 1, 2, ...: the first named first, at 1."""
    queue.schedule_many((task_id, n, b"") for n, task_id in enumerate(ids))
    while tasks := queue.claim(2000, 1000, now_ms=len(ids)).tasks:
        queue.dead_letter([(task, "bad", None) for task in tasks], now_ms=1)


def claimed_with_counts(queue: DelayQueue) -> list[Task]:
    """Task a, due at 1000, claimed at 2000 for 10 ms, with one failure and one delivery behind it."""
    queue.schedule("a", 1000, b"x")
    [task] = queue.claim(1, 10, now_ms=1000).tasks
    queue.retry([(task, 10)], Put.FAILED, now_ms=1000)
    queue.claim(1, 10, now_ms=1010)
    tasks = queue.claim(1, 10, now_ms=2000).tasks
    assert (tasks[0].failures, tasks[0].deliveries, tasks[0].attempt) == (1, 1, 3)
    return tasks


def one(queue: DelayQueue, now_ms: int, lease_ms: int = 100) -> Task:
    """The one task that a claim brings."""
    [task] = queue.claim(100, lease_ms, now_ms=now_ms).tasks
    return task
