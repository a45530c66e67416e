"""Idle workers share the watch: who is told to claim when a task is due, and by what message."""

from typing import Any

import pytest
import redis

from devtools.processes import wait_until
from tests.contract.state import Messages
from worker import DelayQueue, Task


class Idle:
    """A worker that has nothing to do, and what it last heard of its next claim."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.name = name
        self.queue = DelayQueue(client, "contract")
        self.queue.memory.claimer = name

    def claim(self, now_ms: int, *, relieved: bool = False) -> list[Task]:
        claim = self.queue.claim(1, 1000, now_ms=now_ms, waits_ms=5000, relieved=relieved)
        self.next_in_ms = claim.next_in_ms
        return claim.tasks


@pytest.fixture
def idle(client: redis.Redis) -> list[Idle]:
    """Three workers that found nothing at 0, 1 and 2."""
    workers = [Idle(client, name) for name in ("a", "b", "c")]
    for now_ms, worker in enumerate(workers):
        assert worker.claim(now_ms) == []
        assert worker.next_in_ms is None
    return workers


def test_two_of_those_that_wait_are_told_of_a_task(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    assert len(idle) == 3
    queue.schedule("task", 4000, now_ms=1000)
    assert messages.texts() == ["* c 3000000 b 3025000"]
    queue.schedule("sooner", 3990, now_ms=1000)
    assert messages.texts() == ["* a 2990000"]  # c is the second now: b is not needed
    queue.schedule("later", 9000, now_ms=1000)
    assert messages.texts() == []


def test_a_worker_that_is_not_needed_waits_for_a_message(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    a, b, c = idle
    queue.schedule("task", 9000, now_ms=1000)
    assert messages.texts() == ["*"]  # two of these look again before that
    for worker, now_ms, next_in_ms in ((a, 5000, None), (b, 5001, 4024), (c, 5002, 3998)):
        worker.claim(now_ms)  # until then, the others look again in time
        assert (worker.name, worker.next_in_ms) == (worker.name, next_in_ms)


def test_whoever_takes_a_task_passes_the_watch_on(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    _, b, c = idle
    queue.schedule_many([("one", 4000, b""), ("two", 4010, b"")], now_ms=1000)
    messages.texts()
    assert c.claim(4000)  # b comes at 4025 anyway
    assert messages.texts() == [" a 10000"]
    assert b.claim(4011)
    assert messages.texts() == []


def test_a_thread_that_is_relieved_keeps_the_watch(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    *_, c = idle
    queue.schedule_many([("one", 4000, b""), ("two", 4010, b"")], now_ms=1000)
    messages.texts()
    assert c.claim(4000, relieved=True)
    assert c.claim(4001, relieved=True) == []
    assert c.next_in_ms == 9
    assert messages.texts() == []


def test_the_second_takes_over_from_one_that_died(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    a, b, _ = idle
    queue.schedule_many([("one", 4000, b""), ("two", 4500, b"")], now_ms=1000)
    messages.texts()
    assert b.claim(4025)  # c never came
    assert messages.texts() == [" a 475000"]
    a.claim(4500)
    queue.schedule("three", 4600, now_ms=4501)
    assert messages.texts() == [""]  # nobody waits


def test_a_worker_that_signed_off_is_not_relied_on(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    *_, c = idle
    c.queue.sign_off("c's worker")
    queue.schedule("task", 4000, now_ms=1000)
    assert messages.texts() == ["* b 3000000 a 3025000"]


def test_plans_made_before_the_clock_was_set_back_are_void(
    client: redis.Redis, queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    client.zadd(queue.keys.waiting, {idle[0].name: 10_000_000})
    queue.schedule("task", 4000, now_ms=1000)
    assert messages.texts() == ["* c 3000000 b 3025000"]


def test_who_does_not_wait_as_told_is_not_relied_on(queue: DelayQueue, messages: Messages) -> None:
    queue.claim(1, 1000, now_ms=0)
    queue.schedule("task", 4000, now_ms=1000)
    assert messages.texts() == [""]
    assert queue.claim(1, 1000, now_ms=1000).next_in_ms == 3000


def test_whoever_takes_a_task_has_the_end_of_a_lease_watched(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    *_, c = idle
    queue.schedule("task", 1000, now_ms=500)
    messages.texts()
    assert c.claim(1000)  # until 2000
    assert messages.texts() == [" a 1025000"]  # b comes at 1025, and finds out


def test_who_stops_sharing_the_watch_is_not_relied_on(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    *_, c = idle
    c.queue.claim(1, 1000, now_ms=500)
    queue.schedule("task", 4000, now_ms=1000)
    assert messages.texts() == ["* b 3000000 a 3025000"]


def test_the_dead_do_not_wait_again_when_the_clock_is_set_back(
    queue: DelayQueue, idle: list[Idle], messages: Messages
) -> None:
    a, *_ = idle
    assert a.claim(9000) == []  # b and c have died
    queue.schedule("task", 4000, now_ms=1000)
    assert messages.texts() == [""]  # only one is known: there may be more


def test_who_must_claim_again_at_once_is_told_so(client: redis.Redis, queue: DelayQueue) -> None:
    dead, alive = DelayQueue(client, "contract"), DelayQueue(client, "contract")
    for _ in range(5):  # one claim in a thousand comes when a millisecond begins
        queue.schedule_many([("cancelled", 1, b""), ("suspect", 2, b"")])
        assert dead.claim(2, 1).tasks
        queue.cancel("cancelled")
        wait_until(lambda: _lease_has_ended(client, queue), "the lease to end")
        found = alive.claim(1, 1000, waits_ms=5000)
        assert (found.tasks, found.next_in_ms) == ([], 0)  # the first suspect was dropped
        alive.ack(alive.claim(1, 1000, waits_ms=5000).tasks)


def _lease_has_ended(client: redis.Redis, queue: DelayQueue) -> bool:
    found: Any = client.zrange(queue.keys.leased, -1, -1, withscores=True)
    now: Any = client.time()
    return bool(1000 * now[0] + now[1] // 1000 > found[0][1])
