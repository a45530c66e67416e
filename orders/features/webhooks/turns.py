"""Whose message a process sends next, so that one client's endpoints are nobody else's trouble."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

#: An endpoint is slow if its answers take longer than that on average. One that has not answered yet
#: counts as slow.
SLOW_SECONDS = 0.25


class Turn(NamedTuple):
    """A thread's turn to send one message of a subscription."""

    client_id: str
    subscription_id: str
    #: On the monotonic clock.
    began: float


class Turns:
    """Divides the threads of a process, of which there are two or more.

    Who waits longest is next, and a client waits with a few subscriptions at most, however long their lines are. Slow
    endpoints together get at most half of the threads. Of these, and of all, some are kept for clients that have
    none: so many messages of one client may begin to hang at once, and others are sent.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self._clock = clock
        self._lock = threading.Condition()
        #: Clients and subscriptions that wait, in this order.
        self._waiting: dict[tuple[str, str], None] = {}
        self._busy: list[Turn] = []
        #: How long an answer takes on average, by subscription.
        self._seconds: dict[str, float] = {}

    def add(self, client_id: str, subscription_id: str) -> None:
        """Let a subscription have a turn, after those that wait already."""
        with self._lock:
            self._waiting[client_id, subscription_id] = None

    def take(self) -> Turn | None:
        """Take a thread for the next turn; None if nobody may have one now."""
        with self._lock:
            may = self._may(self._threads, self._busy)
            slow = [turn for turn in self._busy if self._is_slow(turn.subscription_id)]
            may_be_slow = self._may(self._threads // 2, slow)
            for client_id, name in self._waiting:
                if may(client_id) and (may_be_slow(client_id) or not self._is_slow(name)):
                    del self._waiting[client_id, name]
                    self._busy.append(Turn(client_id, name, self._clock()))
                    return self._busy[-1]
            return None

    def end(self, turn: Turn, seconds: float | None = None) -> None:
        """Return the thread; an answer took that long."""
        with self._lock:
            self._busy.remove(turn)
            self._lock.notify_all()
            if seconds is not None:
                name = turn.subscription_id
                self._seconds[name] = (self._seconds.get(name, seconds) + seconds) / 2

    def stop(self, seconds: float) -> None:
        """Give no more turns, and wait until those that were given have ended, for ``seconds`` at most."""
        with self._lock:
            self._threads = 0
            self._lock.wait_for(lambda: not self._busy, seconds)

    def _is_slow(self, subscription_id: str) -> bool:
        """Whether its answers take long, or one of them does now."""
        since = self._clock() - SLOW_SECONDS
        return self._seconds.get(subscription_id, SLOW_SECONDS) >= SLOW_SECONDS or any(
            turn.subscription_id == subscription_id and turn.began < since for turn in self._busy
        )

    @staticmethod
    def _may(threads: int, busy: list[Turn]) -> Callable[[str], bool]:
        """Whether a client may have one more of so many threads: the last quarter is for those that have none."""
        free, having = threads - len(busy), {turn.client_id for turn in busy}
        return lambda client_id: free > (threads // 4 if client_id in having else 0)
