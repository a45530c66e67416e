"""What an examination finds: one line each, with what to do next."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    #: It works, but needs attention.
    WARNING = "warning"
    #: Tasks are or will be late, or data is wrong.
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    #: The name of the check, such as ``redis.eviction``. It is stable, so programs can rely on it.
    check: str
    level: Level
    summary: str
    #: What to do next; empty when all is well.
    advice: str = ""
    #: The queue it concerns; empty for Redis itself.
    queue: str = ""


#: Yields findings about the application's own dependencies. It must change nothing and end within seconds.
Checks = Callable[[], Iterable[Finding]]


def ok(check: str, summary: str) -> Finding:
    """A finding that all is well."""
    return Finding(check, Level.OK, summary)


def warning(check: str, summary: str, advice: str) -> Finding:
    """A finding that something works but needs attention."""
    return Finding(check, Level.WARNING, summary, advice)


def failure(check: str, summary: str, advice: str) -> Finding:
    """A finding that something is broken."""
    return Finding(check, Level.FAILURE, summary, advice)


def quantity(count: int, noun: str) -> str:
    """``1 task``, ``2,500 tasks``"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def clock_finding(check: str, name: str, offset_seconds: float) -> Finding:
    """The finding for a clock that is ``offset_seconds`` ahead of this host's."""
    ahead = f"{abs(offset_seconds):.1f} s {'ahead of' if offset_seconds > 0 else 'behind'}"
    if abs(offset_seconds) <= MAX_OFFSET_SECONDS:
        return ok(check, f"{name}'s clock and this host's agree to {abs(offset_seconds):.2f} s")
    return warning(
        check,
        f"{name}'s clock is {ahead} this host's",
        "A constant difference delays no task, but times in logs and in SQL cannot be compared. "
        "Synchronize the clocks (chrony, systemd-timesyncd). If the other clocks are off by the same amount, "
        "this host's clock is the wrong one.",
    )


#: Synchronized clocks differ by milliseconds.
MAX_OFFSET_SECONDS = 1.0
