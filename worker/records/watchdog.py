"""Closes database connections whose server does not answer in time.

A frozen server cannot end a statement, but its kernel keeps acknowledging packets, so neither the server's
timeouts nor those of TCP ever fire.
"""

import math
import os
import socket
import threading
import time
from typing import Any, Self

#: libpq's transaction status while a statement runs.
ACTIVE = 1


class Watch:
    """One connection, which is watched during the block."""

    def __init__(self, watchdog: "Watchdog", driver: Any, seconds: float) -> None:
        self._watchdog = watchdog
        self.driver = driver
        #: On the monotonic clock.
        self.until = time.monotonic() + seconds
        #: Whether no statement was running when it was hung up: not the server took too long, but its client.
        self.was_idle = False

    def __enter__(self) -> Self:
        if hasattr(self.driver, "fileno"):
            self._watchdog.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.discard(self)

    def hang_up(self) -> None:
        try:
            self.was_idle = transaction_status(self.driver) not in (None, ACTIVE)
            # A closed connection has no socket, and its number may already be another one's.
            with socket.socket(fileno=os.dup(self.driver.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        except Exception:  # noqa: BLE001, S110  each driver has its own error for a closed connection
            pass


def transaction_status(driver: Any) -> int | None:
    """libpq's; None for a driver that does not tell it."""
    status: int | None = getattr(getattr(driver, "info", None), "transaction_status", None)
    return status


class Watchdog:
    """Watches any number of connections with one thread, which sleeps until the next deadline.

    The thread starts with the first connection. Without any, it sleeps until there is one.
    """

    def __init__(self) -> None:
        self._begin()
        # A child process has none of its parent's threads, and a lock that one of them held stays locked.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._watched = set[Watch]()
        self._wakes_at = math.inf
        self._runs = False

    def watching(self, driver: Any, seconds: float) -> Watch:
        """Hang up if the block takes longer. A driver that does not tell its socket is not watched."""
        return Watch(self, driver, seconds)

    def add(self, watch: Watch) -> None:
        with self._changed:
            if not self._runs:
                threading.Thread(target=self._run, name="watchdog", daemon=True).start()
                self._runs = True  # if it could not start, the next connection tries again
            elif watch.until < self._wakes_at:
                self._changed.notify()
            self._watched.add(watch)

    def discard(self, watch: Watch) -> None:
        with self._changed:  # after a hang-up that is under way
            self._watched.discard(watch)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for watch in [*self._watched]:
                    if watch.until <= now:
                        self._watched.remove(watch)
                        watch.hang_up()
                self._wakes_at = min((watch.until for watch in self._watched), default=math.inf)
                ahead = None if self._wakes_at == math.inf else self._wakes_at - now
                self._changed.wait(ahead)
