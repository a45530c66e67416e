"""What the engine's events add up to, as Prometheus reads it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.kit.engine import EVENT_KINDS, Clock
from worker import FlowHealth, Stats, Task, WorkerHealth, WorkerStatus, events
from worker.watch.metrics import SECONDS, SIZES, Metrics

NOWHERE = "redis://127.0.0.1:1/0"
ERROR = ValueError("bad")


class Scraped:
    """Metrics of the queues a and b, as a scrape shows them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.metrics = Metrics(["a", "b"], NOWHERE, clock=clock)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def hear(self, *heard: events.Event) -> None:
        for event in heard:
            self.metrics(event)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def value(self, name: str, queue: str = "a", **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"queue": queue, **labels})

    def changed(self, before: Mapping[str, float]) -> dict[str, float]:
        """The samples of the queue a that differ from ``before``, histograms by sum and count."""
        return {name: value for name, value in self.samples().items() if before.get(name) != value}

    def samples(self) -> dict[str, float]:
        return {
            ",".join([sample.name, *(v for k, v in sample.labels.items() if k != "queue")]): (
                sample.value
            )
            for family in parsed(self.text())
            for sample in family.samples
            if sample.labels["queue"] == "a" and not sample.name.endswith("_bucket")
        }


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    made = Scraped(Clock())
    yield made
    made.metrics.close()


TWO = (Task("x", due_at_ms=1000), Task("y", deliveries=2, due_at_ms=1700))
#: Each kind of event, and what it adds to.
ADDED: list[tuple[events.Event, dict[str, float]]] = [
    (
        events.Claimed("a", TWO, late_ms=10),
        {
            "worker_claims_total": 1,
            "worker_deliveries_total": 2,
            "worker_redeliveries_total": 1,
            "worker_batch_tasks_sum": 2,
            "worker_batch_tasks_count": 1,
        },
    ),
    (
        events.Handled("a", TWO, done=1, retries=0, failed=1, seconds=0.25, late_ms=800),
        {
            "worker_handled_tasks_total,done": 1,
            "worker_handled_tasks_total,failed": 1,
            "worker_handler_seconds_sum": 0.25,
            "worker_handler_seconds_count": 1,
            "worker_task_lateness_seconds_sum": 0.9,
            "worker_task_lateness_seconds_count": 2,
        },
    ),
    (
        events.Handled("a", TWO, 0, 2, 0, seconds=0.5, late_ms=800, without_redis=True),
        {
            "worker_handled_tasks_total,retried": 2,
            "worker_handler_seconds_sum": 0.5,
            "worker_handler_seconds_count": 1,
            "worker_task_lateness_seconds_sum": 1.6,
            "worker_task_lateness_seconds_count": 2,
            "worker_tasks_without_redis_total": 2,
        },
    ),
    (events.Retried("a", TWO[0], 5.0), {}),  # Handled has counted it
    (events.Failed("a", TWO[0], ERROR, 5.0), {}),
    (events.Died("a", TWO[0], "bad", ERROR), {"worker_dead_letters_total": 1}),
    (events.Restored("a", 7), {"worker_restored_tasks_total": 7}),
    (events.LeaseLost("a", ["x", "y"]), {"worker_stale_settles_total": 2}),
    (events.RanTooLong("a", ["x", "y"]), {"worker_handler_overruns_total": 1}),
    (events.RedisLost("a", ERROR), {"worker_redis_outages_total": 1}),
    (events.RedisBack("a", 5), {}),
    (events.FlowDown("a", ERROR), {"worker_dependency_outages_total": 1}),
    (events.FlowUp("a", 5), {}),
    (events.Hangs("a", "probe", 11), {"worker_hangs_total": 1}),
    (events.Waiting("a", 5), {}),
]


@pytest.mark.parametrize(("event", "added"), ADDED, ids=lambda each: type(each).__name__)
def test_an_event_adds_to_its_queue_and_to_no_other(
    scraped: Scraped, event: events.Event, added: dict[str, float]
) -> None:
    before = scraped.samples()
    scraped.hear(event)
    assert scraped.changed(before) == pytest.approx(added)
    assert not scraped.value("worker_claims_total", "b")
    assert not scraped.value("worker_handled_tasks_total", "b", outcome="done")


def test_every_kind_of_event_is_looked_at() -> None:
    assert {type(event) for event, _ in ADDED} == {*EVENT_KINDS}


def test_a_queue_has_all_its_metrics_before_anything_happens(scraped: Scraped) -> None:
    assert {value for name, value in scraped.samples().items()} == {0}
    scraped.hear(events.Restored("new", 1))
    assert scraped.value("worker_restored_tasks_total", "new") == 1


