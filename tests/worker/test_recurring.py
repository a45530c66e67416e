"""What a recurring flow is, and when its worker seeds."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import fakeredis
import pytest
import redis

from tests.kit.engine import Clock, ClockedQueue, Heard, LaneWait, Refusing, shared_by, station_of
from tests.kit.settling import ack
from worker import (
    DeadLetter,
    Failed,
    Flow,
    Pause,
    Recurring,
    Reschedule,
    Retry,
    Task,
    Unavailable,
    events,
)
from worker.runtime.isolation import BatchResult, handle
from worker.runtime.lane import SLOW_POLL_SECONDS, Lane
from worker.runtime.recurring import Recurrence
from worker.runtime.station import Station

DAY = 86_400
POLL = Recurrence.SLOW_POLL_SECONDS
#: Half past one in the night of 22 November 2026, in Berlin.
HALF_PAST_ONE = 1_795_307_400.0
TONIGHT, TOMORROW = "2026-11-22T02:00:00+01:00", "2026-11-23T02:00:00+01:00"
AT_TWO, AT_THREE = "0 2 * * *", "0 3 * * *"


def report(
    handler: Callable[[Task], Any] = lambda _: None, cron: str = AT_TWO, **settings: Any
) -> Recurring:
    return Recurring("report", cron=cron, timezone="Europe/Berlin", handler=handler, **settings)


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = HALF_PAST_ONE
    return clock


class Redis:
    """A server that several workers share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.server = fakeredis.FakeServer()
        self.queue = self.open()

    def open(self) -> ClockedQueue:
        return ClockedQueue("report", self.clock, self.server)

    def flush(self) -> None:
        self.queue._redis.flushall()

    def station(
        self, flow: Recurring | None = None, emit: events.Listener = lambda _: None
    ) -> Station:
        """A worker's, which has not claimed yet."""
        queue = self.open()
        return station_of(flow or report(), queue, shared=shared_by(queue.environment, emit))

    def ids(self) -> set[str]:
        return {*self.queue.scheduled()}


@pytest.fixture
def server(clock: Clock) -> Redis:
    return Redis(clock)


def calls(station: Station) -> list[str]:
    """Which scripts the station has called since this was last asked."""
    queue: Any = station.queue
    found, queue.calls = queue.calls, []
    return list(found)


def ids(station: Station) -> list[str]:
    return [task.id for task in station.claim().tasks]


# -- the flow ------------------------------------------------------------------------------


def test_it_is_a_flow_with_a_name_and_a_schedule() -> None:
    flow = report(lease_seconds=3, threads=2, max_failures=4)
    assert isinstance(flow, Flow)
    assert (flow.name, flow.one_at_a_time, flow.sweep) == ("report", True, None)
    assert (flow.lease_seconds, flow.threads, flow.max_failures) == (3, 2, 4)
    assert repr(flow) == "Recurring('report', '0 2 * * * Europe/Berlin')"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cron": "0 25 * * *"}, "cron is an expression"),
        ({"cron": "0 0 30 2 *"}, "cron is an expression"),
        ({"timezone": "Europe/Atlantis"}, "timezone is a name such as"),
        ({"name": "a b"}, "flow's name"),
        ({"lease_seconds": 0}, "lease_seconds"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"name": "report", "cron": AT_TWO, "timezone": "UTC"}
    with pytest.raises(ValueError, match=message):
        Recurring(handler=lambda _: None, **{**good, **settings})


@pytest.mark.parametrize("setting", ["sweep", "without_redis", "batch_size"])
def test_what_has_no_meaning_for_it_is_no_setting(setting: str) -> None:
    settings: dict[str, Any] = {setting: None}
    with pytest.raises(TypeError, match=setting):
        report(**settings)


def _outcome(handler: Callable[[Task], Any]) -> BatchResult:
    [results] = handle(report(handler), [Task("a")], lambda _: True)
    return results


def test_the_handler_gets_a_task_and_outcomes_mean_the_same() -> None:
    got: list[Task] = []
    assert _outcome(got.append).done == got == [Task("a")]
    for outcome, place in (
        (Retry(5), "retries"),
        (DeadLetter("x"), "dead"),
        (Failed("x"), "failed"),
    ):
        assert len(getattr(_outcome(_returning(outcome)), place)) == 1
        assert len(getattr(_outcome(_raising(outcome)), place)) == 1
    assert _outcome(_raising(Unavailable("gone"))).outage


def _raising(error: Exception) -> Callable[[Task], None]:
    def handler(_: Task) -> None:
        raise error

    return handler


def _returning(outcome: object) -> Callable[[Task], object]:
    return lambda _: outcome


@pytest.mark.parametrize("how", [_raising, _returning])
def test_reschedule_makes_a_dead_letter(how: Callable[[Exception], Callable[[Task], Any]]) -> None:
    [(task, letter)] = _outcome(how(Reschedule(1000))).dead
    assert task.id == "a"
    assert "the schedule says" in letter.reason


