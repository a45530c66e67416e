"""Reads which tasks the application's records list as waiting."""

import reprlib
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ..flow import Due, Sweep
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.formats import checked_due


class Page(NamedTuple):
    """Rows that a sweep yielded, earliest first."""

    rows: list[Due]
    #: Just before the sweep was asked for it, on the monotonic clock, in seconds.
    asked_at: float

    def due_at(self, due: Due) -> float:
        """When one of its rows is due, on the monotonic clock."""
        return self.asked_at + due.delay_ms / 1000


class SweepReader:
    """What a flow's sweep lists, without the rows that cannot be scheduled."""

    def __init__(self, queue: DelayQueue, sweep: Sweep) -> None:
        self._queue = queue.name
        self._clock = queue.environment.clock
        self._sweep = sweep
        self._skipped = Reminder(self._clock)

    def pages(self, after_seconds: float | None, before_seconds: float) -> Iterator[Page]:
        """The tasks that are due within these bounds, page by page. Raises what the sweep raises."""
        pages = iter(self._sweep(after_seconds, before_seconds))
        while True:
            asked_at = self._clock()
            page = next(pages, None)
            if page is None:
                return
            if rows := [*self._checked(page)]:
                yield Page(rows, asked_at)

    def _checked(self, page: Collection[Due]) -> Iterator[Due]:
        for row in page:
            try:
                yield checked_due(row)
            except Exception as error:  # noqa: BLE001  a row may be anything; the others go on
                if self._skipped.is_due():
                    text = reprlib.repr(row)
                    log.error(
                        "row of the sweep skipped", queue=self._queue, row=text, error=str(error)
                    )
