"""What `stats --watch` makes of what workers report."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.engine import Clock, ClockedQueue
from worker.cli.sampling import WINDOW_SECONDS, Sample, Sampler, percentile
from worker.cli.stats import bars


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> ClockedQueue:
    return ClockedQueue("watched", clock)


def beat(queue: ClockedQueue, worker_id: str, *lateness: tuple[int | None, int]) -> None:
    details: dict[str, Any] = {"up": True, "holds": 0, "lateness": lateness}
    queue.beat(worker_id, details)


def after(sampler: Sampler, clock: Clock, seconds: float) -> Sample:
    clock.move(seconds)
    return sampler.sample(clock())


def test_throughput_and_lateness_are_those_since_it_was_watched(
    clock: Clock, queue: ClockedQueue
) -> None:
    sampler = Sampler(queue)
    beat(queue, "a", (5, 1000), (None, 7))
    first = sampler.sample(clock())
    assert (first.per_second, first.p50_ms, first.p99_ms) == (None, None, None)
    beat(queue, "a", (5, 1090), (20, 10), (None, 7))
    second = after(sampler, clock, 10)
    assert (second.per_second, second.p50_ms, second.p99_ms) == (10, 5, 20)


def test_only_workers_that_have_not_signed_off_count(clock: Clock, queue: ClockedQueue) -> None:
    sampler = Sampler(queue)
    beat(queue, "old", (5, 1000))
    sampler.sample(clock())
    queue.sign_off("old")
    beat(queue, "new", (1, 40))
    assert after(sampler, clock, 2).per_second == 20


def test_what_is_older_than_a_minute_is_forgotten(clock: Clock, queue: ClockedQueue) -> None:
    sampler = Sampler(queue)
    for n in range(1, 200):
        if n < 20:
            beat(queue, "a", (1, 100 * n))
        sample = after(sampler, clock, 1)
    assert sample.per_second == 0
    assert sample.p99_ms is None
    assert len(sampler._seen) <= WINDOW_SECONDS + 2


@pytest.mark.parametrize(
    ("counts", "fraction", "expected"),
    [
        ({}, 0.5, None),
        ({1: 1}, 0.99, 1),
        ({1: 99, 50: 1}, 0.99, 1),
        ({1: 98, 50: 2}, 0.99, 50),
        ({1: 1, 2: 1}, 0.5, 1),
        ({5: 1, float("inf"): 9}, 0.5, float("inf")),
    ],
)
def test_a_percentile_is_an_upper_bound(
    counts: dict[float, int], fraction: float, expected: float | None
) -> None:
    assert percentile(Counter(counts), fraction) == expected


def test_lateness_beyond_the_last_step_is_no_infinity_in_json(
    clock: Clock, queue: ClockedQueue
) -> None:
    sampler = Sampler(queue)
    sampler.sample(clock())
    beat(queue, "a", (None, 1))
    sample = after(sampler, clock, 1)
    assert sample.facts()["late p50"] == "> 1 h"
    assert sample.row()["late_p50_ms"] is None


def test_a_worker_of_the_previous_version_reports_no_lateness(
    clock: Clock, queue: ClockedQueue
) -> None:
    queue.beat("a", {"up": False, "holds": 3, "oldest_seconds": 2})
    sample = Sampler(queue).sample(clock())
    assert (sample.row()["workers"], sample.row()["late_p50_ms"]) == (1, None)


def test_what_is_next_due_is_told_in_words(clock: Clock, queue: ClockedQueue) -> None:
    sampler = Sampler(queue)

    def next_due() -> str:
        return sampler.sample(clock()).facts()["next due"]

    assert next_due() == "never"
    queue.schedule("a", delay_ms=90_000)
    assert next_due() == "in 90 s"
    clock.move(100)
    assert next_due() == "10 s ago"


@pytest.mark.parametrize(
    ("counts", "drawn"),
    [([], ""), ([0, 0], "  "), ([0, 1, 1_000_000], " ▁█"), ([1, 2, 4, 8], "▁▂▄█")],
)
def test_even_a_single_task_has_a_bar(counts: list[int], drawn: str) -> None:
    assert bars(counts) == drawn
