"""Counts the tasks that this worker handles, by how late they were. Its heartbeats report the counts."""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict

from .. import events

#: Upper bounds of lateness, in ms. Whatever is later counts under None.
LATENESS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 60_000, 600_000, 3_600_000),
)


class Tally:
    """A listener that counts the tasks of `events.Handled`, of which one event may have hundreds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By queue: upper bound of lateness -> tasks.
        self._counts: defaultdict[str, Counter[int | None]] = defaultdict(Counter)

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Handled):
            at = bisect_left(LATENESS_MS, event.late_ms)
            bound = LATENESS_MS[at] if at < len(LATENESS_MS) else None
            with self._lock:
                self._counts[event.queue][bound] += len(event.tasks)

    def of(self, queue: str) -> list[tuple[int | None, int]]:
        """Pairs of an upper bound of lateness in ms and how many tasks it holds, since the worker started.

        A batch counts as late as its latest task. Bounds without tasks are left out.
        """
        with self._lock:
            counts = dict(self._counts[queue])
        return [(bound, counts[bound]) for bound in (*LATENESS_MS, None) if bound in counts]
