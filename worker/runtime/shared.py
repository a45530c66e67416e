"""What the parts of one worker, or of one consumer, have in common."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from .. import events
from ..queue.environment import REAL, Clock, Environment


def _start(name: str, run: Callable[[], None]) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()


def repeat(run: Callable[[], float], stopping: threading.Event) -> None:
    """Run rounds, each of which returns in how many seconds the next one begins, until this is set."""
    while not stopping.wait(run()):
        pass


@dataclass(frozen=True, slots=True)
class Shared:
    """One of these is passed to every part."""

    emit: events.Listener
    environment: Environment = REAL
    #: Set when the worker stops, or the consumer is closed.
    stopping: threading.Event = field(default_factory=threading.Event)
    #: Tasks so far by what became of them.
    counts: Counter[str] = field(default_factory=Counter)
    #: Runs a function in a new thread of this name.
    start: Callable[[str, Callable[[], None]], object] = _start

    @property
    def clock(self) -> Clock:
        return self.environment.clock
