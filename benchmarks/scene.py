"""The setting of every benchmark: real servers that persist what they commit, and orders to process."""

import contextlib
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psycopg
import redis
from uuid_utils import uuid7

from devtools.postgres import Postgres
from devtools.processes import Process, api, free_port, migrate, wait_until, worker
from devtools.valkey import Valkey
from orders.db.base import metadata
from orders.feature import features
from orders.queues import QUEUE
from worker import DelayQueue, connect

SKUS = 1000
ON_HAND = 1_000_000
ITEMS = 3
#: The share of orders that are paid before they are due. Their checks are scheduled all the same.
PAID_SHARE = 0.2
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO_MS = round(LONG_AGO.timestamp() * 1000)

#: Not due for as long as any benchmark runs.
FAR_AWAY_MS = 10_000_000_000_000
#: Paid orders that exist before others are placed: plans for empty tables are like no others.
EARLIER = 5_000

features()  # whose tables belong to the metadata
#: In an order that allows emptying them one by one.
TABLES = [table.name for table in reversed(metadata.sorted_tables)]

Row = Sequence[Any]

#: Unpaid orders that are due in a year, with their own stock.
WAITING = (
    (
        "INSERT INTO stock_items SELECT 'far-' || n, 2 * %(count)s, 0, 1250, 'EUR' "
        "FROM generate_series(0, 999) AS n"
    ),
    (
        "INSERT INTO orders (id, client_id, currency, total_minor, created_at, idempotency_key, "
        "fingerprint, timeout_ms) SELECT md5(n::text)::uuid, (SELECT id FROM api_clients), 'EUR', "
        "3750, now(), n::text, '', 31536000000 FROM generate_series(1, %(count)s) AS n"
    ),
    (
        "INSERT INTO unpaid_orders (order_id, client_id, expires_at, pieces) SELECT "
        "md5(n::text)::uuid, (SELECT id FROM api_clients), now() + interval '1 year', 3 "
        "FROM generate_series(1, %(count)s) AS n"
    ),
    (
        "INSERT INTO order_items SELECT md5(n::text)::uuid, 'far-' || (n + 7 * item) %% 1000, 1, 1250 "
        "FROM generate_series(1, %(count)s) AS n, generate_series(1, 3) AS item"
    ),
    (
        "UPDATE stock_items SET reserved = held.quantity FROM (SELECT sku, sum(quantity) AS quantity "
        "FROM order_items WHERE sku LIKE 'far-%%' GROUP BY sku) AS held WHERE held.sku = "
        "stock_items.sku"
    ),
)

#: As long as a real one.
FINGERPRINT = "2:" + 32 * "f"


