"""What an examination found: one line each, with what to do next."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    #: It works, but something should be looked at.
    WARNING = "warning"
    #: Tasks are late, or will be; or data is wrong.
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    #: Stable, for programs: ``redis.eviction``.
    check: str
    level: Level
    summary: str
    #: What to do next; empty when all is well.
    advice: str = ""
    #: Of which queue; empty for Redis itself.
    queue: str = ""


#: Yields what an application knows about the health of what its handler needs. It changes nothing, and is
#: done within seconds.
Checks = Callable[[], Iterable[Finding]]


def ok(check: str, summary: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, summary)


def warning(check: str, summary: str, advice: str) -> Finding:
    """It works, but should be looked at."""
    return Finding(check, Level.WARNING, summary, advice)


def failure(check: str, summary: str, advice: str) -> Finding:
    """Something is broken."""
    return Finding(check, Level.FAILURE, summary, advice)


def quantity(count: int, noun: str) -> str:
    """``1 task``, ``2,500 tasks``"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def clock_finding(check: str, name: str, offset_seconds: float) -> Finding:
    """What to say of a clock that is so many seconds ahead of this host's."""
    ahead = f"{abs(offset_seconds):.1f} s {'ahead of' if offset_seconds > 0 else 'behind'}"
    if abs(offset_seconds) <= MAX_OFFSET_SECONDS:
        return ok(check, f"{name}'s clock and this host's agree to {abs(offset_seconds):.2f} s")
    return warning(
        check,
        f"{name}'s clock is {ahead} this host's",
        "Tasks are on time all the same, but times in logs and in SQL cannot be compared. "
        "Synchronize the clocks (chrony, systemd-timesyncd); if the other clocks are off by as much, "
        "it is this host's that is wrong.",
    )


#: Clocks that are kept in step differ by milliseconds.
MAX_OFFSET_SECONDS = 1.0
