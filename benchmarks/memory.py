"""How much of Redis's memory a waiting check takes up, and how much memory a worker needs for a million.

python -m benchmarks.memory [--checks 1000000]
"""

import argparse
from pathlib import Path
from typing import Any

import redis
from uuid_utils import uuid7

from benchmarks.report import Report
from benchmarks.scene import FAR_AWAY_MS, Scene, scene
from devtools.processes import Process, wait_until


def main() -> None:
    parser = argparse.ArgumentParser(description="What waiting checks take of memory.")
    parser.add_argument("--checks", type=int, default=1_000_000)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("memory", stage.settings())
        for count in (options.checks // 10, options.checks):
            ids = [str(uuid7()) for _ in range(count)]
            bare = _bytes_each(stage.client(), ids)
            own = _bytes_each(stage.client(), ids, stage)
            report.add(f"a bare zset member, of {count:,}", bytes_each=bare)
            report.add(f"a waiting check, of {count:,}", bytes_each=own, ratio=own / bare)
        stage.load(1000)
        stage.client().flushall()
        queue = stage.queue()
        with stage.workers(1, 1) as [process]:
            report.add("worker with nothing to do", rss_mib=_rss_mib(process))
            queue.schedule_many((order_id, FAR_AWAY_MS, b"") for order_id in ids)
            report.add(f"worker, {len(ids):,} waiting", rss_mib=_rss_mib(process))
            queue.schedule_many((order_id, 1000, b"") for order_id in ids)
            wait_until(lambda: not queue.stats().scheduled, "the drain", seconds=600, every=0.5)
            report.add(f"worker, {len(ids):,} due and drained", rss_mib=_rss_mib(process))
        report.save()


def _bytes_each(client: redis.Redis, ids: list[str], stage: Scene | None = None) -> float:
    """Bytes of Redis's memory for one member or check."""
    before = emptied_bytes(client)
    if stage is not None:
        stage.queue().schedule_many((order_id, FAR_AWAY_MS, b"") for order_id in ids)
    else:
        for start in range(0, len(ids), 500):
            client.zadd("bare", dict.fromkeys(ids[start : start + 500], FAR_AWAY_MS))
    return (used_bytes(client) - before) / len(ids)


def emptied_bytes(client: redis.Redis) -> int:
    """Delete everything and wait until it is freed; return what Redis still uses."""
    client.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]
    return used_bytes(client)


def used_bytes(client: redis.Redis) -> int:
    """The memory of Redis's keys."""
    memory: Any = client.info("memory")
    return int(memory["used_memory_dataset"])


def _rss_mib(process: Process) -> float:
    """The peak resident memory so far, from /proc."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
