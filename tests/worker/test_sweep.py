"""One round of the sweep after another, without its thread, on a clock that the test moves."""

import asyncio
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import fakeredis
import pytest
import redis
from structlog.testing import capture_logs

from tests.kit.engine import Clock, ClockedQueue, Heard, Refusing, Wait, shared_by, station_of
from tests.kit.settling import ack, dead_letter
from worker import (
    DeadLetter,
    Delays,
    Due,
    Failed,
    Flow,
    NotDue,
    Outcome,
    Pause,
    Reschedule,
    Retry,
    Task,
    Unavailable,
    events,
    one_at_a_time,
)
from worker.flow import Sweep
from worker.runtime import pauses
from worker.runtime.hangs import HANGS_SECONDS
from worker.runtime.isolation import BatchResult
from worker.runtime.sweep import (
    EXTEND_AFTER,
    SILENCE_SECONDS,
    WINDOW_SECONDS,
    Sweeper,
)
from worker.runtime.waker import Alarm

GONE = redis.ConnectionError("gone")


class Records:
    """What an application's own records say is waiting, in pages."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.page_size = 2
        #: Task id -> when it is due on the clock, and its payload.
        self.waiting: dict[str, float] = {}
        self.payloads: dict[str, bytes] = {}
        self.asked: list[tuple[float | None, float]] = []
        self.rows_read = 0
        self.pages_read = 0
        #: The ids of all of them.
        self.seen: set[str] = set()
        self.error: BaseException | None = None
        #: How long it takes to find the first.
        self.seconds = 0.0

    def add(self, **delays: float) -> None:
        """Records by id, due so many seconds from now."""
        self.waiting |= {name: self.clock.now + delay for name, delay in delays.items()}

    def __call__(self, after: float | None, before: float) -> Iterator[list[Due]]:
        self.asked.append((after, before))
        if self.error:
            raise self.error
        self.clock.move(self.seconds)
        delays = ((due - self.clock.now, name) for name, due in self.waiting.items())
        found = [
            Due(name, delay * 1000, self.payloads.get(name, b""))
            for delay, name in sorted(delays)
            if (after is None or delay > after) and delay <= before
        ]
        for start in range(0, len(found), self.page_size):
            self.pages_read += 1
            page = found[start : start + self.page_size]
            self.rows_read += len(page)
            self.seen.update(due.id for due in page)
            yield page


class Peer:
    """One worker's part of the sweep."""

    def __init__(self, place: "Place", name: str) -> None:
        self.queue = ClockedQueue("swept", place.clock, place.server)
        self.claims = ClockedQueue("swept", place.clock, place.server)
        self.heard = Heard()
        self.alarm = Alarm(place.clock)
        self.stopping: threading.Event = Wait(place.clock)
        shared = shared_by(place.clock.environment, self.heard, self.stopping)
        self.counts = shared.counts
        self.station = station_of(place.flow, self.claims, shared=shared)
        self.sweeper = Sweeper(
            self.station,
            place.records,
            queue=self.queue,
            worker_id=name,
            alarm=self.alarm,
        )

    def claim(self, limit: int = 99) -> list[Task]:
        """What this worker's claims take."""
        return self.claims.claim(limit, 10_000).tasks

    def restores(self) -> int:
        """How often it asked Redis since it was last asked here."""
        count = self.queue.calls.count("restore")
        self.queue.calls.clear()
        return count


