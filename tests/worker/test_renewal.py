"""Leases are extended while a handler is at work, by the clock that the test moves."""

from contextlib import ExitStack

import pytest
import redis
from structlog.testing import capture_logs

from tests.kit.engine import Clock, ClockedQueue, Heard, Refusing, Wait, shared_by
from tests.kit.settling import ack
from worker import Flow, Task, events
from worker.runtime.isolation import BatchResult
from worker.runtime.renewal import CHECK_EVERY, HeldTasks, Renewer
from worker.runtime.settling import Settler

LEASE_SECONDS = 9.0
FLOW = Flow(
    name="slow", handler=lambda _: None, lease_seconds=LEASE_SECONDS, max_runtime_seconds=60
)


class Desk:
    """A renewer and the queue it extends leases in."""

    def __init__(self, clock: Clock, flow: Flow = FLOW) -> None:
        self.clock = clock
        self.queue = ClockedQueue(flow.name, clock)
        self.heard = Heard()
        self.shared = shared_by(clock.environment, self.heard)
        settler = Settler(flow, self.queue, self.shared)
        self.renewer = Renewer(flow, self.queue, self.shared, settler)

    def claimed(self, *ids: str) -> list[Task]:
        self.queue.schedule_many((task_id, 1, b"") for task_id in ids)
        tasks = self.queue.claim(max(1, len(ids)), round(LEASE_SECONDS * 1000)).tasks
        self.queue.calls.clear()
        return tasks

    def pass_seconds(self, seconds: float) -> None:
        self.clock.move(seconds)
        self.renewer.renew(self.clock.now)

    @property
    def extensions(self) -> int:
        """How often a lease was extended, or tried to be."""
        return self.queue.calls.count("extend")


@pytest.fixture
def desk() -> Desk:
    return Desk(Clock())


def test_a_lease_is_extended_every_third_while_work_lasts(desk: Desk) -> None:
    with desk.renewer.holding(desk.claimed("a", "b"), desk.clock.now):
        for _ in range(30):
            desk.pass_seconds(1)
            assert min(desk.queue.leased().values()) >= 6000
    assert desk.extensions == 10
    desk.pass_seconds(10)
    assert desk.extensions == 10


def test_one_call_extends_the_leases_of_all_claims(desk: Desk) -> None:
    claims = [desk.claimed(name) for name in "abc"]
    desk.queue.schedule("b", 2**50)
    with ExitStack() as held:
        blocks = [
            held.enter_context(desk.renewer.holding(tasks, desk.clock.now)) for tasks in claims
        ]
        desk.pass_seconds(4)
        assert [len(block.tasks()) for block in blocks] == [1, 0, 1]
    assert desk.extensions == 1
    assert desk.queue.leased() == {"a": 9000, "c": 9000}
    assert desk.heard == [events.LeaseLost("slow", ["b"])]


def test_a_task_claimed_twice_belongs_to_the_later_claim(desk: Desk) -> None:
    first = desk.claimed("a")
    desk.clock.move(LEASE_SECONDS)
    second = desk.claimed()
    with (
        desk.renewer.holding(first, desk.clock.now - LEASE_SECONDS) as lost,
        desk.renewer.holding(second, desk.clock.now) as held,
    ):
        desk.pass_seconds(4)
        assert (lost.tasks(), held.tasks()) == ([], second)
    assert desk.heard == [events.LeaseLost("slow", ["a"])]


def test_work_faster_than_a_third_of_its_lease_costs_nothing(desk: Desk) -> None:
    with desk.renewer.holding(desk.claimed("a"), desk.clock.now):
        desk.pass_seconds(2.9)
    assert desk.extensions == 0


def test_a_lease_counts_from_before_the_claims_reply(
    desk: Desk,
) -> None:
    tasks = desk.claimed("a")
    claimed_at = desk.clock.now
    desk.clock.move(1)
    with desk.renewer.holding(tasks, claimed_at):
        desk.pass_seconds(2)
    assert desk.extensions == 1