def test_an_extra_run_never_has_the_id_of_a_planned_one() -> None:
    flow = report()
    planned = flow.schedule.after(1_700_000_000_000)
    extra = flow.extra_run(planned.due_at_ms)
    assert extra.due_at_ms == planned.due_at_ms
    assert extra.id == planned.id.replace(":00:00", ":00:00.000", 1)


# -- when it seeds -------------------------------------------------------------------------


def test_the_first_claim_seeds_what_is_next(server: Redis, clock: Clock) -> None:
    station = server.station()
    claim = station.claim()
    assert claim.next_in_ms == 1_800_000
    assert server.queue.scheduled() == {TONIGHT: 1_800_000}
    clock.move(1800)
    [task] = station.claim().tasks
    assert (task.id, task.due_at_ms) == (TONIGHT, round(clock.now * 1000))
    assert server.ids() == {TOMORROW}


def test_the_next_one_is_there_before_the_present_one_runs(server: Redis, clock: Clock) -> None:
    there: list[set[str]] = []
    lane = Lane(shared_by(clock.environment))
    lane.alarm = LaneWait(clock, after=lane._stopping.set)
    flow = report(lambda _: there.append(server.ids()))
    lane.stations = [server.station(flow)]
    lane.stations[0].claim()
    clock.move(1800)
    lane.run()
    assert there == [{TOMORROW}]


def test_tasks_are_released_when_the_next_one_cannot_be_seeded(server: Redis, clock: Clock) -> None:
    heard = Heard()
    station = server.station(emit=heard)
    station.claim()
    clock.move(1800)
    queue: Any = station.queue
    queue.before = Refusing(redis.TimeoutError("silent"), "seed")
    with pytest.raises(redis.TimeoutError):
        station.claim()
    assert server.queue.leased() == {}
    assert server.ids() == {TONIGHT}
    assert station.failing
    assert len(heard.of(events.RedisLost)) == 1
    queue.before = lambda _: None
    [task] = station.claim().tasks
    assert (task.id, task.attempt, task.deliveries) == (TONIGHT, 1, 0)
    assert server.ids() == {TOMORROW}


# -- losses --------------------------------------------------------------------------------


def test_what_redis_lost_before_its_time_is_seeded_again(server: Redis, clock: Clock) -> None:
    heard = Heard()
    station = server.station(emit=heard)
    station.claim()
    server.flush()
    clock.move(60)
    assert station.claim().next_in_ms == 1_740_000
    assert server.ids() == {TONIGHT}
    assert heard == [events.Restored("report", 1)]


def test_what_redis_lost_just_before_its_time_runs_at_its_time(server: Redis, clock: Clock) -> None:
    first, second = server.station(), server.station()
    first.claim(), second.claim()
    clock.move(1799)
    server.flush()
    clock.move(1)
    claim = first.claim()
    assert (claim.tasks, claim.next_in_ms) == ([], 0)
    assert ids(second) == [TONIGHT]
    assert ids(first) == []
    assert server.ids() == {TOMORROW}


def test_whoever_holds_a_run_does_not_seed_it_if_redis_lost_it(server: Redis, clock: Clock) -> None:
    station = server.station()
    station.claim()
    clock.move(1800)
    queue: Any = station.queue
    queue.before = lambda name: server.flush() if name == "seed" else None
    assert ids(station) == [TONIGHT]
    queue.before = lambda _: None
    assert server.ids() == {TOMORROW}


def test_after_a_long_outage_one_run_is_late_others_are_skipped(
    server: Redis, clock: Clock
) -> None:
    station = server.station()
    station.claim()
    clock.move(3 * DAY)
    assert ids(station) == [TONIGHT]
    assert server.ids() == {"2026-11-25T02:00:00+01:00"}


def test_a_pause_seeds_nothing_and_makes_one_run_late(server: Redis, clock: Clock) -> None:
    station = server.station()
    station.claim()
    server.queue.pause()
    for _ in range(3):
        clock.move(DAY)
        assert station.claim().paused
    server.queue.resume()
    found = ids(station) or ids(station)
    assert found == [TONIGHT]
    assert server.ids() == {"2026-11-25T02:00:00+01:00"}


def test_a_pause_outlives_what_redis_loses(server: Redis, clock: Clock) -> None:
    kept = Mock(find=Mock(return_value=Pause("why", "anna")))
    station = server.station(report(pauses=kept))
    for _ in range(2):
        station.pause.round(lambda: None)
        assert station.claim_in(clock.now) is None
        server.flush()
        clock.move(DAY)
    kept.find.return_value = None
    station.pause.round(lambda: None)
    assert station.claim_in(clock.now) is not None


# -- Redis's clock -------------------------------------------------------------------------


def test_no_run_takes_place_twice_when_the_clock_is_set_back(server: Redis, clock: Clock) -> None:
    old = server.station()
    old.claim()
    runs: Counter[str] = Counter()
    for _ in range(3):
        clock.move(DAY)
        tasks = old.claim().tasks
        runs.update(task.id for task in tasks)
        ack(old.queue, tasks)
    clock.move(-2 * DAY)
    new = server.station()
    for _ in range(4 * 24):
        clock.move(3600)
        for station in (old, new):
            tasks = station.claim().tasks
            runs.update(task.id for task in tasks)
            ack(station.queue, tasks)
    assert runs == dict.fromkeys((f"2026-11-{n}T02:00:00+01:00" for n in range(22, 27)), 1)


