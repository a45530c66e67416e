"""A circuit breaker: a provider that keeps failing is left alone for a while, then asked once.

Own code, because the small libraries for it (pybreaker, circuitbreaker) go by the wall clock, which
jumps, and do not say when they may be asked again.
"""

import threading
from collections.abc import Callable
from time import monotonic

#: How many failures in a row open it.
MOST_FAILURES = 5
#: How long it stays open, in seconds: twice as long each time, up to the second.
FIRST_SECONDS, MOST_SECONDS = 2.0, 30.0


class Circuit:
    """Closed, until it was told of `MOST_FAILURES` in a row. Any thread may use it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_seconds = 0.0
        #: While it is open, when one caller may try.
        self._try_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._open_seconds > 0

    def wait_seconds(self) -> float:
        """0: call now, and tell how it went. Otherwise how long not to call.

        Of those who ask while it is open, one is let through at a time.
        """
        with self._lock:
            if not self.is_open:
                return 0.0
            left = self._try_at - self._clock()
            if left <= 0:
                self._try_at = self._clock() + self._open_seconds
            return max(0.0, left)

    def succeeded(self) -> None:
        """Close it."""
        with self._lock:
            self._failures, self._open_seconds = 0, 0.0

    def failed(self) -> bool:
        """Count a failure; return whether the circuit is open."""
        with self._lock:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self._open_seconds = min(
                    MOST_SECONDS, 2 * self._open_seconds if self.is_open else FIRST_SECONDS
                )
                self._try_at = self._clock() + self._open_seconds
            return self.is_open
