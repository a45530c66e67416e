"""What it takes to delete old orders: batched deletes against partitions that are dropped.

    python -m benchmarks.retention [--orders 4000000] [--seconds 8]

Half of the orders are old. Each has three items, two events, and four of five a payment. Creating and
cancelling orders is measured in this process, first beside another one that deletes, with a tenth of the
orders. Afterwards as many new orders are added, which shows whether the room is used again. With
partitions, an idempotency key and a provider's reference are unique in one partition only.
"""

import argparse
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.process import BaseProcess as Process
from statistics import median
from typing import Any

import psycopg
from uuid_utils import uuid7

from benchmarks.load import measured
from benchmarks.report import Report
from benchmarks.scene import Scene, scene
from orders.bootstrap import bootstrap
from orders.config import Settings
from orders.order.domain import NewOrder
from orders.retention.flow import Pruner
from orders.sql.database import autocommit
from orders.sql.ids import first_id_from
from orders.sql.statements import FIRST
from worker import Task

DAYS, PARTITIONS, SLICE = 365, 24, 100_000
SKUS, BATCH_SIZE, ROUNDS = 1000, 500, 4
#: How long the other process may take to begin.
START_SECONDS = 3
#: The tables of an order, and what each is partitioned by.
TABLES = {
    "orders": "id",
    "order_items": "order_id",
    "order_events": "order_id",
    "payments": "order_id",
}

