"""How a lane waits, what it claims next, and what it does with a batch, without its threads."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from tests.kit.engine import (
    Clock,
    ClockedQueue,
    Heard,
    LaneWait,
    Refusing,
    Wait,
    shared_by,
    station_of,
)
from tests.kit.settling import release
from worker import (
    DelayQueue,
    Failed,
    Flow,
    Handler,
    Outcome,
    Retry,
    Task,
    Unavailable,
    UnsafeServer,
    events,
    one_at_a_time,
)
from worker.queue.environment import Environment
from worker.queue.replies import Claim, Settlement, Verb
from worker.runtime.isolation import BatchResult, LookAgain
from worker.runtime.lane import SLOW_POLL_SECONDS, Batch, Lane
from worker.runtime.station import RECONNECT, ServerCheck, Station

GONE = redis.ConnectionError("gone")


def _claim(*ids: str, next_in_ms: float | None = None) -> Claim:
    return Claim([Task(name) for name in ids], 0, next_in_ms, paused=False)


NOTHING = _claim()


class Scripted(DelayQueue):
    """Answers claims from a list, the last one for ever, and counts them."""

    def __init__(self, name: str, *answers: Claim | redis.RedisError) -> None:
        super().__init__(redis.Redis.from_url("redis://127.0.0.1:1"), name)
        self.answers = list(answers)
        self.claims = 0
        self.limits: list[int] = []
        self.checks = 0

    def claim(self, limit: int, *_: object, **__: object) -> Claim:
        self.claims += 1
        self.limits.append(limit)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, redis.RedisError):
            raise answer
        return answer

    def check_server(self) -> None:
        self.checks += 1


class Line:
    """A lane of stations, with what it waits on and what it tells."""

    def __init__(self, clock: Clock, *stations: tuple[Flow, DelayQueue], waits: int = 1) -> None:
        self.heard = Heard()
        self.stopping = threading.Event()
        shared = shared_by(clock.environment, self.heard, self.stopping)
        self.counts = shared.counts
        self.lane = Lane(shared)
        self.alarm = self.lane.alarm = LaneWait(clock, after=self._count)
        for _, queue in stations:
            queue.environment = clock.environment
        self.lane.stations = [station_of(flow, queue, shared=shared) for flow, queue in stations]
        self._left = waits

    def _count(self) -> None:
        """Stop the worker after the last wait."""
        self._left -= 1
        if self._left == 0:
            self.stopping.set()

    @property
    def station(self) -> Station:
        return self.lane.stations[0]

    def next_ids(self) -> list[str] | None:
        batch = self.lane.next()
        return [task.id for task in batch.tasks] if batch else None

    def work(self) -> None:
        """Claim and handle until there is nothing to do."""
        self.lane.run()


def _scripted(clock: Clock, *queues: Scripted, waits: int = 1) -> Line:
    flows = [Flow(name=queue.name, handler=lambda _: None) for queue in queues]
    return Line(clock, *zip(flows, queues, strict=True), waits=waits)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# -- waiting -------------------------------------------------------------------------------


def test_an_idle_lane_claims_once_per_slow_poll(clock: Clock) -> None:
    queue = Scripted("a", NOTHING)
    line = _scripted(clock, queue, waits=100)
    line.station.gate._reported = True
    assert line.next_ids() is None
    assert not line.station.gate.down, "nothing is left to tell whether an outage goes on"
    assert queue.claims == 100
    assert line.alarm.waits == [SLOW_POLL_SECONDS] * 100


@pytest.mark.parametrize(
    ("next_in_ms", "seconds"), [(0.0, 0.0), (0.25, 0.00025), (1234.5, 1.2345), (60_000, 5.0)]
)
def test_the_wait_is_until_the_next_task_or_a_slow_poll(
    clock: Clock, next_in_ms: float, seconds: float
) -> None:
    line = _scripted(clock, Scripted("a", _claim(next_in_ms=next_in_ms)))
    line.next_ids()
    assert line.alarm.waits == [seconds]
    assert line.heard == [events.Waiting("a", seconds)]


def test_the_wait_is_until_the_pools_first_queue_is_due(clock: Clock) -> None:
    queues = [Scripted("a", _claim(next_in_ms=900)), Scripted("b", _claim(next_in_ms=300))]
    line = _scripted(clock, *queues)
    line.next_ids()
    assert line.alarm.waits == [0.3]


@pytest.mark.parametrize(("rings", "claims", "seconds"), [(False, 1, 0.9), (True, 2, 5.0)])
def test_a_claim_that_brings_tasks_says_when_there_are_more_unless_the_alarm_rings(
    clock: Clock, *, rings: bool, claims: int, seconds: float
) -> None:
    queues = [
        Scripted("a", _claim("x", next_in_ms=900), NOTHING),
        Scripted("b", _claim("y", next_in_ms=60_000), NOTHING),
    ]
    line = _scripted(clock, *queues)
    assert [line.next_ids(), line.next_ids()] == [["x"], ["y"]]
    if rings:
        line.alarm.set()
    assert line.next_ids() is None
    assert [queue.claims for queue in queues] == [claims, claims]
    assert line.alarm.waits == pytest.approx([seconds])


def test_who_has_claimed_some_of_a_backlog_claims_more_at_once_however_many_others_there_are(
    clock: Clock,
) -> None:
    line = _scripted(clock, Scripted("a", *[_claim("x", next_in_ms=0.0)] * 2))
    line.station.place = 1_000_000, 1
    assert [line.next_ids(), line.next_ids()] == [["x"], ["x"]]
    assert line.alarm.waits == []


def test_whose_others_miss_their_turns_comes_more_often_until_they_take_what_is_due(
    clock: Clock,
) -> None:
    late = Claim([Task("x", due_at_ms=0)], 1000, 0.0, paused=False)
    queue = Scripted("a", late)
    queue.memory.server_ahead_ms = 5000.0
    line, longest = _scripted(clock, queue, waits=2), []
    line.station.place = 30, 7
    for answer in (late, _claim(next_in_ms=900)):
        queue.answers = [answer]
        for _ in range(2):
            line.next_ids()
        longest.append(max(line.alarm.turn_in(n / 999) - n / 999 for n in range(999)))
    assert line.alarm.turns.server_ahead == 5
    assert longest == pytest.approx([0.005, 0.005 * 1.1**2], rel=0.1)


def test_a_take_with_a_timeout_returns_nothing_if_there_is_none(clock: Clock) -> None:
    queue = Scripted("a", NOTHING)
    line = _scripted(clock, queue, waits=9)
    assert line.lane.next(until=clock.now + 2 * SLOW_POLL_SECONDS + 1.5) is None
    assert line.alarm.waits == [SLOW_POLL_SECONDS, SLOW_POLL_SECONDS, 1.5]
    assert queue.claims == 4  # once more at the end
    assert not line.stopping.is_set()


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_who_does_not_want_to_wait_at_all_gets_what_is_due(clock: Clock, seconds: float) -> None:
    line = _scripted(clock, Scripted("a", _claim("x"), NOTHING))
    batch = line.lane.next(until=clock.now + seconds)
    assert batch is not None
    assert [task.id for task in batch.tasks] == ["x"]
    assert line.lane.next(until=clock.now + seconds) is None
    assert line.alarm.waits == []


def test_a_take_with_a_timeout_waits_for_no_other_threads_turn(
    clock: Clock,
) -> None:
    queue = Scripted("a", _claim("x"))
    line = _scripted(clock, queue)
    with line.lane._claim_lock:
        assert line.lane.next(until=clock.now) is None
    assert queue.claims == 0
    assert line.lane.next(until=clock.now) is not None


def test_several_threads_wait_as_one(clock: Clock) -> None:
    queue = Scripted("a", NOTHING)
    line = _scripted(clock, queue, waits=50)
    taken: list[bool] = []

    def note() -> None:
        taken.append(line.lane._claim_lock.locked())
        line._count()

    line.alarm._event.after = note
    threads = [threading.Thread(target=line.lane.run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.claims == len(line.alarm.waits) == 50
    assert taken == [True] * 50


def test_an_alarm_ends_one_wait(clock: Clock) -> None:
    queue = Scripted("a", *[NOTHING] * 5, redis.ConnectionError("asked too often"))
    line = _scripted(clock, queue, waits=3)
    line.alarm.set()
    line.next_ids()
    assert len(line.alarm.waits) == queue.claims == 3


def test_an_alarm_during_a_claim_is_not_lost(clock: Clock) -> None:
    queue = Scripted("a", NOTHING)
    line = _scripted(clock, queue)
    claims: list[Claim] = []

    def claim(*_: object, **__: object) -> Claim:
        claims.append(NOTHING)
        if len(claims) == 1:
            line.alarm.set()
        else:
            line.stopping.set()
        return NOTHING

    queue.claim = claim  # type: ignore[method-assign]
    line.next_ids()
    assert line.alarm.waits == []


def test_a_silent_redis_is_asked_again_more_and_more_rarely(clock: Clock) -> None:
    queue = Scripted("a", GONE)
    line = _scripted(clock, queue, waits=10)
    line.next_ids()
    for attempt, wait in enumerate(line.alarm.waits, start=1):
        longest = RECONNECT(attempt, lambda: 1.0)
        assert longest / 2 - 1e-6 <= wait <= longest + 1e-6
    assert queue.claims == 10
    assert line.alarm.waits[-1] >= 0.499


def test_an_alarm_makes_no_lane_ask_a_silent_redis_more_often(clock: Clock) -> None:
    queue = Scripted("a", GONE)
    line = _scripted(clock, queue, waits=100)
    # Woken by what other queues are told, for instance: no time passes.
    line.alarm._event._clock = None
    line.next_ids()
    assert queue.claims == 1


def test_the_waits_begin_anew_once_redis_has_answered(clock: Clock) -> None:
    gone = redis.ResponseError("WRONGTYPE")
    line = _scripted(clock, Scripted("a", gone, gone, gone, NOTHING, gone), waits=5)
    line.next_ids()
    assert line.alarm.waits[3] == SLOW_POLL_SECONDS
    assert line.alarm.waits[4] <= RECONNECT(1, lambda: 1.0)


def test_a_stopping_lane_claims_nothing(clock: Clock) -> None:
    queue = Scripted("a", _claim("x"))
    line = _scripted(clock, queue)
    line.stopping.set()
    line.work()
    assert queue.claims == 0


def test_the_loss_of_redis_and_its_return_are_told_once_each(clock: Clock) -> None:
    line = _scripted(clock, Scripted("a", NOTHING, GONE, GONE, GONE, NOTHING), waits=6)
    line.next_ids()
    told = [event for event in line.heard if not isinstance(event, events.Waiting)]
    away = sum(line.alarm.waits[1:4])
    assert told[0] == events.RedisLost("a", GONE)
    assert isinstance(told[1], events.RedisBack)
    assert told[1].seconds == pytest.approx(away)
    assert len(told) == 2
    assert not line.station.failing


def test_the_sweep_knows_that_redis_failed_the_last_claim(clock: Clock) -> None:
    line = _scripted(clock, Scripted("a", GONE))
    assert not line.station.failing
    line.next_ids()
    assert line.station.failing


# -- what comes next -----------------------------------------------------------------------


def test_the_second_queue_is_asked_only_when_the_first_is_empty(clock: Clock) -> None:
    high = Scripted("high", _claim("h1"), _claim("h2"), NOTHING, _claim("h3"))
    low = Scripted("low", _claim("l1"), NOTHING)
    line = _scripted(clock, high, low)
    assert [line.next_ids() for _ in range(4)] == [["h1"], ["h2"], ["l1"], ["h3"]]
    assert low.claims == 1


def test_a_queue_whose_flow_is_down_is_not_claimed_from(clock: Clock) -> None:
    high, low = Scripted("high", _claim("h")), Scripted("low", _claim("l"))
    line = _scripted(clock, high, low)
    line.station.gate._up = False
    assert line.next_ids() == ["l"]
    assert high.claims == 0


def test_a_lane_whose_flows_are_all_down_asks_redis_nothing(clock: Clock) -> None:
    queue = Scripted("a", _claim("x"))
    line = _scripted(clock, queue, waits=3)
    line.station.gate._up = False
    assert line.next_ids() is None
    assert queue.claims == 0
    assert line.alarm.waits == [SLOW_POLL_SECONDS] * 3


# -- the server ----------------------------------------------------------------------------


def test_the_server_is_checked_once_and_again_after_it_was_away(clock: Clock) -> None:
    queue = Scripted("a", NOTHING, NOTHING, GONE, NOTHING, NOTHING)
    line = _scripted(clock, queue, waits=2)
    line.next_ids()
    assert queue.checks == 1
    line.stopping.clear()
    line._left = 3
    line.next_ids()
    assert (queue.claims, queue.checks) == (5, 2)


def test_an_unsafe_server_is_an_outage_of_redis(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsafe = UnsafeServer("allkeys-lru")
    answers = iter([unsafe, unsafe, unsafe])

    def check(_: object) -> None:
        for error in answers:
            raise error

    monkeypatch.setattr(ClockedQueue, "check_server", check)
    queue = ClockedQueue("a", clock)
    queue.schedule("x", 1)
    line = Line(clock, (Flow(name="a", handler=lambda _: None), queue), waits=9)
    assert line.next_ids() == ["x"]
    # Nothing more is claimed from it once that is known, and what was claimed is released.
    assert queue.calls == ["schedule", "claim", "settle", "claim"]
    assert len(line.alarm.waits) == 3
    [lost] = line.heard.of(events.RedisLost)
    assert lost.error is unsafe
    assert len(line.heard.of(events.RedisBack)) == 1


def test_a_server_not_yet_checkable_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Scripted("a", NOTHING)
    check = ServerCheck(queue)

    def gone(_: object) -> None:
        raise GONE

    with monkeypatch.context() as patched, capture_logs() as logged:
        patched.setattr(Scripted, "check_server", gone)
        check.check()
    assert [line["event"] for line in logged] == ["Redis could not be checked yet"]
    check.check()
    check.check()
    assert queue.checks == 1


# -- a batch -------------------------------------------------------------------------------


class Shop:
    """A queue on a fake Redis, and one flow's lane."""

    def __init__(self, clock: Clock, handler: Handler, **settings: Any) -> None:
        self.clock = clock
        self.queue = ClockedQueue("a", clock)
        self.line = Line(clock, (Flow(name="a", handler=handler, **settings), self.queue))

    def schedule(self, *ids: str, late_seconds: float = 0.0) -> None:
        due_at_ms = (self.clock.now - late_seconds) * 1000
        self.queue.schedule_many((task_id, due_at_ms, b"") for task_id in ids)

    def work(self) -> None:
        self.line.work()


