"""What an order costs each part; how long each step takes a worker, and what it achieves with them.

    python -m benchmarks.capacity [--requests 2000] [--orders 40000] [--seconds 5] [--repetitions 6]

Eight connections place orders of three items over HTTP, read and pay them; four place orders of one SKU straight in the
database. Then this process claims, handles and acks batches, one after another, with the service's own code. At last a real
worker drains a backlog, and cancels orders that are due one after another: `benchmarks.simulate` must reproduce that from
the steps. CPU time is what the kernel counted for all processes of a part.
"""

import argparse
import itertools
import math
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from uuid import uuid4

from benchmarks import lateness, raw
from benchmarks.load import load, request
from benchmarks.report import Report
from benchmarks.scene import EARLIER, ITEMS, SKUS, Scene, cpu_seconds, scene
from devtools.accounts import create_key
from orders.config import Settings
from orders.timeouts import MOST_LINES, flows
from orders.wiring import bootstrap
from worker import Settlement, Verb
from worker.watch.logs import configure_logging

CONNECTIONS, LEASE_MS = 8, 60_000
#: How many orders are in a batch, how many of these batches are measured, and how long everything rests before each, in ms:
#: whoever has rested is slower at first. Of up to `MOST_LINES` orders, each is a line in the log.
BATCHES = (
    *((1, 500, 10), (1, 1000, 0)),
    *((MOST_LINES, 200, 0), (MOST_LINES + 1, 200, 0)),
    (500, 60, 0),
)
#: Of the times that a step took. The first tenth of the batches warms up.
PERCENTILES = (10, 50, 90, 99)
#: Of an order's lateness, from a second after the first was due, when the worker has warmed up.
LATENESS = (50, 90, 99)
CANCELLED = "FROM order_events WHERE type = 'order.cancelled'"
WARM = (
    f"SELECT extract(epoch FROM at - expires_at) * 1000 {CANCELLED} AND expires_at >= "
    f"(SELECT min(expires_at) + interval '1 second' {CANCELLED})"
)
#: Workers and threads of each that drain a backlog.
CREWS = ((1, 1), (1, 2), (2, 1))
#: Orders a second that are due one after another.
RATES = (100, 1000, 5000)
#: The rates that machines are counted for. Of the orders this share is paid, all are read once, the others expire.
PEAKS, PAID = (1_000, 10_000, 100_000, 583_000, 1_000_000), 0.8
#: A machine, and how busy it may be.
CORES, BUSY = 32, 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description="What an order costs each part.")
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--orders", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=6)
    options = parser.parse_args()
    with scene() as stage, _logging(stage):
        costs, steps = Report("capacity", stage.settings()), Report("steps", stage.settings())
        for _ in range(options.repetitions):
            _requests(stage, costs, options.requests)
            _one_sku(stage, costs, options.seconds)
            for size, most, rest_ms in BATCHES:
                count = min(most, options.orders // size)
                _batches(stage, costs, steps, size, count, rest_ms=rest_ms)
            _whole(stage, steps, options.orders, options.seconds)
        for report in (costs, steps, _machines(costs)):
            report.save()


def _machines(costs: Report) -> Report:
    """What so many orders a second would take: what each costs here, times the rate."""
    rows = {
        "API: create": 1,
        "API: read": 1,
        "API: pay": PAID,
        f"worker: expire, {MOST_LINES} in a batch": 1 - PAID,
    }
    machines = Report("machines", costs.settings)
    for rate in PEAKS:
        total = {
            column: rate * sum(share * costs.median(row, column) for row, share in rows.items())
            for column in ("python_us", "postgres_us", "redis_us", "log_bytes")
        }
        python, postgres, redis = (
            total[name] / 1e6 for name in ("python_us", "postgres_us", "redis_us")
        )
        primaries = math.ceil(postgres / CORES / BUSY)
        machines.add(
            f"{rate:,} orders/s",
            python_cores=python,
            postgres_cores=postgres,
            redis_cores=redis,
            log_mb_per_s=total["log_bytes"] / 1e6,
            primaries=primaries,
            machines=2 * primaries + math.ceil((python + redis) / CORES / BUSY),
        )
    return machines


@contextmanager
def _logging(stage: Scene) -> Iterator[None]:
    """Log as a worker does."""
    with (stage.folder / "steps.log").open("w") as log:
        with redirect_stderr(log):
            configure_logging()
        yield


def _whole(stage: Scene, steps: Report, orders: int, seconds: float) -> None:
    steps.add("a thread", wake_ms=_wake_ms())
    for workers, threads in CREWS:
        ids = stage.load(orders, paid_share=0)
        drained = stage.drain(stage.schedule(ids), workers, threads)
        stage.assert_drained()
        steps.add(f"drain, {workers} x {threads}", orders_per_s=orders / drained)
    for rate in RATES:
        lateness.orders(stage, rate, seconds + 1)
        late = [float(ms) + random.random() for (ms,) in stage.rows(WARM)]  # they are rounded down
        cuts = statistics.quantiles(late, n=100)
        late_ms = {f"late_p{cut}_ms": cuts[cut - 1] for cut in LATENESS}
        steps.add(f"due, {rate}/s", **late_ms)


def _wake_ms() -> float:
    """How much longer than it wanted to a thread waits for an event."""
    event, late = threading.Event(), []
    for _ in range(200):
        start = time.perf_counter()
        event.wait(0.01)
        late.append(1000 * (time.perf_counter() - start) - 10)
    return statistics.median(late)


@contextmanager
def _costing(
    stage: Scene, report: Report, row: str, count: int, pid: int | None = None
) -> Iterator[dict[str, float]]:
    """Add what each of so many orders takes in here, and what the block adds; the process ``pid`` does the work, or this one."""
    more: dict[str, float] = {}
    before = _spent(stage, pid)
    yield more
    spent = {name: (now - before[name]) / count for name, now in _spent(stage, pid).items()}
    report.add(row, **spent, **more)


def _spent(stage: Scene, pid: int | None) -> Mapping[str, float]:
    info = stage.client().info()
    [[data, written, size]] = stage.rows(
        "SELECT current_setting('data_directory'), pg_current_wal_lsn() - '0/0', "
        "pg_database_size(current_database())"
    )
    postmaster = int(Path(data, "postmaster.pid").read_text().split()[0])
    return {
        "python_us": 1e6 * (cpu_seconds(pid) if pid else time.process_time()),
        "postgres_us": 1e6 * cpu_seconds(postmaster),
        "redis_us": 1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]),
        "log_bytes": float(written),
        "disk_bytes": float(size),
    }


