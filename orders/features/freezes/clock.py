"""Whether another clock jumped, as seen from this machine's, which only counts on."""

import time
from typing import NamedTuple

#: A look that took longer does not replace one that was quicker: it says too little about the other clock.
LONGEST_LOOK_MS = 1000.0
#: How far clocks drift apart, at most.
DRIFT = 0.001


def uptime_ms() -> float:
    """This machine's clock, which nobody sets: since it was booted, sleep included."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return 1000 * time.clock_gettime(clock)


class Look(NamedTuple):
    """What another clock said between two moments of this machine's clock; all in ms."""

    told_ms: float
    before_ms: float
    after_ms: float

    @property
    def ahead(self) -> tuple[float, float]:
        """By how much the other clock is ahead: at least, and at most."""
        return self.told_ms - self.after_ms, self.told_ms - self.before_ms


class ClockWatch:
    """Compares each look at a clock with the last one that was accepted. Without a look, nothing is known."""

    def __init__(self, jump_ms: float) -> None:
        """A difference of more than ``jump_ms`` is a jump."""
        self._jump_ms = jump_ms
        self._accepted: Look | None = None

    def accept(self, look: Look | None) -> None:
        """This is what the clock shows from now on."""
        known = self._accepted
        # The first in any case: a busy machine's looks may all be slow, and without one no jump is noticed.
        if look and (known is None or _took(look) <= max(LONGEST_LOOK_MS, _took(known))):
            self._accepted = look

    def jump_ms(self, look: Look | None) -> float:
        """By how much the clock jumped since then: ahead if positive, 0 if it did not."""
        if look is None or self._accepted is None:
            return 0.0
        (least, most), (was_least, was_most) = look.ahead, self._accepted.ahead
        allowed = self._jump_ms + DRIFT * (look.before_ms - self._accepted.after_ms)
        forward, back = least - was_most, was_least - most
        if max(forward, back) <= allowed:
            return 0.0
        return forward if forward > back else -back

    def latest_ms(self, now_ms: float) -> float | None:
        """The latest that the clock can show now, unless it jumped; None before the first look."""
        if self._accepted is None:
            return None
        drift = DRIFT * (now_ms - self._accepted.after_ms)
        return now_ms + self._accepted.ahead[1] + drift


def _took(look: Look) -> float:
    return look.after_ms - look.before_ms
