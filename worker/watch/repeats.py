"""Writes a repeating error once, and then at most once a minute with how often it occurred.

Otherwise an outage fills the disk with copies of one line, and nobody finds the others.
"""

import copy
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TextIO

#: How long the repetitions of an error are counted before the count is written.
WINDOW_SECONDS = 60.0
#: How many errors are tracked at a time. Beyond that the oldest is dropped, and its count is written.
MOST_ERRORS = 256
#: Fields that differ between occurrences of the same error.
VARYING = {
    *("id", "ids", "tasks", "order", "delivery", "webhook_id", "request_id", "trace_id", "path"),
    *("attempt", "late_ms", "delay_ms", "seconds", "changes", "dropped", "all", "exception"),
}


@dataclass(slots=True)
class _WrittenError:
    """An error that was written, and its repetitions since."""

    #: When to write the count, on the clock of `Repeats`.
    until: float
    count: int = 0
    #: The latest repetition.
    last: logging.LogRecord | None = None


class Repeats:
    """Decides which log entries are written. One thread at a time uses it.

    ``clock`` returns seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: In the order in which they were written.
        self._known: OrderedDict[Hashable, _WrittenError] = OrderedDict()

    def written(self, record: logging.LogRecord) -> Iterator[logging.LogRecord]:
        """The entries to write now: this one, unless it repeats an error, and counts that are overdue."""
        now = self._clock()
        key = _key(record) if record.levelno >= logging.WARNING else None
        while self._known and (first := next(iter(self._known.values()))).until <= now:
            if key is not None and key == next(iter(self._known)):
                del self._known[key]
                if first.count:
                    record = _counted(record, first.count + 1)
            else:
                yield from self._forget_oldest()
        if key is None:
            yield record
        elif known := self._known.get(key):
            known.count += 1
            known.last = record
        else:
            if len(self._known) >= MOST_ERRORS:
                yield from self._forget_oldest()
            self._known[key] = _WrittenError(now + WINDOW_SECONDS)
            yield record

    def rest(self) -> Iterator[logging.LogRecord]:
        """The counts that have not been written, for when the process ends."""
        while self._known:
            yield from self._forget_oldest()

    def _forget_oldest(self) -> Iterator[logging.LogRecord]:
        _, known = self._known.popitem(last=False)
        if known.last is not None:
            yield _counted(known.last, known.count)


class OnceHandler(logging.StreamHandler[TextIO]):
    """Writes the log entries that `Repeats` lets through."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            for each in self._repeats.written(record):
                super().emit(each)
        except Exception:  # noqa: BLE001  str() of a logged value may raise anything, and logging must not
            self.handleError(record)

    def close(self) -> None:
        """Write the remaining counts: the process ends, or another handler takes over."""
        self.acquire()
        try:
            for each in self._repeats.rest():
                super().emit(each)
        finally:
            self.release()
        super().close()


def _key(record: logging.LogRecord) -> Hashable:
    """Equal for two occurrences of the same error."""
    if not isinstance(record.msg, dict):  # a library's: its text before values are put into it
        kind = record.exc_info[0] if record.exc_info else None
        return record.name, record.levelno, str(record.msg), kind
    fields = {name: str(value) for name, value in record.msg.items() if name not in VARYING}
    message = str(record.msg.get("exception", "")).rpartition("\n")[2]
    return record.name, record.levelno, message, *sorted(fields.items())


def _counted(record: logging.LogRecord, count: int) -> logging.LogRecord:
    """A copy that says how often the error occurred since it was last written."""
    made = copy.copy(record)
    if isinstance(record.msg, dict):
        made.msg = {**record.msg, "repeated": count}
    else:
        times = "once" if count == 1 else f"{count} times"
        made.msg = f"{record.msg} (repeated {times})"
    return made