def test_what_is_settled_is_not_extended_any_more(desk: Desk) -> None:
    tasks = desk.claimed("a", "b")
    with desk.renewer.holding(tasks, desk.clock.now) as held:
        held.stop_extending(BatchResult(done=tasks[:1]))
        ack(desk.queue, tasks[:1])
        desk.pass_seconds(4)
        assert desk.queue.leased() == {"b": 9000}
        held.stop_extending(BatchResult(untouched=tasks[1:]))
        desk.pass_seconds(4)
    assert desk.extensions == 1


def test_after_a_failed_extension_the_next_look_tries_again(desk: Desk) -> None:
    with desk.renewer.holding(desk.claimed("a"), desk.clock.now), capture_logs() as logged:
        desk.queue.before = Refusing(redis.TimeoutError("silence"))
        desk.pass_seconds(3.1)
        desk.queue.before = lambda _: None
        desk.pass_seconds(CHECK_EVERY * LEASE_SECONDS)
    assert desk.extensions == 2
    assert desk.queue.leased() == {"a": 9000}
    assert [line["event"] for line in logged] == ["lease not extended yet"]


def test_an_overrunning_handler_loses_its_lease_and_is_told_once(desk: Desk) -> None:
    with desk.renewer.holding(desk.claimed("a"), desk.clock.now):
        for _ in range(25):
            desk.pass_seconds(4)
    assert desk.extensions == 15
    assert desk.heard == [events.RanTooLong("slow", ["a"])]
    assert [task.id for task in desk.queue.claim(9, 1000).tasks] == ["a"]


def test_each_call_of_a_handler_has_its_own_time(desk: Desk) -> None:
    tasks = desk.claimed("a")
    with desk.renewer.holding(tasks, desk.clock.now) as held:
        for _ in range(14):
            desk.pass_seconds(4)
        assert held.begin(tasks)
        for _ in range(14):
            desk.pass_seconds(4)
    assert desk.heard == []
    assert desk.extensions == 28


def test_a_batch_that_is_handled_at_once_keeps_all_of_it(desk: Desk) -> None:
    tasks = desk.claimed("a", "b")
    with desk.renewer.holding(tasks, desk.clock.now) as held:
        held.begin(tasks)
        desk.pass_seconds(2)
        assert held.tasks() == tasks


def test_nothing_begins_under_a_lease_that_may_have_ended(desk: Desk) -> None:
    tasks = desk.claimed("a")
    held = HeldTasks(FLOW, tasks, desk.clock.now, desk.clock)
    desk.clock.move(LEASE_SECONDS - 0.001)
    assert held.begin(tasks)
    desk.clock.move(0.001)
    assert not held.begin(tasks)


def test_a_task_that_another_worker_has_is_not_begun(desk: Desk) -> None:
    tasks = desk.claimed("a", "b")
    desk.queue.schedule("b", 2**50)
    with desk.renewer.holding(tasks, desk.clock.now) as held:
        desk.pass_seconds(4)
        assert held.begin(tasks[:1])
        assert not held.begin(tasks[1:])
        assert not held.begin(tasks)


def test_it_looks_often_enough_for_two_attempts_to_fail(
    desk: Desk,
) -> None:
    finished = desk.renewer._finished = Wait(desk.clock)
    finished.after = lambda: desk.renewer.finish() if desk.clock.now > ends_at else None
    ends_at = desk.clock.now + LEASE_SECONDS - 0.1
    tasks = desk.claimed("a")
    desk.queue.before = Refusing(redis.TimeoutError("silence"))
    with desk.renewer.holding(tasks, desk.clock.now), capture_logs():
        desk.renewer.run()
    assert finished.waits == [LEASE_SECONDS / 12] * 12
    assert desk.extensions >= 3  # from a third of the lease to its end


def test_a_long_lease_is_looked_at_each_second_all_the_same(desk: Desk) -> None:
    flow = Flow(name="long", handler=lambda _: None, lease_seconds=600)
    renewer = Desk(desk.clock, flow).renewer
    finished = renewer._finished = Wait(desk.clock, after=renewer.finish)
    renewer.run()
    assert finished.waits == [1.0]