def _requests(stage: Scene, report: Report, count: int) -> None:
    stage.client().flushall()
    stage.load(EARLIER, paid_share=1)
    headers = {"Authorization": f"Bearer {create_key(stage.env, 'capacity', 'orders', 'payments')}"}
    with stage.api() as (port, server):

        def send(row: str, requests: Iterator[bytes], status: int) -> None:
            with _costing(stage, report, row, count, server.pid) as more:
                done = load(port, requests, status, CONNECTIONS, seconds=600)
                assert done.answered == count
                more["per_s"] = done.per_s

        load(port, (_place(headers) for _ in range(count // 3)), 201, CONNECTIONS, 600)
        stage.analyze()
        send("API: create", (_place(headers) for _ in range(count)), 201)
        ids = [
            str(row[0]) for row in stage.rows(f"SELECT order_id FROM unpaid_orders LIMIT {count}")
        ]
        send("API: read", (request("GET", f"/v1/orders/{each}", headers) for each in ids), 200)
        send("API: pay", (_pay(headers, each) for each in ids), 201)


def _place(headers: Mapping[str, str]) -> bytes:
    items = [{"sku": f"sku-{n}", "quantity": 1} for n in random.sample(range(SKUS), ITEMS)]
    return request(
        "POST", "/v1/orders", {**headers, "Idempotency-Key": uuid4().hex}, {"items": items}
    )


def _pay(headers: Mapping[str, str], order: str) -> bytes:
    body = {"provider": "bank", "reference": order, "amount_minor": 3750, "currency": "EUR"}
    return request("POST", f"/v1/orders/{order}/payments", headers, body)


def _one_sku(stage: Scene, costs: Report, seconds: float) -> None:
    stage.load(EARLIER, paid_share=1)
    [[client]] = stage.rows("SELECT id FROM api_clients")
    order = (str(client), [{"sku": "sku-1", "quantity": 1}])
    done = raw.orders(stage, itertools.repeat(order), 4, seconds / 2)
    costs.add("SQL: create, one SKU for all", per_s=done.per_s)


def _batches(
    stage: Scene, costs: Report, steps: Report, size: int, count: int, *, rest_ms: int
) -> None:
    queue = stage.schedule(stage.load(size * count, paid_share=0))
    queue.resume()
    services = bootstrap(Settings.from_env(stage.env))
    flow = flows(services)[0]
    took: dict[str, list[float]] = {"claim": [], "handle": [], "ack": []}
    began_ms = {}
    name = f"{size} in a batch" if not rest_ms else f"{size} every {rest_ms} ms"
    with _costing(stage, costs, f"worker: expire, {name}", size * count):
        for _ in range(count):
            time.sleep(rest_ms / 1000)
            marks = [time.perf_counter()]
            tasks = queue.claim(size, LEASE_MS).tasks
            began_ms[tasks[0].id] = 1000 * time.time()
            marks.append(time.perf_counter())
            assert not flow.handler(tasks)
            marks.append(time.perf_counter())
            queue.settle([Settlement(tasks, Verb.DONE)])
            marks.append(time.perf_counter())
            for each, (start, end) in zip(took.values(), itertools.pairwise(marks), strict=True):
                each.append(1000 * (end - start))
    services.engine.dispose()
    stage.assert_drained()
    query = f"SELECT order_id, extract(epoch FROM at) * 1000 {CANCELLED}"
    ended = {str(row[0]): float(row[1]) + 0.5 for row in stage.rows(query)}  # rounded down
    decided = [ended[first] - began for first, began in began_ms.items()][count // 10 :]
    figures: dict[str, float] = {}
    for step, all_ms in took.items():
        cuts = statistics.quantiles(all_ms[count // 10 :], n=100)
        figures |= {f"{step}_p{cut}_ms": cuts[cut - 1] for cut in PERCENTILES}
    share = statistics.fmean(decided) / statistics.fmean(took["handle"][count // 10 :])
    first_ms = sum(each[0] for each in took.values())
    steps.add(name, **figures, decided_share=share, first_ms=first_ms)


if __name__ == "__main__":
    main()
