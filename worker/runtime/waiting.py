"""Reads which tasks the application's records list as waiting, and which of them Redis lost.

A task that Redis does not have may have been done or cancelled after its record was read. So the records are
read again, and the task is restored only if they still list it.
"""

import math
import reprlib
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from ..flow import Due, Sweep
from ..log import log
from ..queue.delay_queue import DelayQueue
from ..queue.formats import checked_due

#: Between two queries a due time seems to move by as long as a query takes.
SLACK_SECONDS = 10.0
#: How many lost tasks are gathered before they are looked up again and restored. This limits the memory used.
MOST_LOST = 50_000
#: How many rows that cannot be scheduled are logged, each once.
MOST_LOGGED = 100


class Page(NamedTuple):
    """Rows that a sweep yielded, earliest first. Times are on the monotonic clock, in seconds."""

    rows: list[Due]
    #: Just before the sweep was asked for it.
    asked_at: float
    #: Once the sweep had yielded it.
    read_at: float


#: Reads the tasks that are due within two bounds, in seconds from now. See `Sweep`.
ReadPages = Callable[[float | None, float], Iterator[Page]]


class SweepReader:
    """What a flow's sweep lists, without the rows that cannot be scheduled."""

    def __init__(self, queue: DelayQueue, sweep: Sweep) -> None:
        self._queue = queue.name
        self._clock = queue.environment.clock
        self._sweep = sweep
        #: What was logged of rows that cannot be scheduled.
        self._logged: set[str] = set()

    def pages(self, after_seconds: float | None, before_seconds: float) -> Iterator[Page]:
        """The tasks that are due within these bounds, page by page. Raises what the sweep raises."""
        pages = iter(self._sweep(after_seconds, before_seconds))
        while True:
            asked_at = self._clock()
            page = next(pages, None)
            if page is None:
                return
            read_at = self._clock()
            if rows := [*self._checked(page)]:
                yield Page(rows, asked_at, read_at)

    def _checked(self, page: Collection[Due]) -> Iterator[Due]:
        for row in page:
            try:
                yield checked_due(row)
            except Exception as error:  # noqa: BLE001  a row may be anything; the others go on
                self._log(reprlib.repr(row), error)

    def _log(self, row: str, error: Exception) -> None:
        if row not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(row)
            log.error("row of the sweep skipped", queue=self._queue, row=row, error=str(error))


class LostTasks:
    """Tasks that Redis did not have when their records were read. Times are on the monotonic clock."""

    def __init__(self, since: float | None = None) -> None:
        """The records are read from those that are due after ``since`` on; None: from the first on."""
        self.ids: set[str] = set()
        self._since = since
        #: When the last record is due that was read, and the last of these tasks.
        self.read_until = self._last_at = -math.inf
        #: How many pages were read, and how many of those up to the last that listed one of them.
        self._read = self._pages = 0

    def add(self, page: Page, ids: Collection[str]) -> None:
        """Add those of the next page that was read."""
        self._read += 1
        self.read_until = page.read_at + page.rows[-1].delay_ms / 1000
        if ids:
            self.ids.update(ids)
            self._pages = self._read
            self._last_at = self.read_until

    def still_listed(self, read: ReadPages, now: float) -> Iterator[list[Due]]:
        """Read the records again, and yield those of these tasks that they still list.

        Reads no more pages than the first time: what was done since then is looked for in vain, and after it
        comes all the rest. A task that new records have pushed further back is left out.
        """
        left = set(self.ids)
        if not left:
            return
        after = None if self._since is None else self._since - now
        before = self._last_at - now + SLACK_SECONDS
        for number, page in enumerate(read(after, before), 1):
            still = [due for due in page.rows if due.id in left]
            left.difference_update([due.id for due in still])
            if still:
                yield still
            if not left or number >= self._pages:
                return
