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


class _Ring:
    """Subscriptions that wait: clients take turns, then each client's subscriptions."""

    def __init__(self) -> None:
        self._clients: dict[str, dict[str, None]] = {}

    def add(self, client_id: str, subscription_id: str) -> None:
        self._clients.setdefault(client_id, {})[subscription_id] = None

    def has(self, client_id: str, subscription_id: str) -> bool:
        return subscription_id in self._clients.get(client_id, ())

    def remove(self, client_id: str, subscription_id: str) -> None:
        if self.has(client_id, subscription_id):
            del self._clients[client_id][subscription_id]
            if not self._clients[client_id]:
                del self._clients[client_id]

    def next(self, may: Callable[[str], bool]) -> tuple[str, str] | None:
        """Take the next subscription of the next client that may; the client's others come last."""
        for client_id in self._clients:
            if may(client_id):
                waiting = self._clients.pop(client_id)
                subscription_id = next(iter(waiting))
                del waiting[subscription_id]
                if waiting:
                    self._clients[client_id] = waiting
                return client_id, subscription_id
        return None


class Turns:
    """Divides the threads of a process, of which there are two or more.

    Slow endpoints together get at most half of them. Of these, and of all, some are kept for clients
    that have none: so many messages of one client may begin to hang at once, and others are sent.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self._clock = clock
        self._lock = threading.Condition()
        self._fast, self._slow = _Ring(), _Ring()
        self._busy: list[Turn] = []
        #: How long an answer takes on average, by subscription.
        self._seconds: dict[str, float] = {}

    def add(self, client_id: str, subscription_id: str) -> None:
        """Let a subscription have a turn, after those that wait already."""
        with self._lock:
            ring = self._slow if self._is_slow(subscription_id) else self._fast
            ring.add(client_id, subscription_id)

    def take(self) -> Turn | None:
        """Take a thread for the next turn; None if nobody may have one now."""
        with self._lock:
            slow = [turn for turn in self._busy if self._is_slow(turn.subscription_id)]
            may = self._may(self._threads, self._busy)
            may_be_slow = self._may(self._threads // 2, slow)
            # Slow ones come first if none has a turn, so that others do not shut them out.
            found = None if slow else self._slow.next(may)
            while found is None and (fast := self._fast.next(may)) is not None:
                if self._is_slow(fast[1]):  # since it waits
                    self._slow.add(*fast)
                else:
                    found = fast
            found = found or self._slow.next(lambda one: may(one) and may_be_slow(one))
            if found is None:
                return None
            self._busy.append(Turn(*found, self._clock()))
            return self._busy[-1]

    def end(self, turn: Turn, seconds: float | None = None) -> None:
        """Return the thread; an answer took that long."""
        with self._lock:
            self._busy.remove(turn)
            self._lock.notify_all()
            client_id, name, _ = turn
            if seconds is not None:
                self._seconds[name] = (self._seconds.get(name, seconds) + seconds) / 2
            if self._slow.has(client_id, name) and not self._is_slow(name):
                self._slow.remove(client_id, name)
                self._fast.add(client_id, name)

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
