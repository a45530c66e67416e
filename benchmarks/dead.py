"""Commands on many dead letters: their duration, their memory, and how long one script occupies Redis.

    python -m benchmarks.dead [--letters 100000]

Each letter has 1 KB of error and 1 KB of payload; there are two kinds of errors, half of each. The
longest script comes from Redis's slow log, which counts wall-clock time: it includes the time that
other programs had the processor, and the copying of memory while Redis rewrites its append-only file.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from benchmarks.report import Report
from benchmarks.scene import Scene, scene
from worker import Task

KB = 1000
#: Faster scripts are not recorded.
SLOW_US = 100
#: Runs a command, then prints its peak memory.
CHILD = """
import re, sys
from pathlib import Path
from worker.cli import main
status = main(sys.argv[1:])
sys.stderr.write(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
sys.exit(status)
"""
LOOKING = [
    "stats",
    "workers",
    "stats --watch --count 1",
    "dead list",
    "dead list --reason nothing",
    "dead list --error TimeoutError --limit 1000000 --json",
    "dead purge --all --dry-run",
]
CHANGING = [
    "dead requeue --reason often",
    "dead purge --error TimeoutError",
    "dead requeue --all",
    "dead purge --all",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Commands on many dead letters.")
    parser.add_argument("--letters", type=int, default=100_000)
    options = parser.parse_args()
    with scene() as stage, stage.client() as client:
        report = Report("dead", stage.settings())
        client.config_set("slowlog-log-slower-than", SLOW_US)
        client.config_set("slowlog-max-len", 1_000_000)
        bury(stage, client, options.letters)
        for command in LOOKING:
            measure(report, stage, client, command)
        for command in CHANGING:
            bury(stage, client, options.letters)
            measure(report, stage, client, command)
        report.save()


def bury(stage: Scene, client: redis.Redis, count: int) -> None:
    """Fill the orders' queue with so many dead letters and nothing else."""
    client.flushall()
    queue = stage.queue()
    queue.schedule_many((f"task-{n}", 1, b"p" * KB) for n in range(count))
    while tasks := queue.claim(500, 600_000).tasks:
        queue.dead_letter([_burial(task) for task in tasks])


def _burial(task: Task) -> tuple[Task, str, BaseException]:
    if int(task.id[-1]) % 2:
        return task, "failed too often", ValueError("e" * KB)
    return task, "killed its worker", TimeoutError("e" * KB)


def measure(report: Report, stage: Scene, client: redis.Redis, command: str) -> None:
    """Run a command in its own process."""
    client.slowlog_reset()
    began = time.monotonic()
    words: Sequence[str] = [*command.split(), "--queue", "order-timeout"]
    if "--all" in words or command in CHANGING:
        words = [*words, "--yes"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *words],
        env={**stage.env, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - began
    slow: Any = client.slowlog_get(1_000_000)
    scripts = [call["duration"] for call in slow if call["command"].startswith(b"EVALSHA")]
    longest = max(scripts, default=SLOW_US)
    report.add(
        command, seconds=seconds, longest_script_ms=longest / 1000, rss_mib=int(done.stderr) / 1024
    )


if __name__ == "__main__":
    main()
