"""What `monitor` makes of what workers report."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.engine import Clock, ClockedQueue
from worker.cli.watching import WINDOW_SECONDS, Sample, Watch, percentile


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def queue(clock: Clock) -> ClockedQueue:
    return ClockedQueue("watched", clock)


def beat(queue: ClockedQueue, worker_id: str, *lateness: tuple[int | None, int]) -> None:
    details: dict[str, Any] = {"up": True, "holds": 0, "lateness": lateness}
    queue.beat(worker_id, details)


def after(watch: Watch, clock: Clock, seconds: float) -> Sample:
    clock.move(seconds)
    return watch.look(clock.monotonic())


def test_throughput_and_lateness_are_those_since_it_was_watched(
    clock: Clock, queue: ClockedQueue
) -> None:
    watch = Watch(queue)
    beat(queue, "a", (5, 1000), (None, 7))
    first = watch.look(clock.monotonic())
    assert (first.per_second, first.p50_ms, first.p99_ms) == (None, None, None)
    beat(queue, "a", (5, 1090), (20, 10), (None, 7))
    second = after(watch, clock, 10)
    assert (second.per_second, second.p50_ms, second.p99_ms) == (10, 5, 20)


def test_a_worker_that_starts_meanwhile_counts_and_one_that_has_signed_off_does_not(
    clock: Clock, queue: ClockedQueue
) -> None:
    watch = Watch(queue)
    beat(queue, "old", (5, 1000))
    watch.look(clock.monotonic())
    queue.sign_off("old")
    beat(queue, "new", (1, 40))
    assert after(watch, clock, 2).per_second == 20


def test_what_is_older_than_a_minute_is_forgotten(clock: Clock, queue: ClockedQueue) -> None:
    watch = Watch(queue)
    for n in range(1, 200):
        if n < 20:
            beat(queue, "a", (1, 100 * n))
        sample = after(watch, clock, 1)
    assert sample.per_second == 0
    assert sample.p99_ms is None
    assert len(watch._seen) <= WINDOW_SECONDS + 2


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


def test_lateness_beyond_the_last_step_is_told_and_json_has_no_infinity(
    clock: Clock, queue: ClockedQueue
) -> None:
    watch = Watch(queue)
    watch.look(clock.monotonic())
    beat(queue, "a", (None, 1))
    sample = after(watch, clock, 1)
    assert sample.late(sample.p50_ms) == "> 1 h"
    assert sample.row()["late_p50_ms"] is None


def test_a_worker_of_the_previous_version_tells_nothing_of_lateness(
    clock: Clock, queue: ClockedQueue
) -> None:
    queue.beat("a", {"up": False, "holds": 3, "oldest_seconds": 2})
    sample = Watch(queue).look(clock.monotonic())
    assert [sample.state(worker) for worker in sample.workers] == ["down"]
    assert sample.row()["workers"] == 1
