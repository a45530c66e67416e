"""What a batch costs on a database that was never analysed, and on the same one after ANALYZE.

    python -m benchmarks.cold [--orders 20000] [--repetitions 3]

Each order has three items. A database that was just migrated, restored or upgraded has no
statistics until autovacuum has run; here autovacuum is off.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import psycopg

from benchmarks.report import Report
from benchmarks.scene import Scene, scene
from orders.bootstrap import bootstrap
from orders.config import Settings
from orders.sql.database import autocommit

SIZES = (1, 20, 500)
BATCHES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description="What a batch costs without statistics.")
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    for repetition in range(options.repetitions):
        with scene() as stage:
            if repetition == 0:
                report = Report("cold", stage.settings())
            _execute(stage, "ALTER SYSTEM SET autovacuum = off")
            _execute(stage, "SELECT pg_reload_conf()")
            ids = iter(stage.load(options.orders, paid_share=0, analyzed=False))
            cold = _measure(stage, ids)
            _execute(stage, "ANALYZE")
            analyzed = _measure(stage, ids)
            for size in SIZES:
                report.add(
                    f"a batch of {size}",
                    cold_ms=cold[size],
                    analyzed_ms=analyzed[size],
                    ratio=cold[size] / analyzed[size],
                )
    report.save()


def _measure(stage: Scene, ids: Iterator[str]) -> dict[int, float]:
    """The median time of a batch of each size, in ms."""
    services = bootstrap(Settings.from_env(stage.env))
    medians = {}
    for size in SIZES:
        times = []
        for _ in range(BATCHES):
            batch = [next(ids) for _ in range(size)]
            begun = time.perf_counter()
            with autocommit(services.engine) as connection:
                assert services.orders.expire(connection, batch) == {}
            times.append((time.perf_counter() - begun) * 1000)
        medians[size] = statistics.median(times)
    services.close()
    return medians


def _execute(stage: Scene, statement: str) -> None:
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


if __name__ == "__main__":
    main()
