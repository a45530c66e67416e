"""Metrics of a worker for Prometheus. The only module of this package that needs prometheus-client.

`Metrics` is a listener that counts events, and a collector that reads the queues' depths when it is scraped::

    metrics = Metrics(["emails"], redis_url)
    REGISTRY.register(metrics)
    Worker(flows, redis_url, listeners=[metrics]).run()

Everything is labelled by queue. Sum the metrics of what a worker did over all workers. Depths and other
metrics of a queue are the same in every worker: take the maximum.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import events
from ..queue.connection import connect
from ..queue.delay_queue import DelayQueue
from ..queue.environment import REAL, Clock
from ..queue.replies import Stats
from ..runtime.liveness import WorkerHealth

# Otherwise each counter comes with a second metric, the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: How late tasks are and how long handlers take, from 1 ms to 1 h.
SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
#: How many tasks a claim leases.
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
#: How long a scrape waits for one reply of Redis.
REDIS_TIMEOUT_SECONDS = 0.5

#: Each counter that has no label but the queue, without `worker_` and `_total`, and what it counts.
COUNTERS = {
    "claims": "Claims that leased tasks.",
    "deliveries": "Tasks leased by claims.",
    "redeliveries": "Tasks leased again after a lease on them had expired.",
    "dead_letters": "Tasks that became dead letters.",
    "stale_settles": "Tasks whose lease ended before they were settled, so nothing was written.",
    "restored_tasks": "Tasks that Redis had lost and that were scheduled again. Normally none.",
    "tasks_without_redis": "Tasks handled by the sweep because Redis did not answer.",
    "handler_overruns": "Calls of the handler that ran for longer than max_runtime_seconds.",
    "redis_outages": "How often claims began to fail.",
    "redis_outage_seconds": "How long claims failed.",
    "dependency_outages": "How often something the handler needs became unavailable.",
    "dependency_outage_seconds": "How long something that the handler needs was unavailable.",
    "hangs": "Probes and sweeps that made no progress for 10 seconds.",
}
#: Each histogram, without `worker_`, what it measures, and its buckets.
HISTOGRAMS = {
    "task_lateness_seconds": (
        "How late tasks were when their handler's call ended, except those that had failed before.",
        SECONDS,
    ),
    "handler_seconds": ("How long one call of the handler took.", SECONDS),
    "batch_tasks": ("How many tasks one claim leased.", SIZES),
}
#: Each gauge that is read from Redis, its description, the field of `Stats`, and how many of its units make one.
DEPTHS = {
    "scheduled_tasks": ("Tasks that wait, due ones included.", "scheduled", 1),
    "due_tasks": ("Tasks that are due and not yet leased.", "due", 1),
    "leased_tasks": ("Tasks that workers hold.", "leased", 1),
    "dead_letters": ("Dead letters that nobody has requeued or purged.", "dead", 1),
    "oldest_due_task_age_seconds": (
        "How long the oldest due task has been due.",
        "oldest_due_age_ms",
        1000,
    ),
    "oldest_dead_letter_age_seconds": (
        "How long ago the oldest dead letter died.",
        "oldest_dead_age_ms",
        1000,
    ),
    "paused": ("Whether an operator has paused the queue.", "paused", 1),
}


class Metrics(Collector):
    """The metrics of a worker, or of several in one process. Register it to have it scraped."""

    def __init__(
        self,
        queues: Sequence[str],
        redis_url: str,
        *,
        clock: Clock = REAL.clock,
    ) -> None:
        """Metrics of ``queues`` exist from the start, as zero; those of other queues from their first event."""
        self._client = connect(redis_url, timeout_seconds=REDIS_TIMEOUT_SECONDS, max_connections=2)
        self._queues = [DelayQueue(self._client, name) for name in queues]
        self._clock = clock
        self._health: Callable[[], WorkerHealth] | None = None
        self._counted = CollectorRegistry()
        self._counters = {
            name: Counter(f"worker_{name}", text, ["queue"], registry=self._counted)
            for name, text in COUNTERS.items()
        }
        self._outcomes = Counter(
            "worker_handled_tasks",
            "Tasks that the handler finished with, by outcome.",
            ["queue", "outcome"],
            registry=self._counted,
        )
        self._histograms = {
            name: Histogram(
                f"worker_{name}", text, ["queue"], buckets=buckets, registry=self._counted
            )
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        for queue in queues:
            for metric in (*self._counters.values(), *self._histograms.values()):
                metric.labels(queue)
            for outcome in ("done", "retried", "failed"):
                self._outcomes.labels(queue, outcome)
        #: (queue, what) -> since when an outage lasts, or until when its seconds have been counted.
        self._outages: dict[tuple[str, str], float] = {}
        self._outages_lock = threading.Lock()

    def watch(self, health: Callable[[], WorkerHealth]) -> None:
        """Also report the health of a worker's flows; ``health`` is its `Worker.health`."""
        self._health = health

    def close(self) -> None:
        self._client.close()

    # -- counting --------------------------------------------------------------------------

    def __call__(self, event: events.Event) -> None:  # noqa: C901  one case for each event
        """Count an event, as a listener does."""
        queue = event.queue
        match event:
            case events.Claimed(tasks=tasks):
                self._add(queue, "claims")
                self._add(queue, "deliveries", len(tasks))
                self._add(queue, "redeliveries", sum(task.deliveries > 0 for task in tasks))
                self._histograms["batch_tasks"].labels(queue).observe(len(tasks))
            case events.Handled():
                self._add_handled(event)
            case events.Died():
                self._add(queue, "dead_letters")
            case events.LeaseLost(ids=ids):
                self._add(queue, "stale_settles", len(ids))
            case events.Restored(tasks=number):
                self._add(queue, "restored_tasks", number)
            case events.RanTooLong():
                self._add(queue, "handler_overruns")
            case events.RedisLost():
                self._begin_outage(queue, "redis")
            case events.RedisBack():
                self._end_outage(queue, "redis")
            case events.FlowDown():
                self._begin_outage(queue, "dependency")
            case events.FlowUp():
                self._end_outage(queue, "dependency")
            case events.Hangs():
                self._add(queue, "hangs")

    def _add(self, queue: str, name: str, amount: float = 1) -> None:
        self._counters[name].labels(queue).inc(amount)

    def _add_handled(self, event: events.Handled) -> None:
        """Count a call of the handler. A task that has failed before is late because of its backoff."""
        self._outcomes.labels(event.queue, "done").inc(event.done)
        self._outcomes.labels(event.queue, "retried").inc(event.retries)
        self._outcomes.labels(event.queue, "failed").inc(event.failed)
        self._histograms["handler_seconds"].labels(event.queue).observe(event.seconds)
        lateness = self._histograms["task_lateness_seconds"].labels(event.queue)
        if event.without_redis:
            self._add(event.queue, "tasks_without_redis", len(event.tasks))
            for _ in event.tasks:
                lateness.observe(event.late_ms / 1000)
            return
        ended_at_ms = min(task.due_at_ms for task in event.tasks) + event.late_ms
        for task in event.tasks:
            if not task.failures:
                lateness.observe((ended_at_ms - task.due_at_ms) / 1000)

    def _begin_outage(self, queue: str, what: str) -> None:
        with self._outages_lock:
            if (queue, what) not in self._outages:
                self._outages[queue, what] = self._clock()
                self._add(queue, f"{what}_outages")

    def _end_outage(self, queue: str, what: str) -> None:
        self._count_outages()
        with self._outages_lock:
            self._outages.pop((queue, what), None)

    def _count_outages(self) -> None:
        """Count the seconds of current outages up to now."""
        with self._outages_lock:
            now = self._clock()
            for (queue, what), since in self._outages.items():
                self._add(queue, f"{what}_outage_seconds", now - since)
                self._outages[queue, what] = now

    # -- scraping --------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect everything."""
        return ()

    def collect(self) -> Iterator[Metric]:
        self._count_outages()
        yield from self._counted.collect()
        flows = self._health().flows if self._health else ()
        if flows:
            yield _gauge(
                "worker_flow_healthy",
                "0 if the flow is failing in this worker; 1 if it works, or waits for an outage to end.",
                {flow.queue: flow.status != "failing" for flow in flows},
            )
            yield _gauge(
                "worker_flow_waits",
                "Whether the flow waits for Redis or for something that its handler needs.",
                {flow.queue: bool(flow.outages) for flow in flows},
            )
        yield from self._depths({flow.queue for flow in flows if flow.paused})

    def _depths(self, paused: set[str]) -> Iterator[Metric]:
        known: dict[str, tuple[Stats, int]] = {}
        # A silent server costs one timeout, not one for each queue.
        with suppress(redis.RedisError):
            for queue in self._queues:
                stats = queue.stats()
                known[queue.name] = stats, sum(not each.silent for each in queue.workers())
        yield _gauge(
            "worker_queue_readable",
            "Whether Redis answered when the queue was looked at for these metrics.",
            {queue.name: queue.name in known for queue in self._queues},
        )
        for gauge, (text, place, unit) in DEPTHS.items():
            values = {name: getattr(found, place) / unit for name, (found, _) in known.items()}
            if place == "paused":
                values |= dict.fromkeys(paused & values.keys(), 1.0)
            yield _gauge(f"worker_queue_{gauge}", text, values)
        yield _gauge(
            "worker_queue_live_workers",
            "Workers that reported to the queue within the last 45 seconds.",
            {name: workers for name, (_, workers) in known.items()},
        )


def _gauge(name: str, text: str, values: Mapping[str, Any]) -> Metric:
    """A gauge with a value for each queue."""
    family = GaugeMetricFamily(name, text, labels=["queue"])
    for queue, value in values.items():
        family.add_metric([queue], float(value))
    return family