def test_lateness_is_told_on_the_servers_clock(clock: Clock) -> None:
    def slow(_tasks: Sequence[Task]) -> None:
        clock.move(2)

    clock.environment = Environment(clock=lambda: clock.now - 500_000)
    shop = Shop(clock, slow)
    shop.schedule("b", late_seconds=1)
    shop.schedule("a", late_seconds=3)
    shop.work()
    [claimed] = shop.line.heard.of(events.Claimed)
    [handled] = shop.line.heard.of(events.Handled)
    assert (claimed.late_ms, [task.id for task in claimed.tasks]) == (3000, ["a", "b"])
    assert (handled.late_ms, handled.seconds, handled.done) == (5000, 2, 2)
    assert not handled.without_redis


def test_each_part_of_a_batch_is_told_with_its_own_lateness(clock: Clock) -> None:
    def slow(task: Task) -> None:
        assert task
        clock.move(0.1)

    shop = Shop(clock, one_at_a_time(slow))
    shop.line.station.limit = 9
    shop.schedule("new", late_seconds=1)
    shop.schedule("old", late_seconds=60)
    shop.work()
    told = shop.line.heard.of(events.Handled)
    assert [(event.tasks[0].id, event.late_ms) for event in told] == [
        ("old", 60_100),
        ("new", 1200),
    ]
    assert [event.seconds for event in told] == pytest.approx([0.1, 0.1])


