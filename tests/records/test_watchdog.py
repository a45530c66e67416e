"""Connections whose server does not answer in time are closed, by one thread for all of them."""

import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from worker.records.watchdog import Watchdog

#: Longer than any test takes.
FAR = 3600.0


class Line:
    """A driver's connection to a server that says nothing."""

    def __init__(self, stack: ExitStack) -> None:
        self._own, self.server = (stack.enter_context(end) for end in socket.socketpair())
        self.server.settimeout(30)

    def fileno(self) -> int:
        if (number := self._own.fileno()) < 0:
            raise OSError("the connection is closed")
        return number

    def close(self) -> None:
        self._own.close()

    def wait(self) -> None:
        """What a statement does: wait for an answer, or until the line is shut down."""
        self._own.settimeout(30)
        assert self._own.recv(1) == b""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog()


def test_a_server_that_does_not_answer_in_time_is_hung_up_on(
    watchdog: Watchdog, stack: ExitStack
) -> None:
    line = Line(stack)
    with watchdog.watching(line, 0.05):
        line.wait()
    assert line.server.recv(1) == b""


def test_a_shorter_deadline_is_not_kept_waiting_by_a_longer_one(
    watchdog: Watchdog, stack: ExitStack
) -> None:
    patient, short = Line(stack), Line(stack)
    with watchdog.watching(patient, FAR):
        for _ in range(2):
            with watchdog.watching(short, 0.05):
                short.wait()
        patient.server.sendall(b"x")
        assert patient._own.recv(1) == b"x"


def test_an_answer_in_time_ends_the_watch(watchdog: Watchdog, stack: ExitStack) -> None:
    first, second = Line(stack), Line(stack)
    with watchdog.watching(first, 0.05):
        pass
    with watchdog.watching(second, 0.1):
        second.wait()
    first.server.sendall(b"x")
    assert first._own.recv(1) == b"x"


def test_a_connection_that_is_closed_meanwhile_harms_no_other(
    watchdog: Watchdog, stack: ExitStack
) -> None:
    closed, second = Line(stack), Line(stack)
    with watchdog.watching(closed, 0.05), watchdog.watching(second, 0.1):
        closed.close()
        second.wait()


def test_all_connections_share_one_thread(watchdog: Watchdog, stack: ExitStack) -> None:
    before = threading.active_count()
    for line in [Line(stack) for _ in range(10)]:
        stack.enter_context(watchdog.watching(line, FAR))
    assert threading.active_count() == before + 1


def test_a_thread_that_could_not_start_is_started_for_the_next(
    watchdog: Watchdog, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            stack.enter_context(watchdog.watching(Line(stack), FAR))
    line = Line(stack)
    with watchdog.watching(line, 0.05):
        line.wait()


def test_a_driver_that_does_not_tell_its_socket_is_not_watched(watchdog: Watchdog) -> None:
    before = threading.active_count()
    with watchdog.watching(object(), 0.0):
        assert threading.active_count() == before


def _hang_up_in_a_child(watchdog: Watchdog) -> None:
    with ExitStack() as stack:
        line = Line(stack)
        with watchdog.watching(line, 0.05):
            line.wait()


def test_a_child_process_has_a_thread_of_its_own(watchdog: Watchdog, stack: ExitStack) -> None:
    with watchdog.watching(Line(stack), 0.0):
        pass
    child = multiprocessing.get_context("fork").Process(target=_hang_up_in_a_child, args=[watchdog])
    child.start()
    child.join(30)
    assert child.exitcode == 0
