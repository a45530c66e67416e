"""Runs what each flow repeats, such as its sweep, for all flows of a worker in a few threads."""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

#: How many threads are started as soon as they are needed.
FEW = 2
#: How long a round that is due then waits for one of them. If all of them hang, it gets another one.
PATIENCE_SECONDS = 0.02


class Repeated(NamedTuple):
    """Something that is repeated."""

    at: float
    number: int
    #: The name of its thread, while it runs.
    name: str
    #: Runs a round; returns in how many seconds the next one is due, None if it was the last.
    round: Callable[[], float | None]


class Rounds:
    """Runs rounds when they are due. One that hangs delays no other. Times are on the monotonic clock."""

    def __init__(self, start: Callable[[str, Callable[[], None]], object]) -> None:
        """``start(name, function)`` runs a function in a new thread."""
        self._start = start
        self._numbers = itertools.count()
        self._waiting: list[Repeated] = []
        self._running: list[str] = []
        #: How many are repeated still, whether they wait or run.
        self._left = 0
        self._hurried = False
        # Reentrant: a signal's handler may call `hurry`.
        self._changed = threading.Condition(threading.RLock())
        self._taken: queue.SimpleQueue[Repeated | None] = queue.SimpleQueue()
        self._threads, self._idle = 0, threading.Semaphore(0)

    def add(self, name: str, run: Callable[[], float | None]) -> None:
        """Repeat ``run``, the first time at once. Call it before `run`."""
        self._left += 1
        self._put(Repeated(time.monotonic(), next(self._numbers), name, run))

    def hurry(self) -> None:
        """Run every round at once from now on, until each has noticed that the worker is stopping."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def running(self) -> list[str]:
        """The names of those that run now."""
        with self._changed:
            return [*self._running]

    def run(self) -> None:
        """Run rounds until each has had its last one."""
        while (due := self._next()) is not None:
            if self._left == 1:  # there is no other that it could delay
                self._run(due)
                continue
            patience = 0.0 if self._threads < FEW else PATIENCE_SECONDS
            if not self._idle.acquire(timeout=patience):
                self._threads += 1
                self._start("rounds", self._run_taken)
            self._taken.put(due)
        for _ in range(self._threads):
            self._taken.put(None)

    def _next(self) -> Repeated | None:
        with self._changed:
            while self._left:
                due_in = self._waiting[0].at - time.monotonic() if self._waiting else None
                if due_in is not None and (due_in <= 0 or self._hurried):
                    return heapq.heappop(self._waiting)
                self._changed.wait(due_in)
        return None

    def _run_taken(self) -> None:
        while (due := self._taken.get()) is not None:
            self._run(due)
            self._idle.release()

    def _run(self, due: Repeated) -> None:
        threading.current_thread().name = due.name
        pause = None
        with self._changed:
            self._running.append(due.name)
        try:
            pause = due.round()
        finally:
            with self._changed:
                self._running.remove(due.name)
                if pause is None:
                    self._left -= 1
                    self._changed.notify_all()
                else:
                    self._put(due._replace(at=time.monotonic() + pause))

    def _put(self, again: Repeated) -> None:
        with self._changed:
            heapq.heappush(self._waiting, again)
            if self._waiting[0] is again:  # otherwise the wait for the first goes on
                self._changed.notify_all()