AT = "(%(since)s::timestamptz + n * %(step)s::interval)"
ID = (
    f"(lpad(to_hex((extract(epoch FROM date_trunc('milliseconds', {AT})) * 1000)::bigint), 12, '0') "
    "|| '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid"
)
CLIENT = "(SELECT min(id::text)::uuid FROM api_clients)"
#: Orders from number to number, four of five paid, the others cancelled.
FILL = (
    (
        f"CREATE TEMP TABLE new AS SELECT n, {AT} AS at, {ID} AS id, {CLIENT} AS client "
        "FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"
    ),
    (
        "INSERT INTO orders (id, client_id, currency, total_minor, created_at, timeout_ms, "
        "idempotency_key, fingerprint) SELECT id, client, 'EUR', 3750, at, 1800000, "
        "md5(at::text || n), '2:' || repeat('f', 62) FROM new"
    ),
    (
        "INSERT INTO order_items SELECT id, 'sku-' || (n * 7 + item * 31) %% 1000, 1, 1250 "
        "FROM new, generate_series(1, 3) AS item"
    ),
    (
        "INSERT INTO order_events (order_id, client_id, type, at, data) "
        "SELECT id, client, 'order.created', at, '{}' FROM new"
    ),
    (
        "INSERT INTO order_events (order_id, client_id, type, at, data, expires_at, version) "
        "SELECT id, client, CASE WHEN n %% 5 > 0 THEN 'order.paid' ELSE 'order.cancelled' END, "
        "at + interval '1 minute', '{\"reason\": \"requested\"}', at + interval '30 minutes', 2 FROM new"
    ),
    (
        "INSERT INTO payments (id, order_id, provider, reference, amount_minor, currency, status, "
        "created_at, client_id) SELECT gen_random_uuid(), id, 'card', 'pi_' || md5(at::text || n), 3750, "
        "'EUR', 'applied', at, client FROM new WHERE n %% 5 > 0"
    ),
    "DROP TABLE new",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Deletes against partitions.")
    parser.add_argument("--orders", type=int, default=4_000_000)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--kinds", nargs="*", default=["beside", "deletes", "partitions"])
    options = parser.parse_args()
    report: Report | None = None
    for kind in options.kinds:
        with scene() as stage:
            report = report or Report("retention", stage.settings())
            shop = Shop(stage)
            if kind == "beside":
                _beside(shop, report, options.orders // 10, options.seconds)
            else:
                _measure(kind, shop, report, options.orders, options.seconds)
    assert report is not None
    report.save()


def _measure(kind: str, shop: "Shop", report: Report, count: int, seconds: float) -> None:
    now = datetime.now(UTC)
    since, step = now - timedelta(days=2 * DAYS), timedelta(days=2 * DAYS) / count
    if kind == "partitions":
        shop.partition(since)
    shop.fill(since, step, count)
    shop.run("VACUUM ANALYZE")
    report.add(f"{kind}: before", **shop.load(seconds), gigabytes=shop.gigabytes())
    if kind == "partitions":
        with shop.beside(_drop) as process:
            report.add("partitions: while half are dropped", **shop.load(seconds))
            process.join()
    else:
        with shop.snapshot():
            report.add("deletes: half of them, beside an old snapshot", **shop.delete(count // 4))
        report.add("deletes: the rest of them", **shop.delete(count))
    began = time.perf_counter()
    shop.run("VACUUM")
    vacuum_s = time.perf_counter() - began
    report.add(f"{kind}: half are gone", gigabytes=shop.gigabytes(), vacuum_s=vacuum_s)
    shop.fill(now, timedelta(milliseconds=1), count // 2)
    shop.run("VACUUM ANALYZE")
    report.add(f"{kind}: as many new ones", **shop.load(seconds), gigabytes=shop.gigabytes())


def _beside(shop: "Shop", report: Report, count: int, seconds: float) -> None:
    now = datetime.now(UTC)
    shop.fill(now - timedelta(days=2 * DAYS), timedelta(days=2 * DAYS) / count, count)
    shop.run("VACUUM ANALYZE")
    shop.load(seconds)
    for _ in range(ROUNDS):  # in turn, because others may use this machine
        report.add("beside: nothing is deleted", **shop.load(seconds))
        for rate in (100, 500):
            with shop.beside(_delete, rate):
                time.sleep(START_SECONDS)
                report.add(f"beside: {rate} a second are deleted", **shop.load(seconds))


class Shop:
    """A database with many orders, and the service on it."""

    def __init__(self, stage: Scene) -> None:
        self._stage = stage
        self._settings = Settings(
            database_url=stage.database_url,
            redis_url=stage.redis_url,
            order_timeout_seconds=0.001,
            order_timeout_min_seconds=0.001,
            max_unpaid_orders=0,
            max_held_pieces=0,
            retention_days=DAYS,
        )
        self._services = bootstrap(self._settings)
        key = self._services.clients.create_key("bench", ["orders"])
        client = self._services.clients.authenticate(key)
        assert client is not None
        self._client = client.id
        for n in range(SKUS):
            self._services.stock.set(f"sku-{n}", on_hand=10**9, price_minor=1, currency="EUR")

    def run(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._stage.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def fill(self, since: datetime, step: timedelta, count: int) -> None:
        """Add orders, one after each step of time."""
        began = time.perf_counter()
        for first in range(0, count, SLICE):
            numbers = {"first": first, "last": min(count, first + SLICE) - 1}
            with psycopg.connect(self._stage.dsn) as connection:
                for statement in FILL:
                    values = {**numbers, "since": since, "step": step}
                    connection.execute(statement.encode(), values)
        print(f"{count} orders in {time.perf_counter() - began:.0f} s", flush=True)

    def gigabytes(self) -> float:
        """What the tables of orders take, with their indexes."""
        [[size]] = self.run(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND "
            "relnamespace = 'public'::regnamespace AND relname ~ %(names)s",
            names=f"^({'|'.join(TABLES)})(_[0-9]+)?$",
        )
        return float(size) / 1e9

    def load(self, seconds: float) -> dict[str, float]:
        """Create and cancel orders, one batch after the other."""
        orders, until = self._services.orders, time.monotonic() + seconds
        creating: list[float] = []
        cancelling: list[float] = []
        while time.monotonic() < until:
            ids = []
            for _ in range(BATCH_SIZE):
                began = time.perf_counter()
                skus = random.sample(range(SKUS), 3)
                new = NewOrder(
                    client_id=self._client,
                    key=str(uuid7()),
                    fingerprint="2:" + 62 * "f",
                    quantities={f"sku-{n}": 1 for n in skus},
                )
                ids.append(orders.place(new).order.id)
                creating.append(time.perf_counter() - began)
            time.sleep(0.002)
            began = time.perf_counter()
            with autocommit(self._services.engine) as connection:
                assert not orders.expire(connection, ids)
            cancelling.append(time.perf_counter() - began)
        return {
            "create_ms": 1000 * median(creating),
            "create_p99_ms": measured(creating, seconds).p99_ms,
            "create_max_ms": 1000 * max(creating),
            "cancelled_per_s": BATCH_SIZE / median(cancelling),
        }

    def delete(self, most: int) -> dict[str, float]:
        """Delete as fast as it goes, in this process."""
        found, after = 0, FIRST.id
        began = time.perf_counter()
        while found < most:
            deleted = self._services.retention.delete(after, BATCH_SIZE, datetime.now(UTC))
            found += deleted.orders
            if deleted.last_id is None:
                break
            after = deleted.last_id
        return {"deleted_per_s": found / (time.perf_counter() - began)}

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Nothing that is deleted meanwhile can be vacuumed."""
        with psycopg.connect(self._stage.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1 FROM orders LIMIT 1")
            yield

    @contextmanager
    def beside(self, what: Callable[..., None], per_second: int = 0) -> Iterator[Process]:
        """Have another process delete meanwhile."""
        settings = replace(self._settings, retention_per_second=per_second)
        process = get_context("spawn").Process(target=what, args=(settings,))
        process.start()
        try:
            yield process
        finally:
            process.terminate()
            process.join()

    def partition(self, since: datetime) -> None:
        """Make the tables anew, in partitions by the time in an order's id."""
        months = [since + n * timedelta(days=2 * DAYS) / PARTITIONS for n in range(1, PARTITIONS)]
        bounds = ["MINVALUE", *(f"'{first_id_from(each)}'" for each in months), "MAXVALUE"]
        self.run("CREATE SCHEMA plain")
        self.run("ALTER TABLE payment_entries DROP CONSTRAINT fk_payment_entries_payment_id")
        for table in TABLES:
            self.run(f"ALTER TABLE {table} SET SCHEMA plain")
        for table, column in TABLES.items():
            self.run(
                f"CREATE TABLE {table} (LIKE plain.{table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) "
                f"PARTITION BY RANGE ({column})"
            )
            for n, (start, end) in enumerate(pairwise(bounds)):
                self.run(
                    f"CREATE TABLE {table}_{n} PARTITION OF {table} FOR VALUES FROM ({start}) TO ({end})"
                )
            indexes = self.run(
                "SELECT indexdef FROM pg_indexes WHERE schemaname = 'plain' AND tablename = %(t)s",
                t=table,
            )
            for [index] in indexes:
                is_visible = re.search(rf"\b{column}\b", index.partition("USING")[2])
                kind = "UNIQUE " if is_visible else ""  # in one partition
                self.run(index.replace("plain.", "").replace("UNIQUE ", kind))
        self.run("CREATE SEQUENCE order_events_id_seq")
        self.run("ALTER TABLE order_events ALTER id SET DEFAULT nextval('order_events_id_seq')")


def _delete(settings: Settings) -> None:
    services = bootstrap(settings)
    run = Pruner(services)
    while again := run(Task("benchmark", due_at_ms=round(1000 * time.time()))):
        time.sleep(again.delay_ms / 1000)


def _drop(settings: Settings) -> None:
    with psycopg.connect(
        settings.database_url.replace("+psycopg", ""), autocommit=True
    ) as connection:
        began = time.perf_counter()
        for n in range(PARTITIONS // 2):
            for table in reversed(TABLES):
                connection.execute(f"ALTER TABLE {table} DETACH PARTITION {table}_{n} CONCURRENTLY")
                connection.execute(f"DROP TABLE {table}_{n}")
        print(f"dropped in {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
