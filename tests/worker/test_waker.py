"""An alarm ends a wait, now or at a time that a message of the wake channel names."""

import threading

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


def test_of_many_that_wait_each_comes_at_a_time_of_its_own(clock: Clock) -> None:
    alarm = Alarm(clock)
    assert alarm.share(lambda: 1.0) == 0
    alarm.others = 29
    assert alarm.share(lambda: 0.5) == pytest.approx(0.0145)


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
