"""Which workers live and what they hold, as each says of itself."""

import os
import socket

import pytest
import redis

from tests.kit.engine import Clock, ClockedQueue, Heard, Refusing, Wait, shared_by, station_of
from worker import Flow, Task, events
from worker.queue.environment import REAL
from worker.runtime.hangs import HANGS_SECONDS, HangDetector
from worker.runtime.heartbeat import BEAT_SECONDS, LISTED, Heartbeat, new_worker_id


class Patient:
    """A heartbeat for the queues of two flows, until a time."""

    def __init__(self, clock: Clock, *, seconds: float = 0.0) -> None:
        self.clock = clock
        self.queues = [ClockedQueue(name, clock) for name in "ab"]
        self.stations = [
            station_of(Flow(name=queue.name, handler=lambda _: None), queue)
            for queue in self.queues
        ]
        self.heard = Heard()
        self.detector = HangDetector("a", "sweep", shared_by(clock.environment, self.heard))
        self.ends_at = clock.now + seconds
        self.known: list[int] = []
        self.stopping = Wait(clock, after=self._note)
        self.heartbeat = Heartbeat("w1", self.stations, [self.detector], self.stopping)

    def _note(self) -> None:
        self.known.append(len(self.queues[0].workers()))
        if self.clock.now > self.ends_at:
            self.stopping.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_worker_is_known_in_each_queue_until_it_signs_off(clock: Clock) -> None:
    patient = Patient(clock, seconds=4 * BEAT_SECONDS)
    patient.heartbeat.run()
    for queue in patient.queues:
        assert queue.calls == ["beat"] * 5
        assert queue.workers() == []
    assert set(patient.known) == {1}


def test_a_worker_describes_itself_and_what_it_holds(clock: Clock) -> None:
    patient = Patient(clock)
    station = patient.stations[0]
    tasks = [Task(str(n)) for n in range(LISTED + 5)]
    with (
        station.renewer.holding(tasks[:1], clock.now - 3),
        station.renewer.holding(tasks[1:], clock.now - 1),
    ):
        patient.heartbeat._beat(station, clock.now)
    [status] = patient.queues[0].workers()
    assert status.id == "w1"
    details = dict(status.details)
    held = details.pop("held")
    assert len(held) == LISTED
    assert set(held) <= {task.id for task in tasks}
    assert details.pop("started_at").endswith("+00:00")
    assert details == {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "up": True,
        "holds": LISTED + 5,
        "leases": [""],
        "oldest_seconds": 3.0,
    }


def test_a_worker_learns_with_a_heartbeat_what_its_place_among_the_others_is(clock: Clock) -> None:
    patient = Patient(clock)
    for other in ("a2", "b0"):  # by the ends of their ids
        patient.queues[1].beat(other, {})
    patient.heartbeat.run()
    assert [station.place for station in patient.stations] == [(1, 0), (3, 1)]


def test_a_worker_whose_flow_is_down_says_so(clock: Clock) -> None:
    patient = Patient(clock)
    patient.stations[0].gate._up = False
    patient.heartbeat._beat(patient.stations[0], clock.now)
    [status] = patient.queues[0].workers()
    assert (status.details["up"], status.details["holds"]) == (False, 0)
    assert status.details["oldest_seconds"] == 0.0


def test_a_flow_that_goes_down_is_told_at_once(clock: Clock) -> None:
    patient = Patient(clock, seconds=5)
    down_at = clock.now + 2

    def watch(now: float) -> None:
        patient.stations[0].gate._up = now < down_at

    patient.detector.report = watch  # type: ignore[method-assign]  # called every second
    patient.heartbeat.run()
    assert [len(queue.calls) for queue in patient.queues] == [2, 1]


def test_heartbeats_go_on_for_an_unserved_queue_and_all_others(
    clock: Clock,
) -> None:
    patient = Patient(clock, seconds=2 * BEAT_SECONDS)
    patient.queues[0].before = Refusing(redis.ResponseError("WRONGTYPE"))
    patient.heartbeat.run()
    assert [queue.calls for queue in patient.queues] == [["beat"] * 3] * 2


def test_a_worker_that_cannot_sign_off_tries_once_and_ends(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def silent(queue: ClockedQueue, _worker_id: str) -> None:
        asked.append(queue.name)
        raise redis.TimeoutError("silent")

    monkeypatch.setattr(ClockedQueue, "sign_off", silent)
    Patient(clock).heartbeat.run()
    assert asked == ["a"]


def test_calls_that_hang_are_looked_for_each_second(clock: Clock) -> None:
    patient = Patient(clock, seconds=2 * HANGS_SECONDS)
    with patient.detector:
        patient.heartbeat.run()
    assert patient.heard == [events.Hangs("a", "sweep", HANGS_SECONDS + 1)]


def test_each_worker_has_its_own_id_that_says_where_it_runs() -> None:
    ids = {new_worker_id(REAL.token) for _ in range(2)}
    assert len(ids) == 2
    assert all(each.startswith(f"{socket.gethostname()}:{os.getpid()}:") for each in ids)
