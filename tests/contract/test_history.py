"""What `worker replay` says of logs: nothing of what the model allows, and the first line of what it does not."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from tests.contract.conftest import every_producer
from tests.contract.model import Machine, play
from tests.contract.steps import one, reply_lost
from worker import AsyncDelayQueue, DelayQueue, Due, Task, connect_async
from worker.queue.replies import Put
from worker.queue.scripted import LOGGER
from worker.watch.history import histories, read


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    """What is logged of the calls of every queue."""
    LOGGER.setLevel(logging.DEBUG)
    with capture_logs() as lines:
        yield lines  # type: ignore[misc]  # they may be changed
    LOGGER.setLevel(logging.NOTSET)


def wrong(lines: list[dict[str, Any]]) -> dict[str, str]:
    """Why the first line of each task must not have happened. Each is logged a microsecond after the one before."""
    for n, line in enumerate(lines):
        line |= {"timestamp": f"2026-11-24T00:00:00.{n:06}Z", "took_ms": 0}
    found = histories(read(map(json.dumps, lines), {}))
    return {line.task: why for _, history in found for line, why in history if why}


def test_nothing_that_the_model_does_is_forbidden(
    client: redis.Redis, logged: list[dict[str, Any]]
) -> None:
    class Logged(Machine):
        def __init__(self) -> None:
            logged.clear()
            super().__init__(client)

        # No log tells of the server's clock.
        def the_clock_is_set(self, ms: int) -> None: ...

        def teardown(self) -> None:
            assert wrong(logged) == {}

    play(Logged, 10, 60)


@every_producer
def test_what_comes_from_an_iterator_is_named_too(
    queue: DelayQueue, logged: list[dict[str, Any]]
) -> None:
    queue.schedule_many((name, 1000, b"") for name in "ab")
    queue.cancel_many(iter("ac"))
    named = [[task for task, _ in line["each"]] for line in logged]
    assert named == [["a", "b"], ["a", "c"]]


@pytest.fixture
def lines(queue: DelayQueue, logged: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A task is claimed, extended, retried, claimed again, released, claimed by another, and done."""
    other = DelayQueue(queue._redis, queue.name)
    queue.schedule("a", 1000)
    task = one(queue, 1000)
    queue.extend([task], 5000, now_ms=1050)
    queue.retry([(task, 10)], Put.FAILED, now_ms=1100)
    queue.release([one(queue, 1200)])
    queue.ack([one(other, 1300)])
    return logged


#: Which line is doctored, what it says instead, and the reason.
DOCTORED: list[tuple[int, dict[str, Any], str]] = [
    (1, {"each": [["a", 1, "x", 1001]]}, "it is due 1 ms later"),
    (1, {"each": [["a", 3, "x", 1000]]}, "attempt 1 is next, not 3"),
    (2, {"each": [["a", 1, "stale"]]}, "the token stale holds no lease: w1 holds "),
    (3, {"event": "claim", "at_ms": 1099, "lease_ms": 1, "each": [["a", 2, "x", 0]]}, "w1 holds "),
    (3, {"event": "ack_late"}, "it is done, and nothing has scheduled it since"),
    (3, {"event": "purge", "each": [["a"]]}, "it is no dead letter: it is leased"),
    (3, {"event": "cancel", "each": [["a", "removed"]]}, "it does not wait: it is leased"),
    (3, {"event": "ack"}, "it is done, and nothing has scheduled it since"),
    (3, {"event": "dead_letter"}, "it is dead, and nothing has scheduled it since"),
    (4, {"each": [["a", 1, "x", 0]]}, "attempt 2 is next, not 1"),
    (5, {"event": "extend", "lease_ms": 9000}, "w1 holds "),
    (
        6,
        {"event": "ack_late", "each": [["a", 3, "x"]]},
        "no other worker holds it: it is scheduled",
    ),
    (7, {"event": "batch", "id": "a", "late_ms": -3}, "it was handled 3 ms before it was due"),
    (7, {"each": [["a", 2, "stale"]]}, "the token stale holds no lease: w2 holds "),
]


@pytest.mark.parametrize(("number", "said", "reason"), DOCTORED)
def test_what_must_not_have_happened_is_told(
    lines: list[dict[str, Any]], number: int, said: dict[str, Any], reason: str
) -> None:
    assert wrong(lines) == {}
    names = {each["by"]: f"w{n}" for n, each in enumerate(lines[1::5], 1)}
    for line in lines:
        line["by"] = names[line["by"]]
    lines[number] |= said
    assert wrong(lines)["a"].startswith(reason)


#: What is done to a task that was claimed at 1000, and then a call whose reply is lost.
LOST: list[tuple[Callable[[DelayQueue, Task], object], Callable[[DelayQueue], object]]] = [
    (lambda queue, task: queue.ack([task]), lambda queue: queue.schedule("a", 1000)),
    (lambda queue, _: queue.cancel("a"), lambda queue: queue.schedule("a", 1000)),
    (
        lambda queue, task: queue.dead_letter([(task, "bad", None)]),
        lambda queue: queue.requeue(["a"], now_ms=1000),
    ),
    (lambda queue, _: queue.destroy(), lambda queue: queue.restore([Due("a", 0)], now_ms=1000)),
]


@pytest.mark.parametrize(("before", "lost"), LOST)
def test_a_call_without_a_reply_may_have_been_made(
    queue: DelayQueue,
    logged: list[dict[str, Any]],
    before: Callable[[DelayQueue, Task], object],
    lost: Callable[[DelayQueue], object],
) -> None:
    queue.schedule("a", 1000)
    before(queue, one(queue, 1000, 5000))
    with reply_lost(queue):
        lost(queue)
    assert one(queue, 1000).id == "a"
    assert wrong(logged) == {}


def test_a_call_of_asyncio_without_a_reply_is_named_too(logged: list[dict[str, Any]]) -> None:
    async def produce() -> None:
        async with connect_async("redis://127.0.0.1:1/0") as nowhere:
            await AsyncDelayQueue(nowhere, "contract").schedule("a", 1000)

    with pytest.raises(redis.ConnectionError):
        asyncio.run(produce())
    [line] = logged
    assert (line["event"], line["each"], line["unanswered"]) == ("schedule", [["a"]], True)


def test_an_extended_lease_may_be_claimed_from_once_it_has_ended(
    queue: DelayQueue, logged: list[dict[str, Any]]
) -> None:
    queue.schedule("a", 1000)
    queue.extend([one(queue, 1000)], 5000, now_ms=1050)
    one(queue, 6050)
    assert wrong(logged) == {}
