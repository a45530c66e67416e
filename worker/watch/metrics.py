"""Metrics of a worker for Prometheus. The only module of this package that needs prometheus-client.

`Metrics` is a listener that counts events, and a collector that reads the queues' depths when it is scraped::

    metrics = Metrics(["emails"], redis_url)
    REGISTRY.register(metrics)
    Worker(flows, redis_url, listeners=[metrics]).run()

Everything is labelled by queue. Sum the metrics of what a worker did over all workers. Depths and other
metrics of a queue are the same in every worker: take the maximum.
"""

import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .. import events
from ..flow import Task
from ..queue.connection import client_for, connect
from ..queue.delay_queue import DelayQueue
from ..queue.environment import REAL, Clock
from ..queue.replies import Stats
from ..runtime.liveness import WorkerHealth
from .monitoring import Reply

#: How late tasks are and how long handlers take, from 1 ms to 1 h.
SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
#: How many tasks a claim leases.
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
#: How long the queues' depths are cached, so that frequent scrapes do not load Redis.
CACHE_SECONDS = 2.0
#: How long a scrape waits for one reply of Redis.
REDIS_TIMEOUT_SECONDS = 0.5

#: Each counter's name, without _total, and what it counts.
COUNTERS = {
    "worker_claims": "Claims that leased tasks.",
    "worker_deliveries": "Tasks leased by claims.",
    "worker_redeliveries": "Tasks leased again after a lease on them had expired.",
    "worker_dead_letters": "Tasks that became dead letters.",
    "worker_stale_settles": "Tasks whose lease ended before they were settled, so nothing was written.",
    "worker_restored_tasks": "Tasks that Redis had lost and that were scheduled again. Normally none.",
    "worker_tasks_without_redis": "Tasks handled by the sweep because Redis did not answer.",
    "worker_handler_overruns": "Calls of the handler that ran for longer than max_runtime_seconds.",
    "worker_redis_outages": "How often claims began to fail.",
    "worker_dependency_outages": "How often something the handler needs became unavailable.",
    "worker_hangs": "Probes and sweeps that made no progress for 10 seconds.",
}
#: Each histogram's name, what it measures, and its buckets.
HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "worker_task_lateness_seconds": (
        "How late tasks were when their handler's call ended, except those that had failed before.",
        SECONDS,
    ),
    "worker_handler_seconds": ("How long one call of the handler took.", SECONDS),
    "worker_batch_tasks": ("How many tasks one claim leased.", SIZES),
}
#: What may be unavailable, and what its counter measures; a current outage is included.
OUTAGES = {
    "redis": "How long claims failed.",
    "dependency": "How long something that the handler needs was unavailable.",
}
#: Each gauge that is read from Redis, its description, the field of `Stats`, and how many of its units make one.
DEPTHS = {
    "worker_queue_scheduled_tasks": ("Tasks that wait, due ones included.", "scheduled", 1),
    "worker_queue_due_tasks": ("Tasks that are due and not yet leased.", "due", 1),
    "worker_queue_leased_tasks": ("Tasks that workers hold.", "leased", 1),
    "worker_queue_dead_letters": ("Dead letters that nobody has requeued or purged.", "dead", 1),
    "worker_queue_oldest_due_task_age_seconds": (
        "How long the oldest due task has been due.",
        "oldest_due_age_ms",
        1000,
    ),
    "worker_queue_oldest_dead_letter_age_seconds": (
        "How long ago the oldest dead letter died.",
        "oldest_dead_age_ms",
        1000,
    ),
    "worker_queue_paused": ("Whether an operator has paused the queue.", "paused", 1),
}


