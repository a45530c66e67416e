"""How late checks run, and what waiting costs.

    python -m benchmarks.lateness [--seconds 10] [--waiting 1000000] [--repetitions 3]

Due times are spread evenly. With a handler that only reads the clock, lateness is measured from the
due time to the start of the handler, as it is for the peers. With the orders' handler it is measured
from the deadline to the cancelling statement, by the database's clock, in whole milliseconds.
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from uuid_utils import uuid7

from benchmarks import peers
from benchmarks.noop import QUEUE
from benchmarks.report import Report
from benchmarks.scene import FAR_AWAY_MS, Scene, cpu_seconds, scene
from devtools.processes import Process, python, wait_until
from worker import DelayQueue
from worker.runtime.heartbeat import BEAT_SECONDS

#: From scheduling the first task to its due time.
HEAD_START_SECONDS = 5.0
RATES = (100, 1000)
#: How long a worker takes to come to rest after its start.
SETTLE_SECONDS = 6.0
#: How many workers wait for the same tasks, and how many of these come in a second.
HERDS, HERD_RATE = (10, 30), 50


def main() -> None:
    parser = argparse.ArgumentParser(description="How late a check comes.")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("lateness", stage.settings())
        for _ in range(options.repetitions):
            for rate in RATES:
                _measure(report, stage, rate, options.seconds, 0)
            for rate in RATES:
                _measure(report, stage, rate, options.seconds, options.waiting)
            for rate in RATES:
                report.add(f"orders cancelled, {rate}/s", **orders(stage, rate, options.seconds))
            for name, measure in peers.LATENESS.items():
                late, cpu_percent = measure(stage, RATES[0], options.seconds)
                costs = {**spread(late), "cpu_percent": cpu_percent}
                report.add(f"{name}, {RATES[0]}/s", **costs)
            report.add("orders' worker, idle", **idle(stage, options.seconds))
            for workers in HERDS:
                costs = noop(stage, HERD_RATE, options.seconds, workers=workers)
                report.add(f"this project, {HERD_RATE}/s, {workers} workers", **costs)
        report.save()


def _measure(report: Report, stage: Scene, rate: int, seconds: float, waiting: int) -> None:
    among = f", {waiting:,} others waiting" if waiting else ""
    report.add(f"this project, {rate}/s{among}", **noop(stage, rate, seconds, waiting))


def spread(late_ms: Sequence[float]) -> dict[str, float]:
    """Percentiles of lateness in ms; below 0 is early."""
    cuts = statistics.quantiles(late_ms, n=100)
    return {
        "min_ms": min(late_ms),
        "p10_ms": cuts[9],
        "p50_ms": cuts[49],
        "p90_ms": cuts[89],
        "p99_ms": cuts[98],
        "max_ms": max(late_ms),
    }


def due_times(rate: int, seconds: float) -> list[int]:
    """Times spread evenly, in ms since the epoch."""
    start = (time.time() + HEAD_START_SECONDS) * 1000
    return [round(start + n * 1000 / rate) for n in range(round(rate * seconds))]


def noop(
    stage: Scene, rate: int, seconds: float, waiting: int = 0, *, workers: int = 1
) -> dict[str, float]:
    """How late a handler that does nothing is called, and what that costs the worker, the first of several."""
    client = stage.client()
    client.flushall()
    queue = DelayQueue(client, QUEUE)
    queue.schedule_many((str(uuid7()), FAR_AWAY_MS, b"") for _ in range(waiting))
    record = stage.folder / "late.jsonl"
    record.unlink(missing_ok=True)
    logs = [stage.folder / f"noop {n}.log" for n in range(workers)]
    env = {**stage.env, "LATENESS_RECORD": str(record)}
    command = ["worker", "run", "benchmarks.noop:flows"]
    processes = [python(command, env, log) for log in logs]
    try:
        wait_until(lambda: all(b'"available"' in log.read_bytes() for log in logs), "the workers")
        if workers > 1:
            time.sleep(BEAT_SECONDS + 2)  # each learns of the others with its next heartbeat
        due = due_times(rate, seconds)
        queue.schedule_many((str(uuid7()), due_at_ms, b"") for due_at_ms in due)
        with _costs(processes[0], client, due) as costs:
            wait_until(
                lambda: queue.stats().scheduled == waiting and queue.stats().leased == 0,
                "all to be handled",
                seconds=seconds + 60,
                every=0.5,
            )
    finally:
        for process in processes:
            process.stop()
        for log in logs:
            log.unlink()
    late = [value for line in record.read_text().splitlines() for value in json.loads(line)]
    assert len(late) == len(due), f"{len(late)} of {len(due)} handled"
    return {**spread(late), **costs}


def orders(stage: Scene, rate: int, seconds: float) -> dict[str, float]:
    """How late unpaid orders are cancelled, by the database's clock, and what that costs the worker."""
    ids = stage.load(round(rate * seconds), paid_share=0)
    stage.client().flushall()
    due = due_times(rate, seconds)
    deadlines = dict(zip(ids, due, strict=True))
    stage.set_deadlines(deadlines)  # before a worker runs, which would sweep them
    with stage.workers(1, 1) as [process]:
        stage.queue().schedule_many((order_id, at, b"") for order_id, at in deadlines.items())
        with _costs(process, stage.client(), due) as costs:
            wait_until(
                lambda: stage.count("FROM unpaid_orders") == 0,
                "all to be cancelled",
                seconds=seconds + 60,
                every=0.5,
            )
    stage.assert_drained()
    return {**spread(stage.lateness_ms()), **costs}


def idle(stage: Scene, seconds: float) -> dict[str, float]:
    """What a worker with nothing to do costs, once it has connected."""
    client = stage.client()
    client.flushall()
    stage.load(1000, paid_share=1)
    with stage.workers(1, 1) as [process]:
        time.sleep(SETTLE_SECONDS)
        monitor: Any = stage.client().monitor()  # type: ignore[no-untyped-call]
        with monitor:
            start, cpu = time.perf_counter(), cpu_seconds(process.pid)
            time.sleep(seconds)
            seconds, cpu = time.perf_counter() - start, cpu_seconds(process.pid) - cpu
            client.echo("the end")
            sent: Counter[str] = Counter()
            for command in iter(monitor.next_command, None):
                if "the end" in command["command"]:
                    del sent[command["client_port"]]  # the benchmark's own connection
                    break
                sent[command["client_port"]] += command["client_type"] != "lua"
    return {"cpu_percent": 100 * cpu / seconds, "redis_commands_per_s": sent.total() / seconds}


@contextmanager
def _costs(
    process: Process, client: redis.Redis, due: Sequence[float]
) -> Iterator[dict[str, float]]:
    """A worker's share of one core, and the calls to Redis of all of them, which are scripts.

    Both from the time that the first task is due.
    """
    costs: dict[str, float] = {}
    time.sleep(max(0.0, due[0] / 1000 - time.time()))
    start, cpu, calls = time.perf_counter(), cpu_seconds(process.pid), _scripts(client)
    yield costs
    seconds = time.perf_counter() - start
    costs["cpu_percent"] = 100 * (cpu_seconds(process.pid) - cpu) / seconds
    calls = _scripts(client) - calls
    costs["redis_commands_per_s"] = calls / seconds
    costs["redis_commands_per_task"] = calls / len(due)


def _scripts(client: redis.Redis) -> int:
    statistics_: Any = client.info("commandstats")
    return int(statistics_.get("cmdstat_evalsha", {"calls": 0})["calls"])


if __name__ == "__main__":
    main()
