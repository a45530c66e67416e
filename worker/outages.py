"""Outages of what a handler needs: nothing is claimed until the probe says that it can go on."""

import threading
import time
from collections.abc import Callable

from . import events
from .backoff import Backoff
from .flow import Flow

#: How often to ask whether it is back.
PROBE = Backoff(base_seconds=0.2, cap_seconds=2.0)
#: A call of a probe or a sweep that takes longer hangs.
HANGS_SECONDS = 10.0


class Timed:
    """Knows how long a call of somebody else's code has been under way; tells once if it hangs."""

    def __init__(self, queue: str, what: str, emit: events.Listener) -> None:
        self._queue = queue
        self._what = what
        self._emit = emit
        self._began_at: float | None = None
        self._told = False

    def __enter__(self) -> None:
        self._began_at, self._told = time.monotonic(), False

    def __exit__(self, *_: object) -> None:
        self._began_at = None

    def report(self, now: float) -> None:
        """Tell if the call hangs. ``now`` is on the monotonic clock."""
        began_at = self._began_at
        if began_at is not None and now - began_at > HANGS_SECONDS and not self._told:
            self._told = True
            self._emit(events.Hangs(self._queue, self._what, now - began_at))


class Needs:
    """What one flow's handler needs, such as a database: up, or down and probed."""

    def __init__(
        self,
        flow: Flow,
        *,
        emit: events.Listener,
        on_up: Callable[[], None],
        stopping: threading.Event,
        start: Callable[[str, Callable[[], None]], object],
    ) -> None:
        """``start`` runs a function in a thread of that name; ``on_up`` is called when it is up."""
        self._flow = flow
        self._emit = emit
        self._on_up = on_up
        self._stopping = stopping
        self._start = start
        self._lock = threading.Lock()
        self._down_since = time.monotonic()
        self._up = False
        #: Outages since a batch was handled: the longer the row, the longer the next probe waits.
        self._outages = 0
        self.asking = Timed(flow.name, "probe", emit)

    @property
    def up(self) -> bool:
        return self._up

    def check(self) -> None:
        """Ask for the first time, in a thread; up at once if there is nothing to ask."""
        if self._flow.probe is None:
            self._probe(0)
        else:
            self._begin(0)

    def handled(self) -> None:
        """A batch was handled: they are there."""
        self._outages = 0

    def take_down(self, error: Exception) -> None:
        """Claim nothing of this flow until its probe says that it can go on."""
        with self._lock:
            if not self._up:
                return
            self._up = False
            self._down_since = time.monotonic()
            self._outages += 1
        self._emit(events.FlowDown(self._flow.name, error))
        self._begin(self._outages)

    def _begin(self, attempt: int) -> None:
        self._start(f"probe {self._flow.name}", lambda: self._probe(attempt))

    def _probe(self, attempt: int) -> None:
        while not (attempt and self._stopping.wait(PROBE(attempt))):
            try:
                if self._flow.probe is not None:
                    with self.asking:
                        self._flow.probe()
            except Exception as error:  # noqa: BLE001  a probe that fails in any way says no
                attempt += 1
                if attempt == 1:
                    self._emit(events.FlowDown(self._flow.name, error))
                continue
            with self._lock:
                self._up = True
                seconds = time.monotonic() - self._down_since
            self._emit(events.FlowUp(self._flow.name, seconds))
            self._on_up()
            return
