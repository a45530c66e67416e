"""Slow polls that are left out, because one look at all queues of a worker found nothing in them."""

import threading
from collections.abc import Callable

import pytest
import redis

from tests.unit.engine import Clock, ClockedQueue, LaneWait, Refusing, shared_by, station_of
from tests.unit.test_worker_sweep import Place
from worker import Flow
from worker.runtime.lane import SLOW_POLL_SECONDS, Lane
from worker.runtime.liveness import Watched
from worker.runtime.lookout import Lookout
from worker.runtime.station import LEFT_OUT_SECONDS


class Idle:
    """A lane of one flow that hears no messages, and a lookout, for ``seconds``."""

    def __init__(self, clock: Clock, seconds: float = 300) -> None:
        self.clock, self.began_at = clock, clock.now
        self.ends_at = clock.now + seconds
        self.queue = ClockedQueue("idle", clock)
        self.stopping = threading.Event()
        self.lane = Lane(shared_by(clock.environment, stopping=self.stopping))
        self.lane.alarm = LaneWait(clock, after=self._look)
        self.lane.stations = [station_of(Flow(name="idle", handler=lambda _: None), self.queue)]
        self._lookout = Lookout([Watched(self.lane.stations[0], self.lane, None)])
        self._looks_at = clock.now + 2
        #: What happens at a time, in seconds from the start.
        self.events: list[tuple[float, Callable[[], object]]] = []

    def _look(self) -> None:
        while self.events and self.clock.now >= self.began_at + self.events[0][0]:
            self.events.pop(0)[1]()
        while self.clock.now >= self._looks_at:
            self._looks_at += self._lookout.round()
        if self.clock.now >= self.ends_at:
            self.stopping.set()

    def claims(self) -> int:
        return self.queue.calls.count("claim")


@pytest.fixture
def idle() -> Idle:
    return Idle(Clock())


def test_a_queue_with_nothing_near_is_claimed_from_once_a_minute(idle: Idle) -> None:
    assert idle.lane.next() is None
    assert idle.claims() <= 300 / LEFT_OUT_SECONDS + 1


def test_without_an_answer_no_slow_poll_is_left_out(idle: Idle) -> None:
    idle.queue.before = Refusing(redis.ConnectionError("gone"), "glance")
    assert idle.lane.next() is None
    assert idle.claims() == 300 / SLOW_POLL_SECONDS


@pytest.mark.parametrize("scheduled_after", [11, 14, 22, 28])
@pytest.mark.parametrize("delay_seconds", [0, 3, 7, 12, 100])
def test_what_no_message_told_of_is_found_at_the_usual_pace(
    idle: Idle, scheduled_after: int, delay_seconds: int
) -> None:
    """Exactly when it is due; if that is sooner than a slow poll, with the next one."""
    idle.events = [
        (scheduled_after, lambda: idle.queue.schedule("a", delay_ms=1000 * delay_seconds))
    ]
    batch = idle.lane.next()
    assert batch is not None
    late_ms = batch.now_ms - batch.tasks[0].due_at_ms
    assert 0 <= late_ms <= 1000 * max(0.0, 2 * SLOW_POLL_SECONDS - delay_seconds)
    assert delay_seconds < 12 or late_ms == 0


def test_a_paused_queue_is_claimed_from_at_every_slow_poll(idle: Idle) -> None:
    """A pause that Redis loses is renewed by whoever knew of it a moment ago."""
    idle.events = [(30, idle.queue.pause)]
    assert idle.lane.next() is None
    assert idle.claims() >= 260 / SLOW_POLL_SECONDS


def test_the_lookout_extends_the_turn_of_a_sweep_that_goes_on() -> None:
    place = Place(Clock())
    follower = place.join("w2")
    peer = place.peer
    lane = Lane(shared_by(place.clock.environment))
    lookout = Lookout([Watched(peer.station, lane, peer.sweeper)])
    place.rounds(1)
    peer.restores()
    for _ in range(20):
        lookout.round()
        place.rounds(round(SLOW_POLL_SECONDS))
    assert peer.restores() == 0
    assert len(place.records.asked) == 101 + 4  # the follower has read nothing
    place.records.add(soon=20)
    place.flush()
    lookout.round()
    place.rounds(1)
    assert set(peer.queue.scheduled()) == {"soon"}
    place.records.add(lost=-5)
    place.flush()
    place.peers = [follower]  # the sweep of the first hangs, and its lookout goes on
    for _ in range(11):
        place.rounds(1)
        lookout.round()
    assert follower.counts["restored"] >= 1
