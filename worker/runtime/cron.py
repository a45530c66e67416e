"""The times of a cron expression in a time zone. Pure: now is an argument."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

#: An expression that matches no time in the fifty years after this day never matches.
SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001  a wall clock's time
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
#: No time zone sets its clock back by more.
MOST_REPEATED = timedelta(hours=3)


class Occurrence(NamedTuple):
    """One run of a recurring task."""

    #: The local time with its offset from UTC, such as ``2026-11-22T02:00:00+01:00``.
    id: str
    #: ms since the epoch.
    due_at_ms: int


class Cron:
    """Computes the next time of a cron expression, by the wall clock of a time zone::

        Cron("0 2 * * *", "Europe/Berlin").after(now_ms).id  # "2026-11-22T02:00:00+01:00"

    An expression has the five fields of cron, or six with seconds in front; `cronsim
    <https://github.com/cuu508/cronsim>`_ lists what they may hold. When clocks change, it does what
    Debian's cron does:

    - If neither the minute nor the hour field begins with ``*``, each time occurs once. A time in the skipped
      hour occurs when that hour would have begun (02:30 at 03:00, right after 01:59), and a time in the
      repeated hour occurs the first time.
    - Otherwise a time occurs whenever the clock shows it: never in the skipped hour, and twice in the
      repeated one.

    Raises ValueError for an invalid expression, one that never matches, and an unknown time zone.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        try:
            next(CronSim(expression, SOME_DAY))
        except (CronSimError, ValueError) as error:
            raise ValueError(
                f"cron is an expression such as '0 2 * * *', not {expression!r}: {error}"
            ) from error
        except StopIteration:
            raise ValueError(f"no time matches {expression!r}") from None
        try:
            self.zone = ZoneInfo(timezone)
        except (KeyError, ValueError, OSError) as error:  # OSError: the name of a folder
            raise ValueError(
                f"timezone is a name such as Europe/Berlin, not {timezone!r}"
            ) from error
        self._expression = " ".join(expression.split())
        minute, hour = expression.split()[-5:-3]
        self._once = not minute.startswith("*") and not hour.startswith("*")

    def __str__(self) -> str:
        return f"{self._expression} {self.zone.key}"

    def after(self, now_ms: int) -> Occurrence:
        """The first time that is later than ``now_ms``, in ms since the epoch."""
        now = EPOCH + now_ms * MILLISECOND
        # When an hour is about to be repeated, the next time may be earlier on the clock than now.
        offsets = [self._offset(now), self._offset(now + MOST_REPEATED)]
        first: datetime | None = None
        for wall in CronSim(self._expression, (now + min(offsets)).replace(tzinfo=None)):
            for moment in self._moments(wall):
                if moment > now and (first is None or moment < first):
                    first = moment
            if first is not None and first <= self._moment(wall):  # later walls mean later moments
                break
        assert first is not None, self  # the constructor found a time
        due_at_ms = (first - EPOCH) // MILLISECOND
        return Occurrence(self.local(due_at_ms).isoformat(), due_at_ms)

    def local(self, moment_ms: int) -> datetime:
        """The time in this time zone at a moment in ms since the epoch."""
        return (EPOCH + moment_ms * MILLISECOND).astimezone(self.zone)

    def _moments(self, wall: datetime) -> Iterator[datetime]:
        """The moments at which a run that is due at ``wall`` by the clock takes place."""
        first, second = self._moment(wall), self._moment(wall, fold=1)
        if first == second:
            yield first
        elif first < second:  # the clock shows it twice
            yield first
            if not self._once:
                yield second
        elif self._once:  # the clock never shows it
            end = wall.replace(second=0)
            while self._moment(end) != self._moment(end, fold=1):
                end += timedelta(minutes=1)
            yield self._moment(end)

    def _moment(self, wall: datetime, fold: int = 0) -> datetime:
        return wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta()
