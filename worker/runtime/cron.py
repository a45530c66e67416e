"""The times of a cron expression in a time zone. Pure: now is an argument."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

#: An expression that matches no time in the fifty years after this day never matches.
SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


class Occurrence(NamedTuple):
    """One run of a recurring task."""

    #: The local time with its offset from UTC, such as ``2026-11-22T02:00:00+01:00``.
    id: str
    #: ms since the epoch.
    due_at_ms: int


class Cron:
    """Computes the next time of a cron expression, by the wall clock of a time zone::

        Cron("0 2 * * *", "Europe/Berlin").after(now_ms).id  # "2026-11-22T02:00:00+01:00"

    Expressions, and what happens when clocks change, are those of `cronsim
    <https://github.com/cuu508/cronsim>`_, which follows Debian's cron:

    - If an expression has five fields and neither the minute nor the hour field begins with ``*``, each time
      occurs once. A time in the skipped hour occurs when the gap ends (02:30 at 03:00, right after 01:59), and
      a time in the repeated hour occurs the first time.
    - Otherwise a time occurs whenever the clock shows it: never in the skipped hour, and twice in the
      repeated one. Where clocks change at midnight (Cairo) or by half an hour (Lord Howe), runs of the day after
      the change may be left out or added, for up to an hour.

    Raises ValueError for an invalid expression, one that never matches, and an unknown time zone.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        try:
            self.zone = ZoneInfo(timezone)
        except (KeyError, ValueError, OSError) as error:  # OSError: the name of a folder
            raise ValueError(
                f"timezone is a name such as Europe/Berlin, not {timezone!r}"
            ) from error
        try:
            next(CronSim(expression, SOME_DAY.astimezone(self.zone)))
        except (CronSimError, ValueError) as error:
            raise ValueError(
                f"cron is an expression such as '0 2 * * *', not {expression!r}: {error}"
            ) from error
        except StopIteration:
            raise ValueError(f"no time matches {expression!r}") from None
        self._expression = " ".join(expression.split())

    def __str__(self) -> str:
        return f"{self._expression} {self.zone.key}"

    def after(self, now_ms: int) -> Occurrence:
        """The first time that is later than ``now_ms``, in ms since the epoch."""
        times = CronSim(self._expression, self.local(now_ms))
        moments_ms = ((time - EPOCH) // MILLISECOND for time in times)
        # In the second of two equal hours cronsim begins with the first.
        due_at_ms = next(moment_ms for moment_ms in moments_ms if moment_ms > now_ms)
        return Occurrence(self.local(due_at_ms).isoformat(), due_at_ms)

    def local(self, moment_ms: int) -> datetime:
        """The time in this time zone at a moment in ms since the epoch."""
        return (EPOCH + moment_ms * MILLISECOND).astimezone(self.zone)
