"""Keeps slow endpoints from taking all threads of a process."""

import threading
import time
from collections import Counter

#: An endpoint is slow if its answers take longer than that on average.
SLOW_SECONDS = 0.5
#: The longest that a slow endpoint's delivery waits for its turn.
MAX_TURN_MS = 60_000


class Turns:
    """Keeps slow endpoints from taking all threads of this process.

    A delivery that must wait gets a turn after those that wait already, so that a backlog is not
    claimed again and again.
    """

    def __init__(self, most: int) -> None:
        """``most`` is how many threads a slow endpoint may have."""
        self._most = most
        self._lock = threading.Lock()
        self._busy: Counter[str] = Counter()
        #: By subscription, how long a message takes on average, in seconds; only of slow ones.
        self._seconds: dict[str, float] = {}
        #: When the next turn is free, on the monotonic clock.
        self._free_at: dict[str, float] = {}

    def begin(self, subscription_id: str, now: float | None = None) -> int:
        """Take a thread and return 0; or return in how many ms to try again."""
        now = time.monotonic() if now is None else now
        with self._lock:
            seconds = self._seconds.get(subscription_id, 0.0)
            if seconds <= SLOW_SECONDS or self._busy[subscription_id] < self._most:
                self._busy[subscription_id] += 1
                return 0
            free_at = max(now, self._free_at.get(subscription_id, 0.0)) + seconds / self._most
            wait = min(MAX_TURN_MS, round(1000 * (free_at - now)))
            self._free_at[subscription_id] = now + wait / 1000
            return max(1, wait)

    def end(self, subscription_id: str, seconds: float) -> None:
        """Return the thread, after ``seconds`` of work."""
        with self._lock:
            self._busy[subscription_id] -= 1
            if not self._busy[subscription_id]:
                del self._busy[subscription_id]
            average = (self._seconds.get(subscription_id, 0.0) + seconds) / 2
            if average > SLOW_SECONDS / 2:
                self._seconds[subscription_id] = average
            else:
                self._seconds.pop(subscription_id, None)
                self._free_at.pop(subscription_id, None)