@dataclass(frozen=True)
class Scene:
    """A Valkey and a migrated database."""

    database_url: str
    redis_url: str
    folder: Path

    @property
    def dsn(self) -> str:
        """The database's address for psycopg."""
        return self.database_url.replace("+psycopg", "")

    @property
    def env(self) -> dict[str, str]:
        """The environment of the service's processes."""
        return {
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "LOG_LEVEL": "INFO",
            # One client places all orders, as fast as they are answered.
            "RATE_LIMIT_PER_SECOND": "1000000",  # <throttling/>
            "MAX_UNPAID_ORDERS": "1000000000",  # <limits/>
            "MAX_HELD_PIECES": "1000000000",  # <limits/>
        }

    def client(self) -> redis.Redis:
        return connect(self.redis_url, timeout_seconds=30)

    def queue(self) -> DelayQueue:
        """The orders' queue."""
        return DelayQueue(self.client(), QUEUE)

    def settings(self) -> dict[str, str]:
        """The versions and settings that figures depend on."""
        server = self.client().info("server")
        valkey = server.get("valkey_version") or server["redis_version"]
        with psycopg.connect(self.dsn) as connection:
            fsync, commit = (
                (connection.execute(f"SHOW {name}").fetchone() or ["?"])[0]
                for name in ("fsync", "synchronous_commit")
            )
            version = connection.info.server_version // 10000
        database = f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {commit}"
        return {
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
            "python": platform.python_version(),
            "database": database,
            "redis": f"Valkey {valkey}, appendonly yes, appendfsync everysec",
        }

    def load(
        self,
        count: int,
        *,
        items: int = ITEMS,
        paid_share: float = PAID_SHARE,
    ) -> list[str]:
        """Fill empty tables with orders that are due, some of them paid. Returns their ids."""
        client = str(uuid7())
        ids = [str(uuid7()) for _ in range(count)]
        paid = {order_id for order_id in ids if random.random() < paid_share}
        lines: list[Row] = [
            (order_id, f"sku-{sku}", random.randint(1, 3), 1250)
            for order_id in ids
            for sku in random.sample(range(SKUS), items)
        ]
        held = Counter({f"sku-{n}": 0 for n in range(SKUS)})
        for order_id, sku, quantity, _ in lines:
            held[sku] += quantity * (order_id not in paid)
        self._fill(
            {
                "api_clients (id, name, created_at)": [(client, "bench", LONG_AGO)],
                "stock_items (sku, on_hand, reserved, price_minor, currency)": [
                    (sku, ON_HAND, reserved, 1250, "EUR") for sku, reserved in held.items()
                ],
                "orders (id, client_id, currency, total_minor, created_at, idempotency_key, "
                "fingerprint, timeout_ms)": [
                    (order_id, client, "EUR", 3750, LONG_AGO, order_id, FINGERPRINT, 0)
                    for order_id in ids
                ],
                "unpaid_orders (order_id, client_id, expires_at, pieces)": [
                    (order_id, client, LONG_AGO, items) for order_id in ids if order_id not in paid
                ],
                "order_events (order_id, client_id, type, at, data, expires_at, version)": [
                    (order_id, client, "order.paid", LONG_AGO, "{}", LONG_AGO, 2)
                    for order_id in paid
                ],
                "order_items (order_id, sku, quantity, unit_price_minor)": lines,
            }
        )
        return ids

    def _fill(self, tables: dict[str, list[Row]]) -> None:
        """Empty all tables, then insert these rows."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"TRUNCATE {', '.join(TABLES)}")
            for table, rows in tables.items():
                with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
        self._vacuum()

    def add_waiting(self, count: int) -> None:
        """Add so many unpaid orders that are not due for a year, with three items each."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in WAITING:
                connection.execute(statement, {"count": count})
        self._vacuum()

    def _vacuum(self) -> None:
        """Have nothing left to remove or to write out."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def set_deadlines(self, deadlines: Mapping[str, int]) -> None:
        """Set orders' deadlines, in ms since the epoch."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute(
                "UPDATE unpaid_orders SET expires_at = to_timestamp(at / 1000.0) "
                "FROM unnest(%s::uuid[], %s::bigint[]) AS moved (id, at) "
                "WHERE moved.id = order_id",
                [[*deadlines], [*deadlines.values()]],
            )

    def lateness_ms(self) -> list[float]:
        """The time from each cancelled order's deadline to its cancellation."""
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute(
                "SELECT extract(epoch FROM at - expires_at) * 1000 FROM order_events "
                "WHERE type = 'order.cancelled'"
            ).fetchall()
        return [float(late) for (late,) in rows]

    def schedule(self, ids: Iterable[str], *, among: int = 0) -> DelayQueue:
        """Schedule these orders' checks, all due, in a paused queue.

        The queue is emptied first, unless these are to be ``among`` others.
        """
        if not among:
            self.client().flushall()
        queue = self.queue()
        queue.pause()
        queue.schedule_many((order_id, LONG_AGO_MS, b"") for order_id in ids)
        return queue

    @contextlib.contextmanager
    def workers(self, count: int, threads: int) -> Iterator[list[Process]]:
        """Start worker processes, and wait until they are ready."""
        logs = [self.folder / f"worker-{n}.log" for n in range(count)]
        processes = [worker(self.env, log, "--threads", str(threads)) for log in logs]
        try:
            wait_until(lambda: all(b'"available"' in log.read_bytes() for log in logs), "workers")
            yield processes
        finally:
            for process in processes:
                process.stop()
            for log in logs:
                log.unlink()

    @contextlib.contextmanager
    def api(self) -> Iterator[tuple[int, Process]]:
        """Start an API, and wait until it answers; its port, and the process."""
        port = free_port()
        process = api(self.env, port, self.folder / "api.log")
        try:
            wait_until(lambda: _answers(port), "the API to answer", ignoring=OSError)
            yield port, process
        finally:
            process.stop()

    def drain(self, queue: DelayQueue, workers: int, threads: int, *, among: int = 0) -> float:
        """How many seconds the workers take to process all that is due, among others that wait."""
        with self.workers(workers, threads):
            start = time.perf_counter()
            queue.resume()
            wait_until(lambda: _left(queue) == (among, 0), "the drain", seconds=600, every=0.02)
            return time.perf_counter() - start

    def assert_drained(self, *, waiting: int = 0) -> None:
        """Assert that every unpaid order was cancelled, and exactly its stock is back.

        All but those ``waiting``.
        """
        unpaid = self.count("FROM unpaid_orders")
        off = self.count(
            f"FROM stock_items WHERE sku LIKE 'sku-%' AND (reserved <> 0 OR on_hand <> {ON_HAND})"
        )
        assert unpaid == waiting, f"{unpaid} orders are unpaid"
        assert off == 0, f"the stock of {off} SKUs is off"

    def count(self, what: str) -> int:
        """The number of rows. ``what`` begins with FROM."""
        [[number]] = self.rows(f"SELECT count(*) {what}")
        return int(number)

    def rows(self, query: str) -> list[Row]:
        """The result of a query."""
        with psycopg.connect(self.dsn) as connection:
            return [*connection.execute(query.encode())]

    def analyze(self) -> None:
        """Update the statistics, which also renews the plans that connections have prepared."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("ANALYZE")


def cpu_seconds(root: int) -> float:
    """What this process, its descendants and those of them that have ended took."""
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        spent[int(stat.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = [root]
    for member in family:
        family += [pid for pid, parent in parents.items() if parent == member]
    return sum(spent[member] for member in family)


def _answers(port: int) -> bool:
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200


def _left(queue: DelayQueue) -> tuple[int, int]:
    stats = queue.stats()
    assert stats.dead == 0
    return stats.scheduled, stats.leased


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """Start the servers; stop them and delete their data at the end."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        valkey = Valkey(folder / "valkey", "--appendonly", "yes", "--save", "")
        stack.callback(valkey.stop)
        valkey.start()
        postgres = Postgres()
        stack.callback(postgres.remove)
        postgres.start().execute("CREATE DATABASE bench")
        url = postgres.url("bench")
        migrate({"DATABASE_URL": url})
        yield Scene(url, valkey.url, folder)