class Histogram:
    """Counts by bucket. Adding many observations at once takes one lock, which a handler's thread can afford."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times

    def add(self, up_to_bound: Sequence[int], count: int, total: float) -> None:
        """Add ``count`` observations, given how many of them do not exceed each bound, and their sum."""
        below = 0
        for place, up_to in enumerate(up_to_bound):
            self.counts[place] += up_to - below
            below = up_to
        self.counts[-1] += count - below
        self.sum += total

    def cumulative(self) -> list[tuple[str, float]]:
        """The upper bound of each bucket, and how many observations do not exceed it."""
        bounds = [*map(str, self.buckets), "+Inf"]
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip(bounds, self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


@dataclass(slots=True)
class Outage:
    """How long something has been unavailable in total, in seconds of the monotonic clock."""

    #: When the current outage began; None while there is none.
    since: float | None = None
    #: How long earlier outages lasted.
    before: float = 0.0

    def begin(self, now: float) -> bool:
        """Note that it is unavailable; return whether that is new."""
        is_new = self.since is None
        self.since = now if self.since is None else self.since
        return is_new

    def end(self, now: float) -> None:
        self.before = self.seconds(now)
        self.since = None

    def seconds(self, now: float) -> float:
        return self.before + (0.0 if self.since is None else now - self.since)


@dataclass(slots=True)
class Totals:
    """What happened in one queue."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    outcomes: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("done", "retried", "failed"), 0)
    )
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram(each[1]) for name, each in HISTOGRAMS.items()}
    )
    redis: Outage = field(default_factory=Outage)
    dependency: Outage = field(default_factory=Outage)

    def add(self, event: events.Event, now: float) -> None:  # noqa: C901  one case for each event
        """Count an event. ``now`` is on the monotonic clock."""
        counts = self.counts
        match event:
            case events.Claimed(tasks=tasks):
                counts["worker_claims"] += 1
                counts["worker_deliveries"] += len(tasks)
                counts["worker_redeliveries"] += sum(task.deliveries > 0 for task in tasks)
                self.histograms["worker_batch_tasks"].observe(len(tasks))
            case events.Handled():
                self._add_handled(event)
            case events.Died():
                counts["worker_dead_letters"] += 1
            case events.LeaseLost(ids=ids):
                counts["worker_stale_settles"] += len(ids)
            case events.Restored(tasks=number):
                counts["worker_restored_tasks"] += number
            case events.RanTooLong():
                counts["worker_handler_overruns"] += 1
            case events.RedisLost():
                counts["worker_redis_outages"] += self.redis.begin(now)
            case events.RedisBack():
                self.redis.end(now)
            case events.FlowDown():
                counts["worker_dependency_outages"] += self.dependency.begin(now)
            case events.FlowUp():
                self.dependency.end(now)
            case events.Hangs():
                counts["worker_hangs"] += 1

    def _add_handled(self, event: events.Handled) -> None:
        self.outcomes["done"] += event.done
        self.outcomes["retried"] += event.retries
        self.outcomes["failed"] += event.failed
        if event.without_redis:
            self.counts["worker_tasks_without_redis"] += len(event.tasks)
        self.histograms["worker_handler_seconds"].observe(event.seconds)
        add_lateness(
            self.histograms["worker_task_lateness_seconds"],
            event.late_ms,
            event.tasks,
            each_alike=event.without_redis,
        )


def add_lateness(
    histogram: Histogram, late_ms: int, tasks: Sequence[Task], *, each_alike: bool
) -> None:
    """Observe how late each task was, given the lateness of the earliest. Takes a fraction of a µs per task.

    A task that has failed before is late because of its backoff, so it does not count.
    """
    if each_alike:
        histogram.observe(late_ms / 1000, len(tasks))
        return
    ended_at = min([task.due_at_ms for task in tasks]) + late_ms
    due = sorted([task.due_at_ms for task in tasks if not task.failures])
    # A bucket holds the tasks that were due at a certain time or later.
    up_to_bound = [
        len(due) - bisect_left(due, ended_at - 1000 * bound) for bound in histogram.buckets
    ]
    histogram.add(up_to_bound, len(due), (len(due) * ended_at - sum(due)) / 1000)


class Metrics(Collector):
    """The metrics of a worker, or of several in one process. Register it to have it scraped."""

    def __init__(
        self,
        queues: Sequence[str],
        redis_url: str,
        *,
        cache_seconds: float = CACHE_SECONDS,
        clock: Clock = REAL.clock,
    ) -> None:
        """Metrics of ``queues`` exist from the start, as zero; those of other queues from their first event."""
        client = connect(redis_url, timeout_seconds=REDIS_TIMEOUT_SECONDS, max_connections=2)
        self._client, self._clock = client, clock
        self._queues = [DelayQueue(client, name) for name in queues]
        self._totals: defaultdict[str, Totals] = defaultdict(
            Totals, {name: Totals() for name in queues}
        )
        self._lock = threading.Lock()
        self._health: Callable[[], WorkerHealth] | None = None
        self._depths = Depths(client, self._queues, cache_seconds, clock)

    def __call__(self, event: events.Event) -> None:
        """Count an event, as a listener does."""
        if isinstance(event, events.Waiting):
            return
        now = self._clock()
        with self._lock:
            self._totals[event.queue].add(event, now)

    def watch(self, health: Callable[[], WorkerHealth]) -> None:
        """Also report the health of a worker's flows; ``health`` is its `Worker.health`."""
        self._health = health

    def close(self) -> None:
        self._client.close()

    # -- scraping --------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect everything."""
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            counted = [*self._counted(self._clock())]
        yield from counted
        if self._health is not None:
            yield from _health_metrics(self._health())
        yield from self._depths.collect()

    def _counted(self, now: float) -> Iterator[Metric]:
        for name, text in COUNTERS.items():
            yield _family(
                CounterMetricFamily,
                name,
                text,
                {queue: totals.counts[name] for queue, totals in self._totals.items()},
            )
        outcomes = CounterMetricFamily(
            "worker_handled_tasks",
            "Tasks that the handler finished with, by outcome.",
            labels=["queue", "outcome"],
        )
        for queue, totals in self._totals.items():
            for outcome, count in totals.outcomes.items():
                outcomes.add_metric([queue, outcome], count)
        yield outcomes
        for what, text in OUTAGES.items():
            yield _family(
                CounterMetricFamily,
                f"worker_{what}_outage_seconds",
                text,
                {
                    queue: getattr(totals, what).seconds(now)
                    for queue, totals in self._totals.items()
                },
            )
        for name, (text, _) in HISTOGRAMS.items():
            family = HistogramMetricFamily(name, text, labels=["queue"])
            for queue, totals in self._totals.items():
                histogram = totals.histograms[name]
                family.add_metric([queue], histogram.cumulative(), histogram.sum)
            yield family


