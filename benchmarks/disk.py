"""How much PostgreSQL writes and keeps for orders, from placing to cancelling them.

    python -m benchmarks.disk [--orders 20000]

Each order has three items, an idempotency key and two events. Tables and indexes are measured as the
run left them, dead rows included; their sizes and the write-ahead log are scaled to a million orders.
"""

import argparse
import random
from typing import Any

import psycopg

from benchmarks import raw
from benchmarks.report import Report
from benchmarks.scene import ITEMS, SKUS, Scene, scene

TABLES = ("orders", "unpaid_orders", "order_items", "order_events")


def main() -> None:
    parser = argparse.ArgumentParser(description="What orders take of PostgreSQL's disk.")
    parser.add_argument("--orders", type=int, default=20_000)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("disk", stage.settings())
        stage.load(0)
        [[customer]] = stage.rows("SELECT id FROM api_clients")
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            written = [_log_position(stage)]
            _place(connection, customer, options.orders)
            written.append(_log_position(stage))
            raw.statements(stage, _unpaid(stage), 1)
            written.append(_log_position(stage))
            scale = 1_000_000 / options.orders / 1_000_000  # MB for a million orders
            for table in TABLES:
                [[heap, indexes]] = stage.rows(
                    f"SELECT pg_table_size('{table}'), pg_indexes_size('{table}')"
                )
                row = f"{table}, a million orders"
                report.add(row, table_mb=heap * scale, indexes_mb=indexes * scale)
            report.add(
                "all of it",
                table_mb=sum(row["table_mb"][0] for row in report.figures.values()),
                indexes_mb=sum(row["indexes_mb"][0] for row in report.figures.values()),
            )
            report.add("a million orders placed", log_mb=(written[1] - written[0]) * scale)
            report.add("a million orders expired", log_mb=(written[2] - written[1]) * scale)
        report.save()


def _place(connection: psycopg.Connection[Any], customer: Any, count: int) -> None:
    for _ in range(count):
        skus = random.sample(range(SKUS), ITEMS)
        items = [{"sku": f"sku-{sku}", "quantity": 1} for sku in skus]
        raw.create(connection, str(customer), items, timeout_ms=1)


def _unpaid(stage: Scene) -> list[str]:
    return [str(row[0]) for row in stage.rows("SELECT order_id FROM unpaid_orders")]


def _log_position(stage: Scene) -> float:
    """How many bytes the write-ahead log has had."""
    [[position]] = stage.rows("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")
    return float(position)


if __name__ == "__main__":
    main()
