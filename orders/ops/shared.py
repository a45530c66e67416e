"""Reads that all callers share: an open page polls every two seconds, and many may be open."""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Known(NamedTuple, Generic[T]):
    value: T
    until: float
    #: How many changes there had been when it was read.
    changes: int


class Shared(Generic[T]):
    """Caches what ``read`` returns for ``seconds``. While one thread reads again, the others get the old value.

    So a server that hangs blocks one thread, not one for each open page. ``read`` must not raise.
    """

    def __init__(
        self, read: Callable[[], T], seconds: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._read = read
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._known: _Known[T] | None = None
        self._changes = 0

    def get(self) -> T:
        known = self._known
        if known is not None and self._is_fresh(known):
            return known.value
        if not self._lock.acquire(blocking=known is None):
            assert known is not None
            return known.value
        try:
            known = self._known
            if known is None or not self._is_fresh(known):
                changes = self._changes  # before reading: a change made meanwhile may be missed
                value = self._read()
                known = self._known = _Known(value, self._clock() + self._seconds, changes)
            return known.value
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Have the next caller read again, because something was changed."""
        self._changes += 1

    def _is_fresh(self, known: _Known[T]) -> bool:
        return self._clock() < known.until and known.changes == self._changes