def test_redis_reply_time_is_not_part_of_a_handlers_time(
    clock: Clock,
) -> None:
    shop = Shop(clock, lambda _: clock.move(1))
    shop.schedule("a")
    shop.queue.before = lambda name: clock.move(30) if name == "settle" else None
    shop.work()
    [handled] = shop.line.heard.of(events.Handled)
    assert (handled.seconds, handled.late_ms) == (1, 1000)


def test_what_became_of_a_batch_is_told_and_counted(clock: Clock) -> None:
    def handler(tasks: Sequence[Task]) -> dict[str, Outcome]:
        assert len(tasks) == 2
        return {"b": Retry(60_000)}

    shop = Shop(clock, handler)
    shop.schedule("a", "b")
    shop.work()
    assert shop.queue.scheduled() == {"b": 60_000 - 5000}  # the lane has waited since
    assert shop.line.counts == {"done": 1, "retried": 1}
    assert shop.queue.calls == ["schedule", "claim", "settle", "claim"], (
        "what was put back may be due soon"
    )
    [handled] = shop.line.heard.of(events.Handled)
    assert (handled.done, handled.retries, handled.failed) == (1, 1, 0)


def test_an_outage_takes_the_flow_down_and_releases_the_batch(clock: Clock) -> None:
    down = Unavailable("no answer")

    def handler(_tasks: Sequence[Task]) -> None:
        raise down

    shop = Shop(clock, handler, batch_size=100)
    shop.schedule("a", "b")
    shop.work()
    assert shop.line.heard.of(events.FlowDown) == [events.FlowDown("a", down)]
    assert shop.line.heard.of(events.Handled) == []
    assert not shop.line.station.gate.up
    assert set(shop.queue.scheduled()) == {"a", "b"}
    assert shop.line.counts == {"released": 2}
    assert shop.line.station.limit == 50
    assert shop.line.station.gate._outages == 1


