"""Puts everything that a flow's records list as waiting back into Redis.

A running worker's sweep restores what is due within the next minute, and the rest later. After Redis has lost
its data, this restores everything at once, so that `stats` and a forecast are right again.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ..flow import MAX_SECONDS, Sweep
from ..queue.delay_queue import DelayQueue
from .waiting import MOST_LOST, SLACK_SECONDS, LostTasks, SweepReader


class Progress(NamedTuple):
    """How far a rebuild has come."""

    #: Records read so far.
    read: int = 0
    #: Tasks that Redis had lost and that are scheduled again.
    restored: int = 0
    #: Whether the queue is paused, in which case nothing is restored.
    paused: bool = False


def rebuild(queue: DelayQueue, sweep: Sweep, *, look_only: bool = False) -> Iterator[Progress]:
    """Schedule the tasks that the records list and Redis does not have; with ``look_only``, only count them.

    Rows that cannot be scheduled are logged and skipped. Raises what the sweep raises, and redis.RedisError.
    """
    waiting = SweepReader(queue, sweep)

    def restored_of(lost: LostTasks) -> int:
        if look_only:
            return len(lost.ids)
        still_listed = lost.still_listed(waiting.pages, queue.environment.clock(), to_the_end=True)
        return sum(len(queue.restore(still).lost) for still in still_listed)

    read = restored = 0
    lost = LostTasks()
    for page in waiting.pages(None, MAX_SECONDS):
        found = queue.restore(page.rows, look_only=True)
        if found.paused:
            yield Progress(read, restored, paused=True)
            return
        read += len(page.rows)
        lost.add(page, found.lost)
        if len(lost.ids) >= MOST_LOST:
            restored += restored_of(lost)
            lost = LostTasks(lost.read_until - SLACK_SECONDS)
        yield Progress(read, restored)
    yield Progress(read, restored + restored_of(lost))
