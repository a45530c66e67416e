"""Outages of a flow's dependencies: nothing is claimed until its probe succeeds."""

import threading
from collections.abc import Callable

from .. import events
from ..backoff import Backoff
from ..errors import fatal
from ..flow import Flow
from .hangs import HangDetector
from .shared import Shared

#: How long to wait before each probe.
PROBE = Backoff(base_seconds=0.2, cap_seconds=2.0)


class Gate:
    """Whether a flow may claim: it is up, or it is down and probed until its dependencies answer."""

    def __init__(self, flow: Flow, shared: Shared, on_up: Callable[[], None]) -> None:
        """``on_up`` is called whenever the flow comes up."""
        self._flow = flow
        self._shared = shared
        self._on_up = on_up
        self._lock = threading.Lock()
        self._down_since = shared.clock()
        self._up = False
        #: Outages since a batch was last handled. Each makes the next probe wait longer, and from the second on
        #: only a batch shows that it is over.
        self._outages = 0
        self._reported = False
        self.hang_detector = HangDetector(flow.name, "probe", shared)

    @property
    def up(self) -> bool:
        return self._up

    @property
    def down(self) -> bool:
        """Whether an outage goes on, even while a claim tries whether it does."""
        return self._reported or not self._up

    def check(self) -> None:
        """Probe for the first time, in a new thread. A flow without a probe is up at once."""
        if self._flow.probe is None:
            self._probe(0)
        else:
            self._begin(0)

    def handled(self) -> None:
        """Reset the backoff of the probe, because a batch was handled."""
        self._outages = 0
        self.seems_over()

    def seems_over(self) -> None:
        """Report the end of an outage, if there was one: a claim has found nothing that would tell."""
        if self._reported and self._up:
            self._report_up()

    def take_down(self, error: Exception) -> None:
        """Claim nothing for this flow until its probe succeeds."""
        with self._lock:
            if not self._up:
                return
            self._up = False
            self._outages += 1
            attempt = self._outages
        if not self._reported:
            self._reported, self._down_since = True, self._shared.clock()
            self._shared.emit(events.FlowDown(self._flow.name, error))
        try:
            self._begin(attempt)
        except RuntimeError:  # out of threads: the next outage tries again
            self._up = True
            raise

    def _begin(self, attempt: int) -> None:
        self._shared.start(f"probe {self._flow.name}", lambda: self._probe(attempt))

    def _probe(self, attempt: int) -> None:
        while not (attempt and self._shared.stopping.wait(PROBE(attempt))):
            try:
                if self._flow.probe is not None:
                    with self.hang_detector:
                        self._flow.probe()
            except fatal():
                raise
            except BaseException as error:  # noqa: BLE001  any error means that it is down
                attempt += 1
                if attempt == 1:
                    self._shared.emit(events.FlowDown(self._flow.name, error))
                continue
            self._up = True
            if self._outages <= 1:
                self._report_up()
            self._on_up()
            return

    def _report_up(self) -> None:
        self._reported = False
        seconds = self._shared.clock() - self._down_since
        self._shared.emit(events.FlowUp(self._flow.name, seconds))