class Place:
    """Records, a Redis, a handler, and workers that sweep."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.server = fakeredis.FakeServer()
        self.records = Records(clock)
        self.handled: list[str] = []
        self.tasks: list[Task] = []
        #: What the handler says of a task, or raises.
        self.outcomes: dict[str, Outcome] = {}
        self.poison: set[str] = set()
        self.down = False
        self.flow = Flow(
            name="swept",
            handler=self.handle,
            sweep=self.records,
            **{"without_redis": "handle", "lookahead_seconds": 30, **settings},
        )
        self.peers = [Peer(self, "w1")]

    @property
    def peer(self) -> Peer:
        return self.peers[0]

    def join(self, name: str) -> Peer:
        self.peers.append(Peer(self, name))
        return self.peers[-1]

    def handle(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        if self.down:
            raise Unavailable("no answer")
        if self.poison & {task.id for task in tasks}:
            raise ValueError("poison")
        self.tasks += tasks
        said = {task.id: self.outcomes[task.id] for task in tasks if task.id in self.outcomes}
        for task in tasks:
            self.handled.append(task.id)
            if task.id not in said:
                del self.records.waiting[task.id]
        return said

    def round(self, *, after_seconds: float = 1.0) -> None:
        """Let each worker sweep once, a second after the round before."""
        self.clock.move(after_seconds)
        for peer in self.peers:
            peer.sweeper.sweep(self.clock.now)

    def rounds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.round()

    def redis_goes(self) -> None:
        self.server.connected = False

    def redis_returns(self) -> None:
        self.server.connected = True

    def redis_is_silent_for_long(self) -> None:
        """Redis goes, and each worker has found out that it is no hiccup."""
        self.redis_goes()
        waiting, self.records.waiting = self.records.waiting, {}
        for peer in self.peers:
            peer.sweeper._ask_at = 0.0  # as if its claims had failed
        self.round(after_seconds=0)
        self.clock.move(SILENCE_SECONDS)
        self.records.waiting = waiting

    def flush(self) -> None:
        self.peer.queue._redis.flushall()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(clock: Clock) -> Place:
    return Place(clock)


# -- restoring -----------------------------------------------------------------------------


def test_what_redis_lost_is_restored_and_left_to_the_claims(place: Place) -> None:
    place.records.add(a=-5, b=-4, c=-3)
    place.round(after_seconds=0)
    assert place.peer.queue.scheduled() == {"a": -5000, "b": -4000, "c": -3000}
    assert place.peer.counts == {"restored": 3}
    assert place.peer.heard.of(events.Restored) == [events.Restored("swept", 3)]
    assert place.handled == []


#: Rows that cannot be scheduled, and why.
WRONG_ROWS: dict[str, tuple[Any, str]] = {
    "NaN": (Due("bad", math.nan), "delay_ms is at most"),
    "infinite": (Due("bad", math.inf), "delay_ms is at most"),
    "no time": (Due("bad", None), "not 'NoneType'"),  # type: ignore[arg-type]
    "no id": (Due(None, -1.0), "a task id is text, not None"),  # type: ignore[arg-type]
    "empty id": (Due("", -1.0), "a task id is not empty"),
    "number": (Due(7, -1.0), "a task id is text, not 7"),  # type: ignore[arg-type]
    "surrogate": (Due("\ud800", -1.0), "surrogates not allowed"),
    "payload": (Due("bad", -1.0, None), "a payload is bytes, not None"),  # type: ignore[arg-type]
    "no row": (None, "'NoneType' object has no attribute 'id'"),
}


@pytest.mark.parametrize(("row", "error"), WRONG_ROWS.values(), ids=WRONG_ROWS)
def test_a_row_that_cannot_be_scheduled_holds_up_no_other(
    place: Place, row: Any, error: str
) -> None:
    good = [Due("a", -5000.0), Due("b", -4000.0)]
    sweep: Sweep = lambda after, _: [[good[0], row, good[1]]] if after is None else []  # noqa: E731
    place.peer.sweeper._waiting._sweep = sweep
    with capture_logs() as logged:
        place.rounds(5)
    assert set(place.peer.queue.scheduled()) == {"a", "b"}
    assert place.peer.sweeper._silent_since is None
    assert {line["event"] for line in logged} == {"row of the sweep skipped"}
    assert len(logged) == 1
    assert error in logged[0]["error"]


def test_a_restored_task_has_the_payload_that_its_record_gives(place: Place) -> None:
    place.records.add(a=-5, soon=5)
    place.records.payloads = {"a": b"\x00tea", "soon": b"coffee"}
    place.round()
    place.clock.move(10)
    assert {task.id: task.payload for task in place.peer.claim()} == {
        "a": b"\x00tea",
        "soon": b"coffee",
    }


def test_first_rounds_and_look_aheads_restore_what_is_due_soon(
    place: Place,
) -> None:
    place.records.add(soon=1.5, later=59, too_far=62)
    place.round(after_seconds=0)
    assert set(place.peer.queue.scheduled()) == {"soon", "later"}
    place.records.add(new=50)
    place.rounds(29)
    assert set(place.peer.queue.scheduled()) == {"soon", "later"}
    place.round()
    assert set(place.peer.queue.scheduled()) == {"soon", "later", "new", "too_far"}


def test_look_aheads_read_what_is_due_soon_others_only_overdue(
    place: Place,
) -> None:
    place.rounds(2)
    assert place.records.asked == [(None, 0.0), (0.0, 60.0), (-WINDOW_SECONDS - 1, 0.0)]


def test_a_page_that_the_claims_are_about_to_take_ends_the_round(place: Place) -> None:
    place.records.add(**dict.fromkeys("abcdef", -5.0))
    place.round()
    place.records.pages_read = 0
    place.round()
    assert place.records.pages_read == 1


def test_what_ends_while_a_backlog_is_read_costs_two_more_pages(place: Place) -> None:
    names = [f"{n:03}" for n in range(200)]
    place.records.add(**dict.fromkeys(names, -5.0))
    place.peer.claims.schedule_many((name, 1, b"") for name in names)
    place.round()
    place.records.pages_read = 0

    def one_ends(_script: str) -> None:
        if place.records.pages_read:
            place.peer.queue.before = lambda _: None
            [task] = place.peer.claim(1)
            ack(place.peer.claims, [task])
            del place.records.waiting[task.id]

    place.peer.queue.before = one_ends
    place.round()
    assert place.records.pages_read == 3
    assert place.peer.counts == {}


def test_claims_are_woken_for_overdue_tasks_after_a_lost_wake(
    place: Place,
) -> None:
    place.round()
    assert not place.peer.alarm.is_set()
    place.records.add(a=-5)
    for _restored_then_due in range(2):
        place.round()
        assert place.peer.alarm.is_set()
        place.peer.alarm.clear()
    place.peer.claim()
    place.round()
    assert not place.peer.alarm.is_set()


def test_nothing_is_restored_while_the_queue_is_paused(place: Place) -> None:
    place.round()
    place.peer.queue.pause()
    place.records.add(a=-5, b=-4, c=-3, soon=20)
    place.rounds(40)
    assert place.peer.queue.scheduled() == {}
    assert place.records.pages_read <= 2 * 40  # the first page of each kind tells
    place.peer.queue.resume()
    place.round()
    assert set(place.peer.queue.scheduled()) == {"a", "b", "c", "soon"}


@pytest.mark.parametrize("delay", [-5.0, 20.0], ids=["overdue", "due soon"])
def test_a_worker_whose_turn_ends_reads_no_more_pages(place: Place, delay: float) -> None:
    place.records.add(**dict.fromkeys("abcdef", delay))

    def another_sweeps(name: str) -> None:
        if name == "restore" and "a" in place.peer.queue.scheduled():
            ends_at = round(place.clock.now * 1000) + 5000
            queue = place.peer.queue
            queue._redis.hset(queue.keys.control, "sweeper", f"{ends_at} w2")

    place.peer.queue.before = another_sweeps
    place.round()
    assert set(place.peer.queue.scheduled()) == {"a", "b"}
    assert place.records.pages_read == 3 + 2  # then a and b, then c and d


def test_a_round_begins_every_second_however_long_it_takes(place: Place, clock: Clock) -> None:
    takes = iter([0.25, 0.0, 1.5, 0.5])

    def slow(_after: float | None, before: float) -> list[list[Due]]:
        if before == 0:
            clock.move(next(takes))
        return []

    place.peer.sweeper._waiting._sweep = slow
    waits: Wait = Wait(clock)
    waits.after = lambda: waits.set() if len(waits.waits) == 4 else None
    place.peer.sweeper._stopping = waits
    place.peer.sweeper.run()
    assert waits.waits == pytest.approx([0.75, 1.0, 0.0, 0.5])


def test_a_stopping_sweeper_reads_no_more_pages(place: Place) -> None:
    place.records.add(**dict.fromkeys("abcdef", -5.0))
    place.peer.stopping.set()
    place.round()
    assert place.records.seen == {"a", "b"}
    assert place.handled == []


@pytest.mark.parametrize("renewed", [False, True], ids=["flushed", "lease found lost"])
def test_what_this_process_is_at_work_on_is_not_restored(
    place: Place, clock: Clock, *, renewed: bool
) -> None:
    place.records.add(mine=-5, waits=-4, lost=-3)
    place.round()
    tasks = {task.id: task for task in place.peer.claim()}
    settler, renewer = place.peer.station.settler, place.peer.station.renewer
    with renewer.holding([tasks["mine"], tasks["waits"]], clock.now) as held:
        held.begin([tasks["mine"]])
        place.flush()
        if renewed:
            clock.move(place.flow.lease_seconds / 2)
            renewer.renew(clock.now)
        place.rounds(12)
        assert set(place.peer.queue.scheduled()) == {"lost"} | ({"waits"} if renewed else set())
        assert place.records.asked.count((0.0, 60.0)) == 2, (
            "what is due soon is not read each round"
        )
        results = BatchResult(retries=[(tasks["mine"], Retry(60_000))])
        held.stop_extending(results)
        settler.settle(results)
        place.round()
        assert "mine" in place.peer.queue.scheduled()


# -- whose turn it is ----------------------------------------------------------------------


def test_one_worker_sweeps_and_the_others_read_no_records(place: Place) -> None:
    follower = place.join("w2")
    place.rounds(60)
    assert len(place.records.asked) == 60 + 2  # with two look-aheads, all by the first
    turn_seconds = EXTEND_AFTER * place.flow.lease_seconds
    assert follower.restores() <= 60 / turn_seconds + 1
    assert place.peer.restores() <= 60 / turn_seconds + 1


def test_when_a_worker_dies_another_sweeps_after_its_term(place: Place) -> None:
    follower = place.join("w2")
    place.rounds(3)
    place.peers = [follower]
    place.records.add(lost=-5)
    place.rounds(5)
    assert follower.counts == {}
    place.rounds(5)
    assert follower.counts == {"restored": 1}


@pytest.mark.parametrize("what", [Unavailable("no answer"), KeyError("column"), "needs"])
def test_a_worker_that_cannot_sweep_lets_another_sweep(clock: Clock, what: Exception | str) -> None:
    place = Place(clock)
    first, second = place.peer, place.join("w2")
    place.rounds(3)
    if isinstance(what, str):
        first.station.gate._up = False
    else:  # only this worker cannot read them

        def unreadable(_after: float | None, _before: float) -> list[list[Due]]:
            raise what

        first.sweeper._waiting._sweep = unreadable
    place.records.add(lost=-5)
    place.rounds(10)
    assert second.counts == {"restored": 1}
    first.restores()
    place.rounds(30)
    assert first.restores() == 0  # a turn that it cannot use is not asked for
    assert first.counts == {}


def test_a_former_sweeper_asks_no_more_often_than_others(place: Place) -> None:
    first, second = place.peer, place.join("w2")
    _bury(place, dead=-60)
    place.rounds(2)
    assert first.sweeper._any_overdue
    first.queue._redis.hdel(first.queue.keys.control, "sweeper")
    second.sweeper._ask_at = 0.0
    place.peers = [second, first]
    place.rounds(2)
    first.restores()
    place.rounds(30)
    assert first.restores() <= 4


# -- clocks --------------------------------------------------------------------------------


def test_without_redis_not_due_is_asked_again_by_the_records(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-1)
    place.outcomes = {"a": NotDue(600_000)}
    place.rounds(3)
    assert place.handled == ["a", "a", "a"]
    assert {told.delay_ms for told in place.peer.heard.of(events.Retried)} == {600_000}


# -- what rests ----------------------------------------------------------------------------


def _bury(place: Place, **delays: float) -> None:
    """Dead letters with their records."""
    place.records.add(**delays)
    place.peer.claims.schedule_many((name, 1, b"") for name in delays)
    tasks = place.peer.claims.claim(2000, 10_000).tasks
    dead_letter(place.peer.claims, [(task, "bad", None) for task in tasks])


def test_what_is_overdue_for_long_is_read_by_look_aheads_only(place: Place) -> None:
    place.records.page_size = 50
    for hundred in range(5):
        _bury(place, **{f"{hundred}-{n}": -3600 + hundred + n / 100 for n in range(100)})
    _bury(place, recent=0)
    place.round()
    assert place.records.rows_read == 500 + 1
    place.rounds(29)
    assert place.records.rows_read == pytest.approx(500 + WINDOW_SECONDS, abs=1)
    place.round()
    assert place.records.rows_read == pytest.approx(1000 + WINDOW_SECONDS + 1, abs=1)


def test_a_dead_letter_whose_record_waits_hides_no_lost_task(place: Place) -> None:
    _bury(place, dead=-60)
    place.rounds(2)
    place.records.add(lost=0)
    place.round()
    assert [*place.peer.queue.scheduled()] == ["lost"]


@pytest.mark.parametrize("backlog", [False, True], ids=["a slow round", "a backlog"])
def test_what_became_due_meanwhile_is_read_after(place: Place, *, backlog: bool) -> None:
    place.records.page_size = 1
    place.round()
    if backlog:
        place.peer.claims.schedule("first", 1)
        place.records.add(first=0)
    place.records.add(lost=1)
    place.round(after_seconds=WINDOW_SECONDS + 2)
    if backlog:
        assert "lost" not in place.peer.queue.scheduled()
        ack(place.peer.claims, place.peer.claim())
        del place.records.waiting["first"]
        place.round()
    assert [*place.peer.queue.scheduled()] == ["lost"]


@pytest.mark.parametrize("loss", ["flush", "outage"])
def test_all_is_read_again_after_redis_may_have_lost_something(place: Place, loss: str) -> None:
    _bury(place, a=-60, b=-59, c=-58)
    place.rounds(2)
    if loss == "flush":
        place.flush()
        place.round()
    else:
        place.redis_goes()
        place.round()
        place.redis_returns()
        place.flush()
        place.round()
    assert set(place.peer.queue.scheduled()) == {"a", "b", "c"}


# -- a silent Redis ------------------------------------------------------------------------


def test_with_redis_silent_what_is_overdue_goes_to_the_handler(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-5, b=-4, c=-1.5, soon=1.5)
    place.round()
    assert place.handled == ["a", "b", "c"]
    assert place.peer.counts == {"handled without Redis": 3}
    place.round()
    assert place.handled == ["a", "b", "c", "soon"]


def test_a_task_that_is_not_due_is_never_handed_to_the_handler(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(due=0, early=1)
    place.peer.sweeper._waiting._sweep = lambda *_: [[Due("due", 0), Due("early", 1)]]
    place.round()
    assert place.handled == ["due"]


def test_without_redis_nothing_is_handled_unless_a_flow_asks(clock: Clock) -> None:
    place = Place(clock, without_redis="wait")
    place.round()
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.rounds(60)
    assert place.handled == []
    place.redis_returns()
    place.round()
    assert set(place.peer.queue.scheduled()) == {"a"}


def test_to_wait_is_the_default() -> None:
    assert Flow(name="a", handler=lambda _: None).without_redis == "wait"


def test_without_redis_a_handler_gets_the_records_payload(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.records.payloads = {"a": b"tea"}
    place.round()
    assert place.tasks == [Task("a", b"tea")]


def test_every_worker_sweeps_while_redis_is_silent(place: Place) -> None:
    for name in ("w2", "w3"):
        place.join(name)
    place.rounds(3)
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.outcomes = {"a": Retry(60_000)}  # each worker knows only what it put off itself
    place.round()
    assert place.handled == ["a", "a", "a"]


def test_a_follower_whose_claims_fail_finds_redis_silent(place: Place) -> None:
    follower = place.join("w2")
    place.rounds(3)
    place.redis_goes()
    place.records.add(a=-5)
    place.peers = [follower]
    place.rounds(3)
    assert place.handled == []  # it is another worker's turn, and nothing seems to be wrong
    with pytest.raises(redis.RedisError):
        follower.station.claim()
    place.rounds(3)
    assert place.handled == ["a"]


def test_a_hiccup_of_redis_hands_out_nothing(place: Place) -> None:
    place.rounds(2)
    place.records.add(a=-5)
    place.redis_goes()
    place.round()
    place.round(after_seconds=SILENCE_SECONDS - 0.01)
    assert place.handled == []
    place.redis_returns()
    place.round(after_seconds=0.005)
    assert place.handled == []
    assert set(place.peer.queue.scheduled()) == {"a"}
    place.redis_goes()
    place.round()  # the silence begins anew
    assert place.handled == []
    place.round(after_seconds=SILENCE_SECONDS + 0.01)
    assert place.handled == ["a"]


def test_redis_is_asked_often_at_first_and_then_once_a_round(place: Place, clock: Clock) -> None:
    ends_at = clock.now + 20
    stopping = Wait(clock, after=lambda: stopping.set() if clock.now > ends_at else None)
    place.peer.sweeper._stopping = stopping
    place.redis_goes()
    place.peer.sweeper.run()
    hiccup = [wait for wait in stopping.waits if wait < 0.1]
    assert len(hiccup) == pytest.approx(SILENCE_SECONDS / 0.05, abs=2)
    assert stopping.waits[len(hiccup) :] == pytest.approx([1.0] * 19)


@pytest.mark.parametrize(
    "error",
    [redis.ConnectionError, redis.TimeoutError, redis.ResponseError, redis.ReadOnlyError],
)
def test_any_refusal_of_redis_leads_to_the_handler(place: Place, error: type[Any]) -> None:
    place.round()
    place.peer.queue.before = Refusing(error("refused"), "restore")
    place.records.add(a=-5)
    place.rounds(4)
    assert place.handled == ["a"]


def test_the_claims_do_the_work_again_once_redis_is_back(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.round()
    place.redis_returns()
    place.records.add(b=-5, c=-0.5, soon=20)
    place.round()
    assert place.handled == ["a"]
    assert set(place.peer.queue.scheduled()) == {"b", "c", "soon"}


def test_a_silent_redis_is_logged_once_until_it_is_back(place: Place) -> None:
    with capture_logs() as logged:
        place.redis_goes()
        place.rounds(10)
        place.redis_returns()
        place.rounds(10)
        place.redis_goes()
        place.rounds(10)
    assert [line["event"] for line in logged] == ["sweep without Redis"] * 2


def test_without_redis_a_paused_queue_is_not_handled(place: Place) -> None:
    place.round()
    place.peer.queue.pause()
    place.records.add(a=-5)
    place.round()
    place.redis_is_silent_for_long()
    place.rounds(3)
    assert place.handled == []


def test_a_pause_that_only_a_claim_saw_holds_in_silence(
    place: Place,
) -> None:
    place.round()
    place.peer.queue.pause()
    place.peer.claim()
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.round()
    assert place.handled == []
    place.redis_returns()
    place.peer.queue.resume()
    place.peer.claim()
    place.redis_goes()
    place.rounds(3)
    assert place.handled == ["a"]


# -- what is not handed out, or not again --------------------------------------------------


def test_what_this_process_is_at_work_on_is_not_handed_out(place: Place, clock: Clock) -> None:
    place.records.add(mine=-5, lost=-4)
    place.round()
    mine = [task for task in place.peer.claim() if task.id == "mine"]
    place.redis_is_silent_for_long()
    with place.peer.station.renewer.holding(mine, clock.now):
        place.rounds(3)
        assert place.handled == ["lost"]
    place.round()
    assert place.handled == ["lost", "mine"]


def test_what_claims_have_put_off_is_not_handed_out_early(place: Place) -> None:
    place.records.add(retried=-5, failed=-4, again=-3, dead=-2, done=-1)
    place.round()
    tasks = {task.id: task for task in place.peer.claim()}
    place.peer.station.settler.settle(
        BatchResult(
            retries=[(tasks["retried"], Retry(60_000))],
            rescheduled=[(tasks["again"], Reschedule(30_000))],
            failed=[(tasks["failed"], Retry(10_000, counted=True))],
            dead=[(tasks["dead"], DeadLetter("bad"))],
            done=[tasks["done"]],
        )
    )
    place.redis_is_silent_for_long()
    place.outcomes = dict.fromkeys(place.records.waiting, Retry(3_600_000))
    for seconds, handled in [(5, {"done"}), (10, {"failed"}), (20, {"again"}), (30, {"retried"})]:
        place.handled.clear()
        place.rounds(seconds)
        assert set(place.handled) == handled
    place.rounds(600)
    assert "dead" not in place.handled


def test_a_task_that_fails_alone_is_retried_after_its_backoff(clock: Clock) -> None:
    failures: list[int] = []

    def backoff(count: int) -> float:
        failures.append(count)
        return 10 * count

    place = Place(clock, backoff=backoff)
    place.redis_is_silent_for_long()
    place.poison = {"b"}
    place.records.add(a=-5, b=-4, c=-3)
    place.round()
    assert place.handled == ["a", "c"]
    [failure] = place.peer.heard.of(events.Failed)
    assert (failure.task.id, failure.task.attempt, failure.delay_ms) == ("b", 1, 10_000)
    place.rounds(9)
    assert failures == [1]
    place.rounds(1)
    assert failures == [1, 2]
    place.poison = set()
    place.rounds(19)
    assert place.handled == ["a", "c"]
    place.round()
    assert place.handled == ["a", "c", "b"]
    assert place.tasks[-1].attempt == 3


def test_a_retry_of_a_minute_comes_after_a_minute(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-5, b=-4)
    place.outcomes = {"a": Retry(60_000), "b": Reschedule(60_000)}
    place.rounds(59)
    assert place.handled == ["a", "b"]
    assert [(told.task.id, told.delay_ms) for told in place.peer.heard.of(events.Retried)] == [
        ("a", 60_000),
        ("b", 60_000),
    ]
    place.rounds(2)
    assert sorted(place.handled[2:]) == ["a", "b"]


def test_a_task_never_to_be_retried_is_not_while_redis_is_silent(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.outcomes = {"a": DeadLetter("bad")}
    place.rounds(600)
    assert place.handled == ["a"]
    [told] = place.peer.heard.of(events.Failed)
    assert told.task.id == "a"
    place.redis_returns()
    place.round()
    assert [task.id for task in place.peer.claim()] == ["a"]  # who make the dead letter


def test_what_was_put_off_without_redis_is_claimed_after_it(clock: Clock) -> None:
    place = Place(clock, backoff=Delays(600))
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.poison = {"a"}
    place.round()
    place.redis_returns()
    place.round()
    assert set(place.peer.queue.scheduled()) == {"a"}
    place.poison = set()
    place.redis_is_silent_for_long()
    place.round()
    assert place.handled == ["a"]
    assert place.tasks[-1].attempt == 1


def test_each_call_of_a_handler_without_redis_is_told_by_itself(clock: Clock) -> None:
    place = Place(clock)
    object.__setattr__(place.flow, "handler", one_at_a_time(lambda _: clock.move(0.5)))
    place.redis_is_silent_for_long()
    place.records.add(a=-4, b=-3)
    place.round(after_seconds=0)
    told = place.peer.heard.of(events.Handled)
    assert [[task.id for task in event.tasks] for event in told] == [["a"], ["b"]]
    assert [(event.seconds, event.late_ms) for event in told] == [(0.5, 4500), (0.5, 4000)]


# -- what goes wrong -----------------------------------------------------------------------


def test_without_redis_an_outage_takes_the_flow_down_too(
    place: Place,
) -> None:
    place.redis_is_silent_for_long()
    place.down = True
    place.records.add(**dict.fromkeys("abc", -5.0))
    place.records.asked.clear()
    with capture_logs() as logged:
        place.rounds(3)
    assert logged == []  # the records can be read
    assert len(place.records.asked) == 1
    assert [type(event) for event in place.peer.heard] == [events.FlowDown]
    place.down = False
    place.peer.station.gate._up = True  # as its probe does
    assert place.peer.station.gate.down, "until a batch shows that it is over"
    place.round()
    assert place.handled == ["a", "b", "c"]
    assert not place.peer.station.gate.down


def test_unreadable_records_come_before_redis_and_are_logged(place: Place) -> None:
    place.round()
    place.records.add(a=-5)
    place.records.error = Unavailable("no answer")
    with capture_logs() as logged:
        place.rounds(5)
    assert [line["event"] for line in logged] == ["sweep cannot read records"]
    place.peer.restores()
    place.rounds(5)
    assert place.peer.restores() == 0
    place.records.error = None
    place.round()
    assert set(place.peer.queue.scheduled()) == {"a"}


@pytest.mark.parametrize("error", [KeyError("a bug"), asyncio.CancelledError()])
def test_a_failing_sweep_is_logged_with_a_traceback_and_goes_on(
    place: Place, error: BaseException
) -> None:
    place.round()
    place.records.add(a=-5)
    place.records.error = error
    with capture_logs() as logged:
        place.round()
    [line] = logged
    assert line["event"] == "sweep failed"
    assert line["exception"].startswith("Traceback")
    place.records.error = None
    place.round()
    assert set(place.peer.queue.scheduled()) == {"a"}


def test_system_exit_in_a_sweep_ends_its_thread(place: Place) -> None:
    place.records.error = SystemExit("bad luck")
    with pytest.raises(SystemExit, match="bad luck"):
        place.peer.sweeper.run()


def test_a_sweep_that_hangs_is_told_once(place: Place, clock: Clock) -> None:
    sweeper, heard = place.peer.sweeper, place.peer.heard

    def hang() -> None:
        for _ in range(5):
            clock.move(HANGS_SECONDS / 2)
            sweeper.hang_detector.report(clock.now)

    def hang_and_stop(*_: object) -> list[list[Due]]:
        hang()
        place.peer.stopping.set()
        return []

    sweeper._waiting._sweep = hang_and_stop
    sweeper.run()
    hang()  # it is over
    assert heard.of(events.Hangs) == [events.Hangs("swept", "sweep", 1.5 * HANGS_SECONDS)]


def test_a_failure_without_redis_may_say_when_to_try_again(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-5, b=-4)
    place.outcomes = {"a": Retry(30_000, counted=True), "b": Failed("no")}
    place.round()
    delays = {told.task.id: told.delay_ms for told in place.peer.heard.of(events.Failed)}
    assert delays["a"] == 30_000
    assert 500 <= delays["b"] <= 1000
    place.rounds(29)
    assert place.handled.count("a") == 1
    place.rounds(2)
    assert place.handled.count("a") == 2


def test_a_pause_that_ends_without_redis_ends_at_once(place: Place) -> None:
    kept = Mock(find=Mock(return_value=Pause("why", "anna")))
    kept.end = lambda: kept.find.configure_mock(return_value=None)
    watch, queue = place.peer.station.pause, place.peer.claims
    watch.pauses = kept
    pauses.pause(queue, kept, reason="why", by="anna")
    place.peer.claim()
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.round()
    assert place.handled == []
    pauses.resume(queue, kept)
    place.round()
    assert place.handled == ["a"]
    place.redis_returns()
    assert not place.peer.claims.claim(1, 10_000).paused


@pytest.mark.parametrize("why", ["paused", "Redis may be back"])
def test_without_redis_no_more_of_a_page_is_begun_if(clock: Clock, why: str) -> None:
    place, kept = Place(clock), Mock(find=Mock(return_value=None))
    place.peer.station.pause.pauses = kept
    place.records.page_size = 20

    def work(task: Task) -> None:
        place.handled.append(task.id)
        if why == "paused":
            kept.find.return_value = Pause("why", "anna")
        else:
            clock.move(place.flow.sweep_seconds / 2)

    object.__setattr__(place.flow, "handler", one_at_a_time(work))
    place.redis_is_silent_for_long()
    place.records.add(**{f"{n:02}": -60 + n for n in range(20)})
    place.round()
    assert place.handled == ["00", "01"][: 1 if why == "paused" else 2]


def test_what_was_tried_without_redis_follows_the_others(place: Place) -> None:
    place.redis_is_silent_for_long()
    place.records.add(a=-5)
    place.outcomes = {"a": Retry(1)}
    place.round()
    place.records.add(b=-5)
    place.outcomes = {}
    place.handled.clear()
    place.rounds(2)
    assert place.handled == ["b", "a"]
