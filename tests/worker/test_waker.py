"""An alarm ends a wait, now or at a time that a message of the wake channel names."""

import threading
from itertools import pairwise

import pytest

from tests.kit.engine import Clock
from worker.queue.environment import REAL
from worker.runtime.waker import Alarm


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(("message", "rings_in"), [(b"", 0), (b"0", 0), (b"1500", 0.0015)])
def test_a_message_says_when_it_rings(clock: Clock, message: bytes, rings_in: float) -> None:
    alarm = Alarm(clock)
    alarm.hear(message)
    clock.move(max(0.0, rings_in - 0.0001))
    assert alarm.is_set() == (rings_in == 0)
    clock.move(0.0002)
    assert alarm.is_set()
    assert alarm.clear()
    assert not alarm.is_set()
    assert not alarm.clear()


def waiting(workers: int, clock: Clock, limit: int = 9) -> list[Alarm]:
    alarms = [Alarm(clock) for _ in range(workers)]
    for place, alarm in enumerate(alarms):
        alarm.turns.place, alarm.turns.workers, alarm.turns.limit = place, workers, limit
    return alarms


@pytest.mark.parametrize(
    ("workers", "limit", "apart_ms"),
    [(1, 9, 0), (2, 9, 1 / 3), (10, 9, 5 / 3), (30, 9, 5), (300, 9, 5), (15, 1, 0.5), (30, 1, 1)],
)
def test_workers_that_wait_for_the_same_come_one_after_the_other(
    clock: Clock, workers: int, limit: int, apart_ms: float
) -> None:
    alarms = waiting(workers, clock, limit)
    for due_in in (0.0, 0.0123, 7.0):
        turns = sorted(alarm.turn_in(due_in) - due_in for alarm in alarms)
        assert 0 <= turns[0] <= apart_ms / 1000 + 1e-6
        steps = [later - sooner for sooner, later in pairwise(turns)]
        assert steps == pytest.approx([apart_ms / 1000] * (workers - 1), abs=1e-6)


def test_turns_are_of_the_servers_clock(clock: Clock) -> None:
    near, far = waiting(2, clock)
    far.turns.place, far.turns.server_ahead = near.turns.place, -1000.0
    there = Alarm(lambda: clock.now + 1000.0)
    there.turns = far.turns
    assert there.turn_in(0.01) == pytest.approx(near.turn_in(0.01), abs=1e-6)


def test_who_finds_others_missing_comes_more_often_until_they_are_back(clock: Clock) -> None:
    [alarm, *_] = waiting(30, clock)

    def longest() -> float:
        return max(alarm.turn_in(ms / 1000) - ms / 1000 for ms in range(300))

    assert longest() > 0.14
    alarm.turns.learn(longest())
    assert longest() == pytest.approx(0.01, rel=0.2)
    alarm.turns.learn(0.009)
    assert longest() == pytest.approx(0.01, rel=0.2)
    for _ in range(30):
        alarm.turns.learn(0.0)
    assert longest() > 0.14


def test_an_alarm_that_is_set_earlier_ends_a_wait_that_has_begun() -> None:
    alarm, woken = Alarm(REAL.clock), threading.Event()

    def wait() -> None:
        alarm.wait(3600)
        woken.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    alarm.set(1800)
    alarm.set(0.01)
    assert woken.wait(60)
    thread.join(60)