def test_a_batch_that_is_handled_ends_a_row_of_outages(clock: Clock) -> None:
    shop = Shop(clock, lambda _: None)
    shop.line.station.gate._outages = 3
    shop.schedule("a")
    shop.work()
    assert shop.line.station.gate._outages == 0


@pytest.mark.parametrize("what", ["others", "alone"])
def test_only_a_task_delivered_too_often_becomes_a_dead_letter(clock: Clock, what: str) -> None:
    handled: list[str] = []
    shop = Shop(clock, lambda tasks: handled.extend(t.id for t in tasks), max_deliveries=3)
    shop.schedule("worn")
    lease_ms = 1000
    for _ in range(3):
        shop.queue.claim(9, lease_ms)
        clock.move(2)
    if what == "others":
        # As where the limit was lowered while it waited: then it comes in a batch.
        [worn] = shop.queue.claim(9, lease_ms).tasks
        release(shop.queue, [worn])
        shop.schedule("sound")
    shop.work()
    assert handled == (["sound"] if what == "others" else [])
    [letter] = shop.queue.dead()
    assert letter.id == "worn"
    assert "3 times and never settled" in letter.story["reason"]
    [died] = shop.line.heard.of(events.Died)
    assert (died.task.id, died.error) == ("worn", None)


def test_a_task_that_was_delivered_one_time_less_is_handled(clock: Clock) -> None:
    handled: list[str] = []
    shop = Shop(clock, lambda tasks: handled.extend(t.id for t in tasks), max_deliveries=3)
    shop.schedule("a")
    for _ in range(2):
        shop.queue.claim(9, 1000)
        clock.move(2)
    shop.work()
    assert handled == ["a"]


