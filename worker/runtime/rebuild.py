"""Puts everything that a flow's records list as waiting back into Redis.

A running worker's sweep restores what is due within the next minute, and the rest later. After Redis has lost
its data, this restores everything at once, so that `stats` and a forecast are right again.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..flow import MAX_SECONDS, Due, Sweep
from ..queue.delay_queue import DelayQueue

#: How many lost tasks are gathered before they are looked up again and restored. This limits the memory used.
MOST_LOST = 50_000
#: Between two queries a due time seems to move by as long as a query takes.
SLACK_SECONDS = 10.0


class Progress(NamedTuple):
    """How far a rebuild has come."""

    #: Records read so far.
    read: int = 0
    #: Tasks that Redis had lost and that are scheduled again.
    restored: int = 0
    #: Whether the queue is paused, in which case nothing is restored.
    paused: bool = False


class _Lost:
    """Tasks that were not in Redis when their records were read, and when they are due."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        #: On the monotonic clock, in seconds.
        self._first_at = float("inf")
        self._last_at = 0.0

    def add(self, ids: Sequence[str], rows: Sequence[Due], now: float) -> None:
        if ids:
            self.ids.update(ids)
            self._first_at = min(self._first_at, now + rows[0].delay_ms / 1000)
            self._last_at = now + rows[-1].delay_ms / 1000

    def bounds(self, now: float) -> tuple[float, float]:
        """The interval in which they are due, in seconds from now."""
        first, last = self._first_at - now - SLACK_SECONDS, self._last_at - now + SLACK_SECONDS
        return first, min(last, MAX_SECONDS)


def rebuild(queue: DelayQueue, sweep: Sweep, *, look_only: bool = False) -> Iterator[Progress]:
    """Schedule the tasks that the records list and Redis does not have; with ``look_only``, only count them.

    A task that Redis does not have may have been done after its record was read. So the records are read
    again, and only tasks that are still listed are restored. Raises what the sweep raises, and redis.RedisError.
    """
    read = restored = 0
    lost = _Lost()
    for page in sweep(None, MAX_SECONDS):
        if not page:
            continue
        now = time.monotonic()
        rows = [Due(due.id, float(due.delay_ms), due.payload) for due in page]
        found = queue.restore(rows, look_only=True)
        if found.paused:
            yield Progress(read, restored, paused=True)
            return
        read += len(rows)
        lost.add(found.lost, rows, now)
        if len(lost.ids) >= MOST_LOST:
            restored += len(lost.ids) if look_only else _restore(queue, sweep, lost)
            lost = _Lost()
        yield Progress(read, restored)
    restored += len(lost.ids) if look_only else _restore(queue, sweep, lost)
    yield Progress(read, restored)


def _restore(queue: DelayQueue, sweep: Sweep, lost: _Lost) -> int:
    """Restore the lost tasks that the records still list; return how many."""
    restored, left = 0, lost.ids
    if not left:
        return 0
    for page in sweep(*lost.bounds(time.monotonic())):
        still = [due for due in page if due.id in left]
        left = left.difference(due.id for due in still)
        if still:
            restored += len(queue.restore(still).lost)
        if not left:
            break
    return restored
