"""What Redis is told of each task, what is told again, and what a sweep must leave alone."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from tests.kit.engine import Clock, ClockedQueue, Heard, Refusing, shared_by
from worker import (
    Backoff,
    DeadLetter,
    Delays,
    Flow,
    NotDue,
    Reschedule,
    Retry,
    Task,
    Unavailable,
    events,
)
from worker.queue.formats import SLICE
from worker.runtime.isolation import BatchResult, LookAgain
from worker.runtime.settling import MAX_UNCONFIRMED, Postponed, Settler, retry_delay_ms

GONE = redis.TimeoutError("silent")
ERROR = ValueError("no such customer")


class Desk:
    """A settler with claimed tasks."""

    def __init__(self, clock: Clock, *ids: str, **settings: Any) -> None:
        self.clock = clock
        self.queue = ClockedQueue("a", clock)
        self.heard = Heard()
        settings = {"sweep": lambda *_: [], "without_redis": "handle", **settings}
        self.flow = Flow(name="a", handler=lambda _: None, backoff=Delays(7), **settings)
        shared = shared_by(clock.environment, self.heard)
        self.counts = shared.counts
        self.settler = Settler(self.flow, self.queue, shared)
        self.tasks = {task.id: task for task in self.claim(*ids)}

    def claim(self, *ids: str) -> list[Task]:
        self.queue.schedule_many((task_id, self.clock.now * 1000, b"") for task_id in ids)
        return self.again()

    def again(self) -> list[Task]:
        return self.queue.claim(999, 10_000).tasks

    def __getitem__(self, task_id: str) -> Task:
        return self.tasks[task_id]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _of_each_kind(desk: Desk) -> BatchResult:
    return BatchResult(
        done=[desk["done"]],
        retries=[(desk["retried"], Retry(1000))],
        rescheduled=[(desk["new"], Reschedule(2000))],
        failed=[(desk["failed"], ERROR), (desk["counted"], Retry(3000, counted=True))],
        dead=[(desk["dead"], DeadLetter(ERROR))],
        untouched=[desk["untouched"]],
    )


KINDS = ("counted", "dead", "done", "failed", "new", "retried", "untouched")


# -- each outcome --------------------------------------------------------------------------


def test_each_outcome_ends_in_its_place_and_is_counted(clock: Clock) -> None:
    desk = Desk(clock, *KINDS)
    assert desk.settler.settle(_of_each_kind(desk))
    assert desk.queue.scheduled() == {
        "untouched": 0,
        "retried": 1000,
        "new": 2000,
        "counted": 3000,
        "failed": 7000,
    }
    assert desk.queue.leased() == {}
    assert desk.queue.dead_now() == {"dead"}
    assert desk.counts == {"done": 1, "retried": 2, "failed": 2, "dead": 1, "released": 1}


def test_what_was_asked_for_again_or_failed_or_died_is_told(clock: Clock) -> None:
    desk = Desk(clock, *KINDS)
    results = _of_each_kind(desk)
    desk.settler.settle(results)
    assert [(told.task.id, told.delay_ms) for told in desk.heard.of(events.Retried)] == [
        ("retried", 1000),
        ("new", 2000),
    ]
    failed = desk.heard.of(events.Failed)
    assert [(told.task.id, told.task.failures, told.delay_ms) for told in failed] == [
        ("failed", 1, 7000),
        ("counted", 1, 3000),
    ]
    assert failed[0].error is ERROR
    [died] = desk.heard.of(events.Died)
    assert (died.task.id, died.reason, died.error) == ("dead", "no such customer", ERROR)


def test_a_task_that_is_looked_at_again_keeps_its_counts(clock: Clock) -> None:
    desk = Desk(clock, "a")
    desk.settler.settle(BatchResult(failed=[(desk["a"], ERROR)]))
    delays = []
    for attempt in range(2, 12):
        clock.move(desk.queue.scheduled()["a"] / 1000)
        [task] = desk.again()
        assert (task.failures, task.attempt) == (1, attempt)
        desk.settler.settle(BatchResult(retries=[(task, LookAgain(task, Unavailable("locked")))]))
        delays.append(desk.queue.scheduled()["a"])
    assert delays[0] <= 100
    assert 500 <= delays[-1] <= 1000
    assert desk.counts == {"failed": 1, "retried": 10}
    assert {str(told.error) for told in desk.heard.of(events.Retried)} == {
        str(Unavailable("locked"))
    }


@pytest.mark.parametrize("error", [ERROR, Retry(5000, counted=True)])
def test_the_last_failure_allowed_makes_a_dead_letter(clock: Clock, error: Exception) -> None:
    desk = Desk(clock, "a", max_failures=3)
    [task] = desk.tasks.values()
    for count in (1, 2):
        desk.settler.settle(BatchResult(failed=[(task, error)]))
        assert desk.queue.dead_now() == set()
        clock.move(7)
        [task] = desk.again()
        assert task.failures == count
    desk.settler.settle(BatchResult(failed=[(task, error)]))
    [letter] = desk.queue.dead()
    assert (letter.story["reason"], letter.story["failures"]) == ("failed too often", 3)
    assert desk.counts == {"failed": 2, "dead": 1}
    [died] = desk.heard.of(events.Died)
    assert (died.reason, died.error, died.task.failures) == ("failed too often", error, 3)


@pytest.mark.parametrize("outcome", [Retry(0), Retry(-60_000), Reschedule(0)])
def test_what_is_wanted_again_at_once_comes_after_a_millisecond(
    clock: Clock, outcome: Retry | Reschedule
) -> None:
    desk = Desk(clock, "a")
    results = BatchResult()
    results.add(desk["a"], outcome)
    desk.settler.settle(results)
    assert desk.queue.scheduled() == {"a": 1}


# -- how long until the next attempt -------------------------------------------------------


def _flow(backoff: Callable[[int], float]) -> Flow:
    return Flow(name="a", handler=lambda _: None, backoff=backoff)


@pytest.mark.parametrize(
    "wrong", [None, "soon", math.nan, [], KeyError("a bug"), asyncio.CancelledError()]
)
def test_a_backoff_that_fails_is_logged_and_the_default_is_used(wrong: Any) -> None:
    def backoff(_: int) -> float:
        if isinstance(wrong, BaseException):
            raise wrong
        return wrong  # type: ignore[no-any-return]

    with capture_logs() as logged:
        delay_ms = retry_delay_ms(_flow(backoff), 3, ERROR)
    assert [(line["event"], line["queue"]) for line in logged] == [("backoff fails", "a")]
    longest = 1000 * Backoff()(3, lambda: 1.0)
    assert longest / 2 <= delay_ms <= longest


# -- a lost lease --------------------------------------------------------------------------


def test_a_lost_lease_is_told_and_the_others_are_settled(clock: Clock) -> None:
    desk = Desk(clock, "mine", "theirs")
    desk.queue.schedule("theirs", 2**50)
    assert desk.settler.settle(BatchResult(done=[*desk.tasks.values()]))
    assert desk.heard.of(events.LeaseLost) == [events.LeaseLost("a", ("theirs",))]
    assert desk.counts == {"done": 1, "stale": 1}
    desk.queue.calls.clear()
    desk.settler.resend()
    assert desk.queue.calls == []


def test_a_lost_lease_is_no_news_where_nothing_was_to_be_written(clock: Clock) -> None:
    desk = Desk(clock, "paid", "prolonged", "theirs")
    paid, prolonged, theirs = desk.tasks.values()
    desk.queue._redis.flushall()
    later: list[tuple[Task, Retry]] = [(prolonged, NotDue(1000))]
    results = BatchResult(done=[paid, theirs], no_ops={"paid"}, retries=later)
    desk.settler.settle(results, is_leased=True)
    assert desk.heard.of(events.LeaseLost) == [events.LeaseLost("a", ("theirs",))]
    assert desk.counts == {"stale": 1}


# -- what Redis does not take --------------------------------------------------------------


def test_of_tasks_whose_lease_is_lost_only_that_is_reported(clock: Clock) -> None:
    desk = Desk(clock, *KINDS)
    desk.queue._redis.flushall()
    assert desk.settler.settle(_of_each_kind(desk))
    assert {type(event) for event in desk.heard} == {events.LeaseLost}
    assert {task_id for event in desk.heard.of(events.LeaseLost) for task_id in event.ids} == {
        *KINDS
    }


def test_what_redis_does_not_take_is_owed_until_it_does(clock: Clock) -> None:
    desk = Desk(clock, *KINDS)
    desk.queue.before = Refusing(GONE)
    with capture_logs() as logged:
        assert not desk.settler.settle(_of_each_kind(desk))
    assert [line["tasks"] for line in logged] == [7]
    assert set(desk.queue.leased()) == set(KINDS)
    assert desk.counts == {}
    desk.queue.before = lambda _: None
    desk.settler.resend()
    assert desk.queue.leased() == {}
    assert desk.counts == {"done": 1, "retried": 2, "failed": 2, "dead": 1, "released": 1}
    desk.queue.calls.clear()
    desk.settler.resend()
    assert desk.queue.calls == []


def test_a_delay_goes_on_while_redis_is_silent(clock: Clock) -> None:
    desk = Desk(clock, "failed", "new", "retried")
    desk.queue.before = Refusing(GONE)
    desk.settler.settle(
        BatchResult(
            retries=[(desk["retried"], Retry(9000))],
            rescheduled=[(desk["new"], Reschedule(8000))],
            failed=[(desk["failed"], ERROR)],
        )
    )
    clock.move(6)
    desk.queue.before = lambda _: None
    desk.settler.resend()
    assert desk.queue.scheduled() == {"failed": 1000, "new": 2000, "retried": 3000}


def test_what_is_owed_is_sent_again_as_one_call(clock: Clock) -> None:
    desk = Desk(clock, "a", "b")
    desk.queue.before = Refusing(GONE)
    desk.settler.settle(BatchResult(done=[desk["a"]]))
    desk.settler.settle(BatchResult(untouched=[desk["b"]]))
    desk.queue.calls.clear()
    with pytest.raises(redis.TimeoutError):
        desk.settler.resend()
    desk.queue.before = lambda _: None
    desk.settler.resend()
    assert desk.queue.calls == ["settle", "settle"]
    assert (desk.queue.scheduled(), desk.counts) == ({"b": 0}, {"done": 1, "released": 1})


def test_of_a_large_batch_only_what_redis_did_not_confirm_is_owed(clock: Clock) -> None:
    desk = Desk(clock)
    tasks = desk.claim(*(f"{n:03}" for n in range(600)))
    calls = iter([None, GONE])

    def second(_: str) -> None:
        if error := next(calls, None):
            raise error

    desk.queue.before = second
    assert not desk.settler.settle(BatchResult(done=tasks))
    assert len(desk.queue.leased()) == 100
    desk.settler.resend()
    assert (desk.queue.leased(), desk.counts) == ({}, {"done": 600})


def test_a_refused_unconfirmed_call_is_kept_and_claims_go_on(
    clock: Clock,
) -> None:
    desk = Desk(clock, "a")
    desk.queue.before = Refusing(redis.ResponseError("WRONGTYPE"))
    desk.settler.settle(BatchResult(done=[desk["a"]]))
    desk.settler.resend()
    desk.queue.before = lambda _: None
    desk.settler.resend()
    assert desk.queue.leased() == {}


def test_a_call_that_redis_refused_may_have_lost_its_lease(clock: Clock) -> None:
    desk = Desk(clock, "a")
    desk.queue.before = Refusing(redis.ResponseError("READONLY"))
    desk.settler.settle(BatchResult(done=[desk["a"]]))
    desk.queue.before = lambda _: None
    desk.queue.schedule("a", 2**50)
    desk.settler.resend()
    assert desk.counts == Counter(stale=1)


def test_no_more_is_owed_than_fits_in_memory(clock: Clock) -> None:
    desk = Desk(clock)
    desk.queue.before = Refusing(GONE)
    for most in (MAX_UNCONFIRMED, 10):
        desk.settler.settle(BatchResult(done=[Task(str(n)) for n in range(most)]))
    desk.queue.before = lambda _: None
    desk.settler.resend()
    assert desk.counts == {"stale": MAX_UNCONFIRMED - SLICE + 10}


# -- what a sweep leaves alone -------------------------------------------------------------


def test_what_its_records_made_due_anew_is_not_put_off_any_more(clock: Clock) -> None:
    postponed = Postponed(clock)
    postponed.add("a", clock.now + 3600)
    postponed.add("dead", math.inf)
    was_due, due_anew = clock.now - 1, clock.now + 1
    clock.move(2)
    assert postponed.covers("a", was_due)
    assert not postponed.covers("a", due_anew)
    assert postponed.covers("dead", due_anew)
    assert not postponed.covers("other", was_due)
    clock.move(3600)
    assert not postponed.covers("a", was_due)


def test_what_was_put_off_until_some_past_time_takes_no_memory(clock: Clock) -> None:
    postponed = Postponed(clock)
    postponed.add("dead", math.inf)
    for n in range(100_000):  # that another worker has done since, so nobody forgets them here
        postponed.add(str(n), clock.now + 1)
        clock.move(0.01)
    assert len(postponed._until) < 2000
    assert "dead" in postponed
    assert "99999" in postponed


def test_what_is_put_off_or_dead_is_so_before_redis_is_told(clock: Clock) -> None:
    desk = Desk(clock, *KINDS)
    known: list[set[str]] = []
    desk.queue.before = lambda _: known.append(set(desk.settler.postponed._until))
    desk.settler.settle(_of_each_kind(desk))
    # A silent Redis holds up each call, and meanwhile a sweep may hand out what nobody holds.
    assert known[0] == {"retried", "new", "counted", "failed", "dead"}


def test_what_a_sweep_could_hand_out_too_early_is_put_off(clock: Clock) -> None:
    desk = Desk(clock, *KINDS)
    desk.queue.before = Refusing(GONE)  # whether Redis takes it or not
    desk.settler.settle(_of_each_kind(desk))
    until = {name: at - clock.now for name, at in desk.settler.postponed._until.items()}
    assert until == pytest.approx(
        {"retried": 1.0, "new": 2.0, "counted": 3.0, "failed": 7.0, "dead": math.inf}
    )


def test_a_dead_letter_that_was_requeued_is_not_put_off_for_ever(clock: Clock) -> None:
    desk = Desk(clock, "a")
    desk.settler.settle(BatchResult(dead=[(desk["a"], DeadLetter(ERROR))]))
    desk.queue.requeue(["a"])
    desk.settler.settle(BatchResult(untouched=desk.again()))  # as in an outage
    assert "a" not in desk.settler.postponed


def test_what_was_delivered_too_often_is_put_off_for_a_sweep_too(clock: Clock) -> None:
    desk = Desk(clock, "worn")
    reason = DeadLetter("delivered 5 times and never settled")
    desk.settler.settle(BatchResult(dead=[(desk["worn"], reason)]))
    assert "worn" in desk.settler.postponed


@pytest.mark.parametrize("settings", [{"sweep": None}, {}])
def test_a_sweep_that_hands_out_nothing_remembers_nothing(
    clock: Clock, settings: dict[str, Any]
) -> None:
    desk = Desk(clock, *KINDS, without_redis="wait", **settings)
    desk.settler.settle(_of_each_kind(desk))
    assert desk.settler.postponed._until == {}


def test_an_outage_is_no_failure(clock: Clock) -> None:
    desk = Desk(clock, "a")
    desk.settler.settle(BatchResult(untouched=[desk["a"]], outage=Unavailable("down")))
    [task] = desk.again()
    assert (task.failures, task.attempt, task.deliveries) == (0, 1, 0)
    assert desk.heard == []
