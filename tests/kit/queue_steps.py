"""What several tests of the contract do on the way to what they test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock, patch

import pytest
import redis
from redis.commands.core import Script

from tests.kit.settling import dead_letter, retry
from worker import DelayQueue, Task
from worker.queue.environment import Environment
from worker.queue.replies import Verb

#: How tasks are put back after a delay.
PUTS = [verb for verb in Verb if verb not in (Verb.DONE, Verb.DEAD, Verb.RELEASED)]


class QueueAt(DelayQueue):
    """A queue whose scripts run at a test's time, in ms."""

    def __init__(
        self, now: Callable[[], int], client: redis.Redis, environment: Environment
    ) -> None:
        super().__init__(client, "model", environment=environment)
        self._now = now

    def _run(self, name: str, now_ms: int | None, *args: Any, **options: Any) -> Any:
        return super()._run(name, self._now() if now_ms is None else now_ms, *args, **options)


def numbered() -> Callable[[int], str]:
    """What makes tokens without chance: their first eight digits tell them from each other."""
    numbers = count(1)
    return lambda size: f"{next(numbers):08x}".ljust(2 * size, "0")


@contextmanager
def reply_lost(
    queue: DelayQueue, error: type[redis.RedisError] = redis.TimeoutError
) -> Iterator[None]:
    """The server does what it is asked in here, and its client never hears of it."""

    def unheard(script: Script, **sent: Any) -> None:
        script(**sent)
        raise error("no reply")

    scripts = {
        name: (partial(unheard, script), keys) for name, (script, keys) in queue._scripts.items()
    }
    with patch.object(queue, "_scripts", scripts), pytest.raises(error, match="no reply"):
        yield


@contextmanager
def never_sent(queue: DelayQueue) -> Iterator[Any]:
    """There is no connection in here. Yields a mock that is called with what should have been sent."""
    script = Mock(side_effect=redis.ConnectionError("refused"))
    scripts = {name: (script, keys) for name, (_, keys) in queue._scripts.items()}
    with (
        patch.object(queue, "_scripts", scripts),
        pytest.raises(redis.ConnectionError, match="refused"),
    ):
        yield script


def bury(queue: DelayQueue, *ids: str) -> None:
    """Bury tasks that were due at 0, 1, 2, ...: the first named first, at 1."""
    queue.schedule_many((task_id, n, b"") for n, task_id in enumerate(ids))
    while tasks := queue.claim(2000, 1000, now_ms=len(ids)).tasks:
        dead_letter(queue, [(task, "bad", None) for task in tasks], now_ms=1)


def claimed_with_counts(queue: DelayQueue) -> list[Task]:
    """Task a, due at 1000, claimed at 2000 for 10 ms, with one failure and one delivery behind it."""
    queue.schedule("a", 1000, b"x")
    [task] = queue.claim(1, 10, now_ms=1000).tasks
    retry(queue, [(task, 10)], Verb.FAILED, now_ms=1000)
    queue.claim(1, 10, now_ms=1010)
    tasks = queue.claim(1, 10, now_ms=2000).tasks
    assert (tasks[0].failures, tasks[0].deliveries, tasks[0].attempt) == (1, 1, 3)
    return tasks


def one(queue: DelayQueue, now_ms: int, lease_ms: int = 100) -> Task:
    """The one task that a claim brings."""
    [task] = queue.claim(100, lease_ms, now_ms=now_ms).tasks
    return task


def bury_now(queue: DelayQueue, *ids: str, error: Exception | None = None) -> None:
    """Make dead letters of tasks that failed once."""
    for task_id in ids:
        queue.schedule(task_id, 1)
        retry(queue, [(queue.claim(1, 60_000).tasks[0], 0)], Verb.FAILED)
        [task] = queue.claim(1, 60_000).tasks
        dead_letter(queue, [(task, "it will not do", error)])
