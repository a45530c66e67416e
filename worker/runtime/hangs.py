"""Calls that do not return: a flow's probe or sweep, or a claim."""

from .. import events
from .shared import Shared

#: A probe or a sweep that makes no progress for longer is reported as hanging.
HANGS_SECONDS = 10.0


class HangDetector:
    """Times calls, and emits `events.Hangs` once for each that hangs, if it is asked to report."""

    def __init__(self, queue: str, what: str, shared: Shared) -> None:
        self._queue = queue
        self._shared = shared
        #: "probe", "sweep" or "claim".
        self.what = what
        #: When the call began or made progress, and how long it may take from then on; None between calls.
        self._since: tuple[float, float] | None = None
        self._reported = False

    def __enter__(self) -> None:
        self._reported = False
        self.progress()

    def __exit__(self, *_: object) -> None:
        self._since = None

    def progress(self, allowed_seconds: float | None = None) -> None:
        """Note progress. The next may take ``allowed_seconds``, by default `HANGS_SECONDS`."""
        allowed = HANGS_SECONDS if allowed_seconds is None else allowed_seconds
        self._since = self._shared.clock(), allowed

    def hanging(self, now: float) -> float | None:
        """For how many seconds a call has made no progress; None if it does not hang. ``now`` is monotonic."""
        if (since := self._since) is None:
            return None
        began_at, allowed = since
        return now - began_at if now - began_at > allowed else None

    def report(self, now: float) -> None:
        """Emit an event if a call hangs. ``now`` is on the monotonic clock, in seconds."""
        seconds = self.hanging(now)
        if seconds is not None and not self._reported:
            self._reported = True
            self._shared.emit(events.Hangs(self._queue, self.what, seconds))