def test_an_outages_seconds_add_up_while_it_lasts_and_later(scraped: Scraped) -> None:
    def seconds() -> tuple[Any, ...]:
        kinds = ("redis", "dependency")
        return tuple(scraped.value(f"worker_{kind}_outage_seconds_total") for kind in kinds)

    scraped.hear(events.FlowUp("a", 99))  # how long it took to start is no outage
    assert seconds() == (0, 0)
    scraped.hear(events.RedisLost("a", ERROR))
    scraped.clock.move(2)
    scraped.hear(events.FlowDown("a", ERROR))
    scraped.clock.move(3)
    assert seconds() == (5, 3)
    scraped.hear(events.RedisBack("a", 5))
    scraped.clock.move(10)
    assert seconds() == (5, 13)
    scraped.hear(events.RedisLost("a", ERROR), events.FlowUp("a", 13))
    scraped.clock.move(1)
    assert seconds() == (6, 13)


# -- lateness ------------------------------------------------------------------------------


def test_the_lateness_of_each_unfailed_task_is_in_its_bucket(scraped: Scraped) -> None:
    tasks = [Task("x", due_at_ms=at, failures=at == 5) for at in (0, 5, 4000, 4999, 5003)]
    scraped.hear(events.Handled("a", tasks, 5, 0, 0, seconds=1, late_ms=5000))
    name = "worker_task_lateness_seconds"
    in_bucket = [scraped.value(f"{name}_bucket", le=str(le)) for le in SECONDS]
    assert in_bucket == [sum(late <= le for late in (5, 1, 0.001, -0.003)) for le in SECONDS]
    assert scraped.value(f"{name}_count") == 4
    assert scraped.value(f"{name}_sum") == pytest.approx(5 + 1 + 0.001 - 0.003)


def test_buckets_span_a_millisecond_to_an_hour_and_any_batch() -> None:
    assert (SECONDS[0], SECONDS[-1]) == (0.001, 3600)
    assert SIZES[-1] == 2000


# -- depths --------------------------------------------------------------------------------

STATS = Stats(
    scheduled=5,
    due=2,
    due_within_minute=3,
    leased=4,
    dead=1,
    paused=True,
    next_due_in_ms=0,
    oldest_due_age_ms=1500,
    oldest_dead_age_ms=90_000,
)


@pytest.mark.parametrize("in_redis", [True, False], ids=["paused in Redis", "in its records"])
def test_depths_are_read_when_scraped(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch, *, in_redis: bool
) -> None:
    flows = (FlowHealth("a", "ok", (), (), paused=not in_redis),)
    scraped.metrics.watch(lambda: WorkerHealth("w", "ok", (), flows))
    live = [WorkerStatus("w", ago, {}) for ago in (0, 45_000, 45_001)]
    for queue in scraped.metrics._queues:
        monkeypatch.setattr(queue, "stats", lambda: replace(STATS, paused=in_redis))
        monkeypatch.setattr(queue, "workers", lambda: live)
    found = {name: value for name, value in scraped.samples().items() if "_queue_" in name}
    assert found == {
        "worker_queue_readable": 1,
        "worker_queue_scheduled_tasks": 5,
        "worker_queue_due_tasks": 2,
        "worker_queue_leased_tasks": 4,
        "worker_queue_dead_letters": 1,
        "worker_queue_oldest_due_task_age_seconds": 1.5,
        "worker_queue_oldest_dead_letter_age_seconds": 90,
        "worker_queue_paused": 1,
        "worker_queue_live_workers": 2,
    }


def test_depths_are_left_out_while_redis_is_away(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(name: str) -> Stats:
        asked.append(name)
        raise redis.ConnectionError("refused")

    for queue in scraped.metrics._queues:
        monkeypatch.setattr(queue, "stats", lambda name=queue.name: refuse(name))
    found = {name: value for name, value in scraped.samples().items() if "_queue_" in name}
    assert found == {"worker_queue_readable": 0}
    assert asked == ["a"], "one timeout, however many queues there are"


# -- form ----------------------------------------------------------------------------------


def test_names_units_and_help_follow_the_conventions(scraped: Scraped) -> None:
    families = [*parsed(scraped.text())]
    assert len(families) > 15
    for family in families:
        assert family.name.startswith("worker_")
        assert family.documentation.endswith(".")
        assert "_ms" not in family.name
        if family.type == "counter":
            assert {sample.name for sample in family.samples} == {f"{family.name}_total"}
        for sample in family.samples:
            assert {*sample.labels} <= {"queue", "outcome", "le"}
            assert "queue" in sample.labels
