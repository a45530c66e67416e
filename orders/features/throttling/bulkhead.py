"""Keeps one slow thing from taking every thread of a process.

The pattern's name is from Nygard, "Release It!".
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Condition
from time import monotonic

from orders.errors import OrderError


class Bulkhead:
    """Lets ``most`` threads at a time into each of any number of compartments.

    The others wait as long as threads keep leaving: a full compartment that no thread has left for
    ``patience_seconds`` is stalled, and turns callers away at once. So callers cannot make more
    than a few threads wait, however many they are, and a compartment that is merely busy refuses
    nobody.
    """

    def __init__(
        self,
        most: int,
        error: type[OrderError],
        *,
        patience_seconds: float = 0.5,
        longest_wait_seconds: float = 2.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._most = most
        self._error = error
        self._patience = patience_seconds
        self._longest = longest_wait_seconds
        self._clock = clock
        self._left = Condition()
        self._waiting = 0
        #: How many are in a compartment that is not empty.
        self._inside: dict[str, int] = {}
        #: When somebody last left it, or the first came.
        self._moved: dict[str, float] = {}

    @contextmanager
    def enter(self, names: Collection[str]) -> Iterator[None]:
        """Be in all of these at once. Raises ``error`` when one of them is stalled."""
        with self._left:
            self._wait(names)
            now = self._clock()
            for name in names:
                self._inside[name] = self._inside.get(name, 0) + 1
                self._moved.setdefault(name, now)
        try:
            yield
        finally:
            with self._left:
                self._leave(names)

    def _wait(self, names: Collection[str]) -> None:
        give_up = self._clock() + self._longest
        while full := [name for name in names if self._inside.get(name, 0) >= self._most]:
            until = min(give_up, *(self._moved[name] + self._patience for name in full))
            if self._clock() >= until:
                raise self._error
            self._waiting += 1
            self._left.wait(until - self._clock())
            self._waiting -= 1

    def _leave(self, names: Collection[str]) -> None:
        now = self._clock()
        for name in names:
            self._inside[name] -= 1
            self._moved[name] = now
            if not self._inside[name]:
                del self._inside[name], self._moved[name]
        if self._waiting:
            self._left.notify_all()