def test_who_may_kill_this_worker_does_not_begin_beside_such_a_task_of_another_queue(
    clock: Clock,
) -> None:
    handled: list[int] = []
    shop = Shop(clock, lambda tasks: handled.extend(task.deliveries for task in tasks))
    shop.schedule("a")
    for _ in range(2):
        shop.queue.claim(9, 1000)
        clock.move(2)
    batch, suspects = shop.line.lane.next(), shop.line.station.shared.suspects
    assert batch is not None
    with suspects.running("b", 2):
        shop.line.lane._handle(batch)
    assert handled == []
    assert shop.queue.scheduled().keys() == {"a"}
    shop.line._left = 2
    with suspects.running("a", 2), suspects.running("b", 1):
        shop.work()
    assert handled == [2]


class Joint(Scripted):
    """Counts, too, what is settled alone, and together with a claim."""

    def __init__(self, *answers: Claim) -> None:
        super().__init__("a", *answers)
        self.line.is_open = True
        self.sent: list[str] = []

    def settle(self, settlements: Sequence[Settlement], **_: object) -> None:
        self.sent += [each.verb for each in settlements]

    def settle_and_claim(
        self, done: Sequence[Settlement], limit: int, lease_ms: int, *, ahead_ms: int = 0
    ) -> tuple[Callable[[], None], Callable[[], Claim]]:
        [settlement] = done
        assert [task.id for task in settlement.tasks] == ["x"]
        assert (settlement.verb, lease_ms, ahead_ms) == (Verb.DONE, 10_000, 0)
        self.sent.append("both")
        return lambda: None, lambda: self.claim(limit)