class Depths:
    """The metrics that are read from Redis when they are scraped, with a short cache. Any thread may use it."""

    def __init__(
        self,
        client: redis.Redis,
        queues: Sequence[DelayQueue],
        cache_seconds: float,
        clock: Clock,
    ) -> None:
        self._client, self._queues, self._clock = client, queues, clock
        self._cache_seconds = cache_seconds
        self._lock = threading.Lock()
        self._read_at = -math.inf
        #: None for a queue that could not be read.
        self._read: dict[str, tuple[Stats, int] | None] = {}

    def collect(self) -> Iterator[Metric]:
        read = self._latest()
        yield _family(
            GaugeMetricFamily,
            "worker_queue_readable",
            "Whether Redis answered when the queue was looked at for these metrics.",
            {queue: float(found is not None) for queue, found in read.items()},
        )
        known = {queue: found for queue, found in read.items() if found is not None}
        for name, (text, place, unit) in DEPTHS.items():
            values = {queue: getattr(stats, place) / unit for queue, (stats, _) in known.items()}
            yield _family(GaugeMetricFamily, name, text, values)
        yield _family(
            GaugeMetricFamily,
            "worker_queue_live_workers",
            "Workers that reported to the queue within the last 45 seconds.",
            {queue: workers for queue, (_, workers) in known.items()},
        )

    def _latest(self) -> dict[str, tuple[Stats, int] | None]:
        # If another thread is stuck reading, serve what was read before.
        if self._lock.acquire(timeout=1.0):
            try:
                if self._clock() >= self._read_at + self._cache_seconds:
                    self._read = self._look()
                    self._read_at = self._clock()
            finally:
                self._lock.release()
        return self._read

    def _look(self) -> dict[str, tuple[Stats, int] | None]:
        found: dict[str, tuple[Stats, int] | None] = {queue.name: None for queue in self._queues}
        silent: list[redis.Redis] = []  # a silent server costs one timeout, not one for each queue
        for queue in self._queues:
            server = client_for(self._client, queue.name)
            if server in silent:
                continue
            try:
                stats = queue.stats()
                live = [each for each in queue.workers() if not each.silent]
                found[queue.name] = stats, len(live)
            except redis.RedisError:
                silent.append(server)
        return found


def _health_metrics(health: WorkerHealth) -> Iterator[Metric]:
    yield _family(
        GaugeMetricFamily,
        "worker_flow_healthy",
        "0 if the flow is failing in this worker; 1 if it works, or waits for an outage to end.",
        {flow.queue: float(flow.status != "failing") for flow in health.flows},
    )
    yield _family(
        GaugeMetricFamily,
        "worker_flow_waits",
        "Whether the flow waits for Redis or for something that its handler needs.",
        {flow.queue: float(bool(flow.outages)) for flow in health.flows},
    )


def _family(kind: Any, name: str, text: str, values: Mapping[str, float]) -> Metric:
    """A metric with a value for each queue."""
    family: Metric = kind(name, text, labels=["queue"])
    for queue, value in values.items():
        family.add_metric([queue], value)  # type: ignore[attr-defined]
    return family


@contextmanager
def registered(queues: Sequence[str], redis_url: str) -> Iterator[Metrics]:
    """Metrics that are scraped until the block ends."""
    with closing(Metrics(queues, redis_url)) as made:
        REGISTRY.register(made)
        try:
            yield made
        finally:
            REGISTRY.unregister(made)


def page(accept: str, registry: CollectorRegistry = REGISTRY) -> Reply:
    """The response to a scrape, given its Accept header."""
    encode, content_type = choose_encoder(accept)
    return Reply(encode(registry), content_type)
