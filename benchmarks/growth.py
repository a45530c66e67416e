"""Whether an order costs the same, however many others are waiting, and how much memory of Redis each of these takes.

    python -m benchmarks.growth [--most 10000000] [--orders 20000] [--repetitions 3]

The others wait in Redis; up to a million of them are in the database, too, with three items each.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import redis
from uuid_utils import uuid7

from benchmarks.lateness import noop
from benchmarks.report import Report
from benchmarks.scene import FAR_AWAY_MS, Scene, scene

LEAST = 10_000
MOST_ROWS = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="What an order costs among many.")
    parser.add_argument("--most", type=int, default=10_000_000)
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("growth", stage.settings())
        waiting = LEAST
        while waiting <= options.most:
            row = f"{waiting:,} waiting"
            for figures in _measure(stage, waiting, options.orders, options.repetitions):
                report.add(row, **figures)
            late = noop(stage, 100, 10, waiting)
            report.add(row, late_p99_ms=late["p99_ms"])
            waiting *= 10
        report.save()


def _measure(
    stage: Scene, waiting: int, count: int, repetitions: int
) -> Iterator[dict[str, float]]:
    ids = stage.load(count * repetitions)
    stage.add_waiting(min(waiting, MOST_ROWS))
    client = stage.client()
    client.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]
    before = _used_bytes(client)
    stage.queue().schedule_many((str(uuid7()), FAR_AWAY_MS, b"") for _ in range(waiting))
    yield {"bytes_each": (_used_bytes(client) - before) / waiting}
    for start in range(0, len(ids), count):
        batch = ids[start : start + count]
        begun = time.perf_counter()
        queue = stage.schedule(batch, among=waiting)
        scheduling = time.perf_counter() - begun
        yield {
            "drained_per_s": count / stage.drain(queue, 1, 2, among=waiting),
            "schedule_us": scheduling / count * 1e6,
        }
    stage.assert_drained(waiting=min(waiting, MOST_ROWS))


def _used_bytes(client: redis.Redis) -> int:
    """The memory of Redis's keys."""
    memory: Any = client.info("memory")
    return int(memory["used_memory_dataset"])


if __name__ == "__main__":
    main()
