"""What a queue in several shards does, each on a Valkey of its own.

    python -m benchmarks.shards [--orders 20000] [--tasks 20000] [--repetitions 3]

One worker drains due orders of three items, as in `benchmarks.drain`; this process schedules tasks, 500 at a time. All
servers and processes share this machine's cores. Stock and events are asserted after every repetition.
"""

import argparse
import time

from uuid_utils import uuid7

from benchmarks.report import Report
from benchmarks.scene import Scene, scene
from worker.queue.connection import servers_of
from worker.queue.formats import SLICE

SHARDS = (1, 2, 4, 8)
#: When the tasks are due, so far ahead that no worker claims them: ms since the epoch.
LATER_MS = 4_000_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="A queue in several shards.")
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("shards", stage.settings())
        for _ in range(options.repetitions):
            for shards in SHARDS:
                with stage.spread(shards) as spread:
                    ids = spread.load(options.orders)
                    seconds = spread.drain(spread.schedule(ids), workers=1, threads=1)
                    spread.assert_drained()
                    report.add(
                        f"{shards} shard{'s' * (shards > 1)}",
                        drained_per_s=len(ids) / seconds,
                        scheduled_per_s=options.tasks / scheduling(spread, options.tasks),
                    )
        report.save()


def scheduling(stage: Scene, count: int) -> float:
    """How many seconds it takes to schedule so many tasks."""
    queue = stage.queue()
    for server in servers_of(stage.client()):
        server.flushall()
    tasks = [(str(uuid7()), LATER_MS, b"") for _ in range(count)]
    start = time.perf_counter()
    for first in range(0, count, SLICE):
        queue.schedule_many(tasks[first : first + SLICE])
    seconds = time.perf_counter() - start
    assert queue.stats().scheduled == count
    return seconds


if __name__ == "__main__":
    main()
