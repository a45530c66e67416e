"""Leases are extended while a handler is at work, by the clock that the test moves."""

import time
from collections.abc import Callable

import fakeredis
import pytest
import redis
from structlog.testing import capture_logs

from tests.contract.state import state
from worker import DelayQueue, Flow, Task
from worker.isolation import Results
from worker.renewal import Held, Renewer

LEASE_SECONDS = 9.0
FLOW = Flow(
    name="slow", handler=lambda _: None, lease_seconds=LEASE_SECONDS, max_runtime_seconds=60
)


class Extended(DelayQueue):
    """Counts what is extended, and may refuse to."""

    def __init__(self) -> None:
        super().__init__(fakeredis.FakeRedis(protocol=2), FLOW.name)
        self.extensions: list[list[str]] = []
        self.refuse: Callable[[], None] = lambda: None

    def extend(self, tasks: object, lease_ms: int, *, now_ms: int | None = None) -> None:
        assert isinstance(tasks, list)
        self.refuse()
        self.extensions.append([task.id for task in tasks])
        super().extend(tasks, lease_ms, now_ms=now_ms)


@pytest.fixture
def queue() -> Extended:
    return Extended()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def renewer(queue: Extended, heard: Heard) -> Renewer:
    return Renewer(FLOW, queue, heard)


def claimed(queue: DelayQueue, *ids: str) -> list[Task]:
    queue.schedule_many((task_id, 1, b"") for task_id in ids)
    return queue.claim(len(ids), round(LEASE_SECONDS * 1000)).tasks


def test_a_lease_is_extended_each_third_of_it_for_as_long_as_the_work_takes(
    queue: Extended, renewer: Renewer
) -> None:
    tasks = claimed(queue, "a", "b")
    began = time.monotonic()
    with renewer.holding(tasks, began):
        for seconds in range(1, 31):
            renewer.renew(began + seconds)
    assert queue.extensions == [["a", "b"]] * 10
    renewer.renew(began + 40)
    assert len(queue.extensions) == 10


def test_work_that_is_faster_than_a_third_of_its_lease_costs_nothing(
    queue: Extended, renewer: Renewer
) -> None:
    began = time.monotonic()
    with renewer.holding(claimed(queue, "a"), began):
        renewer.renew(began + 2.9)
    assert queue.extensions == []


def test_what_is_settled_is_not_extended_any_more(queue: Extended, renewer: Renewer) -> None:
    tasks = claimed(queue, "a", "b")
    began = time.monotonic()
    with renewer.holding(tasks, began) as held:
        held.let_go(Results(done=tasks[:1]))
        queue.ack(tasks[:1])
        renewer.renew(began + 4)
    assert queue.extensions == [["b"]]
    assert list(state(queue)["leased"]) == ["b"]


def test_a_task_that_another_worker_has_is_given_up_and_the_others_are_extended(
    queue: Extended, renewer: Renewer
) -> None:
    tasks = claimed(queue, "a", "b")
    queue.schedule("a", 2**50)
    began = time.monotonic()
    with renewer.holding(tasks, began), capture_logs() as logged:
        renewer.renew(began + 4)
        renewer.renew(began + 8)
    assert queue.extensions == [["a", "b"], ["b"]]
    assert [(line["event"], line["ids"]) for line in logged] == [
        ("lease lost while at work", ["a"])
    ]


def test_a_task_that_was_settled_meanwhile_is_not_lost(queue: Extended, renewer: Renewer) -> None:
    tasks = claimed(queue, "a")
    began = time.monotonic()
    with renewer.holding(tasks, began) as held, capture_logs() as logged:

        def settle_first() -> None:
            held.let_go(Results(done=tasks))
            queue.ack(tasks)

        queue.refuse = settle_first
        renewer.renew(began + 4)
    assert logged == []


def test_after_a_failed_extension_the_next_look_tries_again(
    queue: Extended, renewer: Renewer
) -> None:
    def refuse() -> None:
        raise redis.TimeoutError("silence")

    began = time.monotonic()
    with renewer.holding(claimed(queue, "a"), began):
        queue.refuse = refuse
        renewer.renew(began + 3.1)
        queue.refuse = lambda: None
        renewer.renew(began + 3.9)
    assert queue.extensions == [["a"]]


def test_a_handler_that_runs_too_long_loses_its_lease_and_is_reported(
    queue: Extended, renewer: Renewer
) -> None:
    began = time.monotonic()
    with renewer.holding(claimed(queue, "a"), began), capture_logs() as logged:
        for seconds in range(0, 100, 4):
            renewer.renew(began + seconds)
    assert len(queue.extensions) == 15
    [line] = logged
    assert (line["log_level"], line["queue"], line["ids"]) == ("error", "slow", ["a"])


def test_each_call_of_a_handler_has_its_own_time(queue: Extended, renewer: Renewer) -> None:
    tasks = claimed(queue, "a")
    with renewer.holding(tasks, time.monotonic() - 59) as held:
        held.leased_at += 59
        assert held.begin(tasks)
        renewer.renew(time.monotonic() + 4)
    assert queue.extensions == [["a"]]


def test_nothing_begins_under_a_lease_that_may_have_ended(queue: Extended) -> None:
    tasks = claimed(queue, "a")
    assert Held(FLOW, tasks, time.monotonic()).begin(tasks)
    assert not Held(FLOW, tasks, time.monotonic() - LEASE_SECONDS).begin(tasks)


def test_a_task_that_another_worker_has_is_not_begun(queue: Extended, renewer: Renewer) -> None:
    tasks = claimed(queue, "a", "b")
    queue.schedule("b", 2**50)
    began = time.monotonic()
    with renewer.holding(tasks, began) as held:
        renewer.renew(began + 4)
        assert held.begin(tasks[:1])
        assert not held.begin(tasks[1:])
        assert not held.begin(tasks)
