"""Samples of a queue for `stats --watch`: its state now, and what workers did while it was watched."""

import dataclasses
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..console import duration
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Stats, WorkerStatus

#: The period that throughput and lateness cover.
WINDOW_SECONDS = 60.0
MINUTES = 30

#: Worker id -> upper bound of lateness in ms -> tasks since the worker started.
Handled = Mapping[str, Counter[float]]


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a queue at one moment, and its recent throughput."""

    queue: str
    stats: Stats
    #: How many tasks become due in each of the next 30 minutes.
    per_minute: Sequence[int]
    workers: Sequence[WorkerStatus]
    #: How many tasks workers handled per second, and upper bounds of their lateness, over the last minute
    #: watched; None: not yet known. Bounds are fixed steps, and a batch counts as late as its latest task.
    per_second: float | None
    p50_ms: float | None
    p99_ms: float | None

    def row(self) -> dict[str, Any]:
        """The sample as a JSON object: the fields of `stats`, and more."""
        return {
            "queue": self.queue,
            **dataclasses.asdict(self.stats),
            "due_per_minute": [*self.per_minute],
            "handled_per_second": self.per_second,
            "late_p50_ms": _finite(self.p50_ms),
            "late_p99_ms": _finite(self.p99_ms),
            "workers": self._live(),
        }

    def facts(self) -> dict[str, str]:
        """The sample for people."""
        return {
            "scheduled": f"{self.stats.scheduled:,}",
            "due": f"{self.stats.due:,}",
            "leased": f"{self.stats.leased:,}",
            "dead": f"{self.stats.dead:,}",
            "next due": self._next_due(),
            f"due in {MINUTES} min": f"{sum(self.per_minute):,}",
            "done/s": "-" if self.per_second is None else f"{self.per_second:,.1f}",
            "late p50": _late(self.p50_ms),
            "late p99": _late(self.p99_ms),
            "workers": f"{self._live()}",
            "paused": "yes" if self.stats.paused else "no",
        }

    def line(self) -> str:
        """The sample for people who see no table."""
        return "  ".join([self.queue, *(f"{name} {value}" for name, value in self.facts().items())])

    def _live(self) -> int:
        return sum(not each.silent for each in self.workers)

    def _next_due(self) -> str:
        if self.stats.next_due_in_ms is None:
            return "never"
        if self.stats.due:
            return f"{duration(self.stats.oldest_due_age_ms)} ago"
        return f"in {duration(self.stats.next_due_in_ms)}"


class Sampler:
    """Takes samples of a queue."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self._seen: deque[tuple[float, Handled]] = deque()

    def sample(self, now: float) -> Sample:
        """Take a sample; ``now`` is on the monotonic clock, in seconds. Raises redis.RedisError."""
        stats, workers = self._queue.stats(), self._queue.workers()
        self._seen.append((now, {each.id: _handled(each) for each in workers}))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:  # noqa: PLR2004
            self._seen.popleft()
        since, before = self._seen[0]
        counts = _done_since(before, self._seen[-1][1])
        seconds = now - since
        return Sample(
            self._queue.name,
            stats,
            self._queue.forecast(MINUTES),
            workers,
            counts.total() / seconds if seconds > 0 else None,
            percentile(counts, 0.5),
            percentile(counts, 0.99),
        )


def percentile(counts: Counter[float], fraction: float) -> float | None:
    """The smallest bound that covers this fraction of tasks; None without tasks."""
    left = fraction * counts.total()
    for bound in sorted(counts):
        left -= counts[bound]
        if left <= 0 and counts[bound]:
            return bound
    return None


def _handled(worker: WorkerStatus) -> Counter[float]:
    pairs = worker.details.get("lateness", [])
    return Counter({float("inf") if bound is None else bound: tasks for bound, tasks in pairs})


def _done_since(before: Handled, after: Handled) -> Counter[float]:
    """What workers did in between. The counts of a worker that has signed off since are lost."""
    done: Counter[float] = Counter()
    for worker_id, counts in after.items():
        done.update(counts - before.get(worker_id, Counter()))
    return done


def _late(ms: float | None) -> str:
    if ms is None:
        return "-"
    return f"≤ {duration(ms)}" if ms != float("inf") else "> 1 h"


def _finite(ms: float | None) -> float | None:
    """JSON has no infinity."""
    return None if ms == float("inf") else ms
