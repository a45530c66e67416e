"""What many pages ask for is read once."""

import math
from threading import Event, Thread

import pytest

from orders.caches import Credentials, SharedRead


class Key:
    valid_ms = math.inf


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the caches."""
    now = [0.0]
    monkeypatch.setattr("orders.caches.monotonic", lambda: now[0])
    return now


def test_what_was_read_is_kept_for_a_while(at: list[float]) -> None:
    reads = iter(range(9))
    shared = SharedRead(lambda: next(reads), 1.0)
    assert [shared.get(), shared.get()] == [0, 0]
    at[0] = 0.999
    assert shared.get() == 0
    at[0] = 1.0
    assert [shared.get(), shared.get()] == [1, 1]


def test_what_was_changed_is_read_again() -> None:
    reads = iter(range(9))
    shared = SharedRead(lambda: next(reads), 1000.0)
    assert shared.get() == 0
    shared.forget()
    assert shared.get() == 1


def test_a_read_during_which_something_changed_is_not_kept() -> None:
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        if reads == 1:
            shared.forget()
        return reads

    shared = SharedRead(read, 1000.0)
    assert [shared.get(), shared.get(), shared.get()] == [1, 2, 2]


def test_a_key_revoked_while_it_is_read_is_not_kept() -> None:
    keys: Credentials[Key] = Credentials(lambda: ())

    def read(_: str) -> Key:
        keys.forget("a")
        return Key()

    assert keys.find("a", read)
    assert keys.get("a", stale=True) is None
    assert keys.find("a", lambda _: Key()) is keys.get("a")


def test_while_a_read_hangs_the_others_get_what_was_there(at: list[float]) -> None:
    hangs, goes_on = Event(), Event()
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        if reads > 1:
            hangs.set()
            goes_on.wait()
        return reads

    shared = SharedRead(read, 1.0)
    assert shared.get() == 1
    at[0] = 1.0
    slow = Thread(target=shared.get)
    slow.start()
    hangs.wait()
    assert [shared.get() for _ in range(10)] == [1] * 10
    goes_on.set()
    slow.join()
    assert (shared.get(), reads) == (2, 2)
