"""A transaction that stays open for long, beside orders that are placed and expire.

    python -m benchmarks.snapshot [--rate 200] [--seconds 15] [--expired 200000] [--skus 500]
        [--repetitions 1] [--held 2]

While somebody holds a snapshot, PostgreSQL removes no row that was deleted since: what has expired stays in tables and indexes.
Orders that live for a second are placed at a steady rate, and a worker cancels them; afterwards the sweep's own statement is
timed. First as usual; then with a snapshot held, since when as many orders were placed and have expired as the rate makes in a
quarter of an hour; then as usual again. Lateness is by the database's clock.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from uuid import uuid4

import psycopg

from benchmarks.herd import HERD, SKUS, make_due
from benchmarks.lateness import spread
from benchmarks.report import Report
from benchmarks.scene import EARLIER, Scene, scene
from devtools.processes import wait_until
from orders.bootstrap import Services, bootstrap
from orders.config import Settings
from orders.order.domain import NewOrder
from orders.timeouts import timeout_flow
from worker import Flow

#: The orders that are placed live for so long.
LIVE_SECONDS = 1
#: How many are placed at a time at most.
CUSTOMERS = 4
#: How often the sweep is timed, when all orders have ended.
SWEEPS = 20
#: A worker to which the sweep is slow reads everything when it looks ahead, every 30 s, and in between what was due in the
#: five seconds before the last round.
READ_AGAIN_SECONDS = 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description="An old snapshot.")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--expired", type=int, default=200_000)
    parser.add_argument("--skus", type=int, default=SKUS)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--held", type=int, default=2)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("snapshot", stage.settings())
        stage.load(EARLIER, paid_share=1)
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            for statement in HERD:
                connection.execute(statement, {"count": options.expired, "skus": options.skus})
        stage.vacuum()
        settings = Settings.from_env(stage.env)
        services = bootstrap(settings)
        phase = partial(_phase, stage, services, options.rate, options.seconds, skus=options.skus)
        try:
            with stage.workers(1, 1):
                phase()  # warms up
                _add(report, "as usual", phase, options.repetitions)
                with psycopg.connect(stage.dsn) as reader:
                    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    reader.execute("SELECT count(*) FROM stock_items")
                    row = f"a snapshot held, {options.expired:,} expired since"
                    _touch_stock(stage, options.expired // options.skus)
                    _expire(stage, options.expired)
                    _add(report, row, phase, options.held)
                stage.vacuum()
                _add(report, "as usual", phase, options.repetitions)
        finally:
            services.close()
        report.save()


def _add(report: Report, row: str, phase: Callable[[], dict[str, float]], repetitions: int) -> None:
    for _ in range(repetitions):
        report.add(row, **phase())


def _touch_stock(stage: Scene, times: int) -> None:
    """Write each SKU's row as often as placing the orders would have."""
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        for _ in range(times):
            connection.execute("UPDATE stock_items SET reserved = reserved WHERE sku LIKE 'herd-%'")


def _expire(stage: Scene, count: int) -> None:
    """Have so many orders expire."""
    make_due(stage, count, time.time() - 2)
    wait_until(
        lambda: stage.count("FROM unpaid_orders") == 0, "the herd to expire", seconds=600, every=0.5
    )


def _phase(
    stage: Scene, services: Services, rate: float, seconds: float, *, skus: int
) -> dict[str, float]:
    [[client]] = stage.rows("SELECT id FROM api_clients LIMIT 1")
    start, flow = time.time(), timeout_flow(services)
    places: list[Future[float]] = []
    with ThreadPoolExecutor(CUSTOMERS) as customers:
        for n in range(round(seconds * rate)):
            time.sleep(max(0.0, start + n / rate - time.time()))
            places.append(
                customers.submit(
                    _place, services, str(client), f"herd-{n % skus}", start + n / rate
                )
            )
    took = [each.result() for each in places]
    wait_until(lambda: stage.count("FROM unpaid_orders") == 0, "the last", seconds=60, every=0.5)
    placed, late = spread(took), spread(stage.lateness_ms(since=start))
    return {
        "place_p50_ms": placed["p50_ms"],
        "place_p99_ms": placed["p99_ms"],
        "late_p50_ms": late["p50_ms"],
        "late_p99_ms": late["p99_ms"],
        "sweep_ms": statistics.median(_sweep(flow, -READ_AGAIN_SECONDS) for _ in range(SWEEPS)),
        "sweep_all_ms": statistics.median(_sweep(flow, None) for _ in range(SWEEPS)),
    }


def _place(services: Services, client: str, sku: str, at: float) -> float:
    """Place an order that was to be placed ``at``; return how long it took, in ms."""
    order = NewOrder(
        client_id=client,
        key=uuid4().hex,
        fingerprint="f",
        quantities={sku: 1},
        timeout_seconds=LIVE_SECONDS,
    )
    services.orders.place(order)
    return 1000 * (time.time() - at)


def _sweep(flow: Flow, after_seconds: float | None) -> float:
    """How long it takes to read what is overdue, in ms."""
    assert flow.sweep is not None
    start = time.perf_counter()
    next(iter(flow.sweep(after_seconds, 0.0)))
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
