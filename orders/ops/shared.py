"""Reads once for all who look: an open page asks every two seconds, and there may be many."""

import math
import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """What ``read`` returned, at most ``seconds`` ago; while somebody reads again, the others get what was there.

    So a server that hangs holds one thread, and not one for each open page. ``read`` does not raise.
    """

    def __init__(
        self, read: Callable[[], T], seconds: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[float, T] | None = None
        self._changes = 0

    def get(self) -> T:
        known = self._known
        if known is not None and self._clock() < known[0]:
            return known[1]
        if not self._lock.acquire(blocking=known is None):
            assert known is not None
            return known[1]
        try:
            known = self._known
            if known is None or self._clock() >= known[0]:
                changes = self._changes
                value = self._read()
                # What was read may be older than a change that was made meanwhile.
                until = self._clock() + self._seconds if changes == self._changes else -math.inf
                known = self._known = (until, value)
            return known[1]
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Have the next one read again: something was changed."""
        self._changes += 1
        if (known := self._known) is not None:
            self._known = (-math.inf, known[1])
