"""How much of PostgreSQL's disk orders take up, from placing to cancelling them.

    python -m benchmarks.disk [--orders 20000]

Each has three items, an idempotency key and two events. Tables and indexes are measured as the run
left them, dead rows included, and the sizes are scaled to a million orders.
"""

import argparse
import random

import psycopg

from benchmarks import raw
from benchmarks.report import Report
from benchmarks.scene import ITEMS, SKUS, scene

TABLES = ("orders", "order_items", "order_events")


def main() -> None:
    parser = argparse.ArgumentParser(description="What orders take of PostgreSQL's disk.")
    parser.add_argument("--orders", type=int, default=20_000)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("disk", stage.settings())
        stage.load(0)
        [[customer]] = stage.rows("SELECT id FROM api_clients")
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            for _ in range(options.orders):
                skus = random.sample(range(SKUS), ITEMS)
                items = [{"sku": f"sku-{sku}", "quantity": 1} for sku in skus]
                raw.create(connection, str(customer), items, timeout_ms=1)
        raw.statements(stage, [str(row[0]) for row in stage.rows("SELECT id FROM orders")], 1)
        for table in TABLES:
            [[heap, indexes]] = stage.rows(
                f"SELECT pg_table_size('{table}'), pg_indexes_size('{table}')"
            )
            scale = 1_000_000 / options.orders / 1_000_000  # MB for a million orders
            report.add(
                f"{table}, a million orders", table_mb=heap * scale, indexes_mb=indexes * scale
            )
        report.add(
            "all of it",
            table_mb=sum(row["table_mb"][0] for row in report.figures.values()),
            indexes_mb=sum(row["indexes_mb"][0] for row in report.figures.values()),
        )
        report.save()


if __name__ == "__main__":
    main()