def test_a_clock_that_was_ahead_for_a_while_skips_nothing(server: Redis, clock: Clock) -> None:
    station = server.station()
    station.claim()
    clock.move(365 * DAY)
    tasks = station.claim().tasks
    assert [task.id for task in tasks] == [TONIGHT]
    ack(station.queue, tasks)
    clock.move(-365 * DAY)
    claim = station.claim()
    assert claim.next_in_ms == 1_800_000, "it wakes when tonight's time comes, which is done"
    clock.move(1800)
    station.claim()
    assert TOMORROW in server.ids()


# -- a new schedule ------------------------------------------------------------------------


def test_a_deploy_moves_the_next_run_and_leaves_no_old_one(server: Redis, clock: Clock) -> None:
    old = server.station()
    old.claim()
    clock.move(60)
    new = server.station(report(cron=AT_THREE))
    new.claim()
    at_three = {"2026-11-22T03:00:00+01:00"}
    assert server.ids() == at_three
    for _ in range(60):  # across the old time
        clock.move(60)
        assert ids(old) == ids(new) == []
        assert server.ids() == at_three


def test_a_deploy_converges_after_a_flush_too(server: Redis, clock: Clock) -> None:
    old, new = server.station(), server.station(report(cron=AT_THREE))
    old.claim()
    clock.move(1)
    new.claim()
    server.flush()
    old.claim()
    assert server.ids() == {TONIGHT}
    clock.move(60)
    new.claim()
    old.claim()
    assert server.ids() == {"2026-11-22T03:00:00+01:00"}


def test_an_old_worker_restores_nothing_of_its_old_schedule(server: Redis, clock: Clock) -> None:
    old, new = server.station(), server.station(report(cron=AT_THREE))
    old.claim()
    clock.move(1)
    new.claim()
    old.claim()
    clock.move(1799)
    server.flush()
    assert ids(old) == ids(old) == []
    new.claim()
    assert server.ids() == {"2026-11-22T03:00:00+01:00"}


@pytest.mark.parametrize("older", [1, None])
def test_a_pod_of_an_older_version_that_starts_late_waits(
    server: Redis, clock: Clock, older: int | None
) -> None:
    new = server.station(report(cron=AT_THREE, version=2))
    new.claim()
    late = server.station(report(version=older))
    for _ in range(60):  # across the old time
        clock.move(60)
        assert ids(late) == ids(new) == []
        assert server.ids() == {"2026-11-22T03:00:00+01:00"}
    clock.move(181)  # the code was rolled back
    assert ids(server.station(report(version=1))) == []
    assert server.ids() == {TOMORROW}


def test_old_workers_take_over_when_a_new_one_came_and_went(server: Redis, clock: Clock) -> None:
    old, new = server.station(), server.station(report(cron=AT_THREE))
    old.claim()
    clock.move(1)
    new.claim()
    clock.move(2 * 3600)
    assert ids(old) == ["2026-11-22T03:00:00+01:00"]
    assert server.ids() == {TOMORROW}


def test_old_workers_wait_three_minutes_for_a_busy_new_one(server: Redis, clock: Clock) -> None:
    old, new = server.station(report(cron="* * * * *")), server.station(report(cron="*/2 * * * *"))
    old.claim()
    clock.move(1)
    new.claim()  # all its threads run something long from now on
    for _ in range(179):
        clock.move(1)
        assert {*ids(old)} <= {"2026-11-22T01:32:00+01:00"}
    assert server.ids() == set()  # the old ones seed nothing
    clock.move(2)
    old.claim()
    assert server.ids() == {"2026-11-22T01:34:00+01:00"}


# -- how often it looks --------------------------------------------------------------------


def _waits(clock: Clock, *stations: Station, count: int = 5) -> list[float]:
    lane = Lane(shared_by(clock.environment))
    waits: list[float] = []

    def note() -> None:
        waits.append(alarm.waits[-1])
        if len(waits) == count:
            lane._stopping.set()

    alarm = LaneWait(clock, after=note)
    lane.alarm = alarm
    lane.stations = [*stations]
    assert lane.next() is None
    return waits


def test_a_recurring_flow_is_looked_at_once_a_minute(server: Redis, clock: Clock) -> None:
    station = server.station()
    assert _waits(clock, station) == [POLL] * 5
    assert calls(station) == ["claim", "seed"] * 5


def test_it_wakes_when_the_time_comes(server: Redis, clock: Clock) -> None:
    clock.now += 1800 - POLL / 2
    assert _waits(clock, server.station(), count=1) == [POLL / 2]


def test_a_pool_is_polled_as_often_as_its_most_demanding_flow(server: Redis, clock: Clock) -> None:
    other = station_of(Flow(name="other", handler=_nothing), ClockedQueue("other", clock))
    assert _waits(clock, server.station(), other) == [SLOW_POLL_SECONDS] * 5


def _nothing(_tasks: Sequence[Task]) -> None:
    pass
