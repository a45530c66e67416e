"""What the parts of one worker, or of one consumer, have in common."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .. import events
from ..queue.environment import REAL, Clock, Environment


def _start(name: str, run: Callable[[], None]) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()


def repeat(run: Callable[[], float], stopping: threading.Event) -> None:
    """Run rounds, each of which returns in how many seconds the next one begins, until this is set."""
    while not stopping.wait(run()):
        pass


class Suspects:
    """Keeps tasks of different queues apart that two workers may have died of; those of one queue `claim.lua` keeps apart.

    So a task that kills its worker buries none that takes long in another queue of the same worker. One that is claimed
    at the moment of a death counts a delivery, because it is not put back any more; only at each death would that bury it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = Counter[str]()

    @contextmanager
    def running(self, queue: str, deliveries: int) -> Iterator[bool]:
        """Yields whether a task that was delivered so often before may begin."""
        if deliveries < 2:  # noqa: PLR2004  as in claim.lua
            yield True
            return
        with self._lock:
            begins = self._running.total() == self._running[queue]
            self._running[queue] += begins
        try:
            yield begins
        finally:
            with self._lock:
                self._running[queue] -= begins


@dataclass(frozen=True, slots=True)
class Shared:
    """One of these is passed to every part."""

    emit: events.Listener
    environment: Environment = REAL
    #: Set when the worker stops, or the consumer is closed.
    stopping: threading.Event = field(default_factory=threading.Event)
    #: Tasks so far by what became of them.
    counts: Counter[str] = field(default_factory=Counter)
    suspects: Suspects = field(default_factory=Suspects)
    #: Runs a function in a new thread of this name.
    start: Callable[[str, Callable[[], None]], object] = _start

    @property
    def clock(self) -> Clock:
        return self.environment.clock
