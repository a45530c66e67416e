"""An alarm ends a wait, now or at a time that a message of the wake channel names."""

import threading

import fakeredis
import pytest
import redis

from devtools.processes import wait_until
from tests.unit.engine import Clock
from worker.queue.environment import REAL
from worker.runtime.waker import Alarm, Waker


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize(
    ("claimer", "message", "rings_in"),
    [
        (b"", b"", 0),
        (b"", b"* b 2000000", 0),
        (b"", b" b 2000000", None),
        (b"a", b"", 0),
        (b"a", b"*", None),
        (b"a", b"* b 2000000", None),
        (b"a", b"* b 2000000 a 2025000", 2.025),
        (b"a", b" a 1500", 0.0015),
        (b"a", b" a -3", 0),
    ],
)
def test_a_message_concerns_those_that_it_names(
    clock: Clock, claimer: bytes, message: bytes, rings_in: float | None
) -> None:
    alarm = Alarm(clock)
    alarm.claimer = claimer
    alarm.hear(message)
    assert alarm.is_set() == (rings_in == 0)
    clock.move(max(0.0, (10.0 if rings_in is None else rings_in) - 0.0001))
    assert alarm.is_set() == (rings_in == 0)
    clock.move(0.0002)
    assert alarm.is_set() == (rings_in is not None)
    alarm.clear()
    assert not alarm.is_set()


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


def test_an_alarm_knows_whether_messages_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    client, alarm, stopping = fakeredis.FakeRedis(), Alarm(REAL.clock), threading.Event()
    waker = Waker(client, {"wake": alarm}, stopping)
    thread = threading.Thread(target=waker.run, daemon=True)
    assert not alarm.listens
    thread.start()
    wait_until(lambda: alarm.listens, "the subscription")

    def refuse(_: str) -> None:
        raise redis.exceptions.NoPermissionError("no permission for the channel")

    monkeypatch.setattr(alarm, "hear", refuse)
    monkeypatch.setattr(waker, "_pubsub", lambda: refuse(""))
    client.publish("wake", b"")
    wait_until(lambda: not alarm.listens, "the loss")
    stopping.set()
    thread.join(60)