#: What happens while a batch is handled, and how it is settled then.
MEANWHILE: dict[str, tuple[Callable[[Line], object], str]] = {
    "nothing": (lambda _: None, "both"),
    "the worker stops": (lambda line: line.stopping.set(), "done"),
    "the alarm rings": (lambda line: line.alarm.set(), "done"),
    "another thread claims": (lambda line: line.lane._claim_lock.acquire(), "done"),
    "another flow comes first": (
        lambda line: line.lane.stations.insert(
            0, station_of(Flow(name="b", handler=print), Scripted("b", NOTHING))
        ),
        "done",
    ),
    "the flow goes down": (lambda line: setattr(line.station.gate, "_up", False), "done"),
    "the next is due later": (lambda line: setattr(line.station, "more_at", 1e12), "done"),
    "Redis did not take the one before": (
        lambda line: line.station.settler._unconfirmed.append(None),  # type: ignore[arg-type]
        "done",
    ),
    "its thread has no line": (
        lambda line: setattr(line.station.queue.line, "is_open", False),
        "done",
    ),
    "it fails": (lambda line: line.lane.stations[1], "failed"),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_batch_that_is_done_is_settled_with_the_next_claim_unless(
    clock: Clock, what: str
) -> None:
    happens, settled = MEANWHILE[what]
    queue = Joint(_claim("x", next_in_ms=0), _claim("y"))

    def handler(_: Sequence[Task]) -> None:
        happens(line)

    line = Line(clock, (Flow(name="a", handler=handler), queue))
    batch = line.lane.next()
    assert batch is not None
    following = line.lane._handle(batch)
    assert queue.sent == [settled]
    ids = [task.id for task in following.tasks] if following else None
    assert (ids, queue.claims) == ((["y"], 2) if settled == "both" else (None, 1))
    assert line.lane._claim_lock.locked() == (what == "another thread claims")


class Ahead(Shop):
    """The records of a flow decide, so that tasks are claimed ahead: a is due, b in 10 ms, c in 20 and d in 60."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        self.calls: list[tuple[int, str]] = []
        #: What becomes of a task.
        self.outcomes: dict[str, Outcome] = {}
        #: What happens when it is handled.
        self.meanwhile: dict[str, Callable[[], object]] = {}
        settings = {"claims_ahead": True, **settings}
        super().__init__(clock, self._handle, **settings)
        self.line.stopping = self.line.lane._stopping = Wait(clock)
        self.began = clock.now
        for task_id, ms in {"a": 0, "b": 10, "c": 20, "d": 60}.items():
            self.schedule(task_id, late_seconds=-ms / 1000)

    def _handle(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        self.calls.append((self.ms, "".join(task.id for task in tasks)))
        for task in tasks:
            self.meanwhile.get(task.id, lambda: None)()
        return {task.id: self.outcomes[task.id] for task in tasks if task.id in self.outcomes}

    @property
    def ms(self) -> int:
        return round((self.clock.now - self.began) * 1000)

    def one_batch(self) -> None:
        batch = self.line.lane.next()
        assert batch is not None
        self.line.lane._handle(batch)


def test_what_is_claimed_ahead_is_handled_when_it_is_due_and_settled_together(clock: Clock) -> None:
    shop = Ahead(clock)
    shop.one_batch()
    assert shop.calls == [(0, "a"), (10, "b"), (20, "c")]
    assert shop.queue.calls[-2:] == ["claim", "settle"]
    assert [event.late_ms for event in shop.line.heard.of(events.Handled)] == [0, 0, 0]
    assert (shop.queue.scheduled(), shop.queue.leased()) == ({"d": 40}, {})


def test_what_comes_due_while_the_handler_works_is_handled_at_once(clock: Clock) -> None:
    shop = Ahead(clock)
    shop.meanwhile["a"] = lambda: clock.move(0.03)
    shop.one_batch()
    assert shop.calls == [(0, "a"), (30, "bc")]


#: What settles those that are ahead at once, as they may be nobody's soon, and what is called then.
ENDS: dict[str, tuple[Callable[[Ahead], object], str]] = {
    "the worker stops": (lambda shop: shop.line.stopping.set(), "a"),
    "there is an outage": (
        lambda shop: shop.outcomes.update(a=Failed(Unavailable("the database is down"))),
        "a",
    ),
    "Redis does not answer": (
        lambda shop: (
            vars(shop.queue).update(before=Refusing(redis.TimeoutError("silent"), "settle")),
            shop.outcomes.update(a=Retry(1000)),
        ),
        "a",
    ),
    "one is put off": (lambda shop: shop.outcomes.update(a=Retry(1000)), "a"),
}


@pytest.mark.parametrize("what", ENDS)
def test_no_more_is_begun_of_what_is_claimed_ahead_once(clock: Clock, what: str) -> None:
    def down() -> None:
        raise Unavailable("the database is down")

    happens, called = ENDS[what]
    shop = Ahead(clock, probe=down)
    shop.meanwhile["a"] = lambda: happens(shop)
    shop.one_batch()
    assert ("".join(ids for _, ids in shop.calls), shop.ms) == (called, 0)
    left = {*"abc"} - {*called}
    assert left <= {*shop.queue.scheduled(), *shop.queue.leased()}, "one is lost"
    if what != "Redis does not answer":
        assert shop.queue.leased() == {}


def test_nothing_is_claimed_ahead_while_a_call_takes_long(clock: Clock) -> None:
    shop = Ahead(clock)
    shop.meanwhile["c"] = lambda: clock.move(0.03)
    shop.one_batch()
    shop.schedule("e", late_seconds=-0.02)
    clock.move(0.01)
    assert shop.line.next_ids() == ["d"]


def test_a_due_time_of_an_earlier_appointment_is_not_waited_for(clock: Clock) -> None:
    shop = Ahead(clock)
    tasks = [Task(each, due_at_ms=round(1000 * clock.now) + 3_600_000) for each in "ab"]
    station = shop.line.station
    batch = Batch(station, tasks, clock.now, clock.now, round(1000 * clock.now))
    waits = shop.line.lane._as_they_come_due(batch, tasks, BatchResult())
    assert [*waits] == [(tasks, True)]
    assert shop.ms == 0


def test_nothing_is_claimed_ahead_unless_the_flow_says_so(clock: Clock) -> None:
    shop = Ahead(clock, claims_ahead=False)
    shop.one_batch()
    assert shop.calls == [(0, "a")]


def test_what_redis_did_not_take_is_settled_before_a_claim(clock: Clock) -> None:
    shop = Shop(clock, lambda _: None, batch_size=1)
    shop.schedule("a", "b")

    def once(name: str) -> None:
        if name == "settle":
            shop.queue.before = lambda _: None
            raise redis.TimeoutError("silent")

    shop.queue.before = once
    shop.work()
    assert shop.queue.calls == ["schedule", "claim", "settle", "settle", "claim", "settle"]
    assert shop.line.counts == {"done": 2}


def test_with_the_flow_down_what_redis_did_not_take_is_settled_and_a_lost_claim_given_back(
    clock: Clock,
) -> None:
    shop = Shop(clock, lambda _: None, batch_size=1)
    shop.schedule("a")

    def once(name: str) -> None:
        if name == "settle":
            shop.queue.before = lambda _: None
            shop.line.station.gate._up = False
            shop.queue.memory.unanswered = "token"
            raise redis.TimeoutError("silent")

    shop.queue.before = once
    shop.work()
    assert shop.queue.calls == ["schedule", "claim", "settle", "settle", "give_back"]
    assert shop.line.counts == {"done": 1}


def test_nothing_is_claimed_before_redis_takes_what_is_settled(
    clock: Clock,
) -> None:
    shop = Shop(clock, lambda _: None, batch_size=1)
    shop.schedule("a", "b")
    silences = iter(range(2))

    def twice(name: str) -> None:
        if name == "settle" and next(silences, None) is not None:
            raise redis.TimeoutError("silent")

    shop.queue.before = twice
    shop.line._left = 2
    shop.work()
    # A handler that runs for longer than the lease would keep the ack from being sent in time.
    assert shop.queue.calls[:5] == ["schedule", "claim", "settle", "settle", "settle"]


def test_a_waiter_is_woken_to_resend_what_redis_did_not_take(clock: Clock) -> None:
    shop = Shop(clock, lambda _: None)
    shop.schedule("a")
    shop.queue.before = Refusing(redis.TimeoutError("silent"), "settle")
    batch = shop.line.lane.next()
    assert batch is not None
    shop.line.lane._handle(batch)
    assert shop.line.alarm.is_set()


def test_one_at_a_time_each_task_is_settled_before_the_next(clock: Clock) -> None:
    shop = Shop(clock, one_at_a_time(lambda task: seen.append((task.id, set(shop.queue.leased())))))
    seen: list[tuple[str, set[str]]] = []
    shop.line.station.limit = 3
    shop.schedule(*"abc")
    shop.work()
    assert seen == [("a", {"a", "b", "c"}), ("b", {"b", "c"}), ("c", {"c"})]


@pytest.mark.parametrize("why", ["stopping", "unsettled", "lease over", "lease lost"])
def test_one_at_a_time_nothing_more_is_begun_if(clock: Clock, why: str) -> None:
    handled: list[str] = []

    def function(task: Task) -> None:
        handled.append(task.id)
        reasons[why]()

    shop = Shop(clock, one_at_a_time(function), lease_seconds=10)
    reasons: dict[str, Callable[[], object]] = {
        "stopping": shop.line.stopping.set,
        "unsettled": lambda: setattr(shop.queue, "before", Refusing(GONE, "settle")),
        "lease over": lambda: clock.move(11),
        "lease lost": lambda: shop.line.station.renewer.held()[0].drop(["b"]),
    }
    shop.line.station.limit = 3
    shop.schedule(*"abc")
    batch = shop.line.lane.next()
    assert batch is not None
    shop.line.lane._handle(batch)
    assert handled == ["a"]


def test_what_is_settled_is_not_extended_while_redis_is_told(clock: Clock) -> None:
    held: list[int] = []
    shop = Shop(clock, lambda _: None)
    shop.schedule("a")
    shop.queue.before = lambda name: (
        held.append(sum(len(each.tasks()) for each in shop.line.station.renewer.held()))
        if name == "settle"
        else None
    )
    shop.work()
    assert held == [0]
    assert shop.line.station.renewer.held() == []


def test_a_handler_that_exits_ends_the_thread_and_holds_nothing(clock: Clock) -> None:
    def exits(_tasks: Sequence[Task]) -> None:
        raise SystemExit("bad luck")

    shop = Shop(clock, exits)
    shop.schedule("a")
    with pytest.raises(SystemExit, match="bad luck"):
        shop.work()
    assert shop.line.station.renewer.held() == []


# -- how much to claim ---------------------------------------------------------------------


def _station(clock: Clock, handler: Handler, batch_size: int) -> Station:
    flow = Flow(name="a", handler=handler, batch_size=batch_size)
    return station_of(flow, ClockedQueue("a", clock))


def test_one_at_a_time_nothing_is_claimed_that_would_wait_behind_a_slow_task(clock: Clock) -> None:
    station = _station(clock, one_at_a_time(lambda _: None), 10)
    station.adapt(BatchResult(done=[Task("a")]))
    assert station.limit == 1


@pytest.mark.parametrize(
    "trouble",
    [
        BatchResult(untouched=[Task("a")], outage=Unavailable("a statement took too long")),
        BatchResult(retries=[(Task("a"), LookAgain(Task("a"), Unavailable("its row is locked")))]),
    ],
    ids=["an outage", "a locked row"],
)
def test_claims_shrink_after_what_a_batch_may_have_caused(
    clock: Clock, trouble: BatchResult
) -> None:
    station = _station(clock, lambda _: None, 100)
    limits = []
    for _ in range(8):
        station.adapt(trouble)
        limits.append(station.limit)
    assert limits == [50, 25, 12, 6, 3, 1, 1, 1]
    for _ in range(8):
        station.adapt(BatchResult())
        limits.append(station.limit)
    assert limits[8:] == [2, 4, 8, 16, 32, 64, 100, 100]


@pytest.mark.parametrize(
    ("error", "limits"), [(redis.TimeoutError("slow"), [8, 4, 2, 1, 1]), (GONE, [8] * 5)]
)
def test_the_limit_halves_when_a_claim_times_out(
    clock: Clock, error: redis.RedisError, limits: list[int]
) -> None:
    flow = Flow(name="a", handler=lambda _: None, batch_size=8)
    queue = Scripted("a", error)
    assert Line(clock, (flow, queue), waits=5).lane.next() is None
    assert queue.limits == limits


def test_the_limit_and_the_lease_are_what_redis_is_asked_for(clock: Clock) -> None:
    shop = Shop(clock, lambda _: None, lease_seconds=2.5)
    shop.line.station.limit = 2
    shop.schedule(*"abc")
    assert [task.id for task in shop.line.station.claim().tasks] == ["a", "b"]
    assert shop.queue.leased() == {"a": 2500, "b": 2500}
