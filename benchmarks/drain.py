"""How fast due orders are let go: everything they need, from the claim to the ack.

    python -m benchmarks.drain [--orders 20000] [--repetitions 3]

Each order has three items; a fifth are paid before they are due. What is measured: cancel those
that are unpaid, give exactly their stock back, write one event each, commit, ack. PostgreSQL runs
with fsync on, Valkey with its append-only file. Beside it, in the same run and doing the same
work: the production queue of the article that this project started from, one order at a time
with five threads. Final stock is asserted after every repetition.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis
from uuid_utils import uuid7

from examples.processes import Valkey, migrate, wait_until, worker
from orders.bootstrap import QUEUE
from tests.servers import Postgres
from worker import DelayQueue, connect

SKUS = 1000
ON_HAND = 1_000_000
ITEMS = 3
PAID_SHARE = 0.2
SEED_THREADS = 5


@dataclass(frozen=True)
class Scene:
    """The servers of a run."""

    database_url: str
    redis_url: str
    folder: Path

    @property
    def dsn(self) -> str:
        return self.database_url.replace("+psycopg", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--seeds-orders", type=int, default=3_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with _scene() as scene:
        _print_settings(scene)
        rates: dict[str, list[float]] = {"this project": [], "the article's queue": []}
        for _ in range(options.repetitions):
            ids = _load(scene, options.orders)
            seconds = _drain(scene, ids, options.workers, options.threads)
            rates["this project"].append(len(ids) / seconds)
            ids = _load(scene, options.seeds_orders)
            rates["the article's queue"].append(len(ids) / _drain_as_the_article(scene, ids))
    base = statistics.median(rates["the article's queue"])
    print(f"\n{'':24}{'orders/s':>10}{'min':>10}{'max':>10}{'ratio':>8}")
    for name, values in rates.items():
        median = statistics.median(values)
        row = f"{median:10,.0f}{min(values):10,.0f}{max(values):10,.0f}{median / base:8.1f}"
        print(f"{name:24}{row}")


@contextlib.contextmanager
def _scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        valkey = Valkey(folder / "valkey", "--appendonly", "yes", "--save", "")
        stack.callback(valkey.stop)
        valkey.start()
        postgres = Postgres()
        stack.callback(postgres.remove)
        postgres.start()
        postgres.execute("CREATE DATABASE bench")
        scene = Scene(postgres.url("bench"), valkey.url, folder)
        migrate({"DATABASE_URL": scene.database_url})
        yield scene


def _print_settings(scene: Scene) -> None:
    with psycopg.connect(scene.dsn) as connection:
        version = connection.info.server_version // 10000
        fsync, commit = (
            (connection.execute(f"SHOW {name}").fetchone() or ["?"])[0]
            for name in ("fsync", "synchronous_commit")
        )
    server = redis.Redis.from_url(scene.redis_url).info("server")
    valkey = server.get("valkey_version") or server["redis_version"]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores; PostgreSQL {version}, "
        f"fsync {fsync}, synchronous_commit {commit}; Valkey {valkey}, appendfsync everysec"
    )


def _load(scene: Scene, count: int) -> list[str]:
    """Fill empty tables with orders that are due; a fifth are paid. Returns their ids."""
    ids = [str(uuid7()) for _ in range(count)]
    client = str(uuid7())
    with psycopg.connect(scene.dsn) as connection:
        connection.execute(
            "TRUNCATE idempotency_keys, order_events, payments, order_items, orders, stock_items, "
            "api_clients"
        )
        connection.execute(
            "INSERT INTO api_clients VALUES (%s, 'bench', '', 'orders', now())", [client]
        )
        connection.execute(
            "INSERT INTO stock_items SELECT 'sku-' || n, %s, 0, 1250, 'EUR' "
            "FROM generate_series(0, %s) AS n",
            [ON_HAND, SKUS - 1],
        )
        with connection.cursor().copy(
            "COPY orders (id, customer_id, status, currency, total_minor, created_at, expires_at, "
            "paid_at, version) FROM STDIN"
        ) as copy:
            for order_id in ids:
                paid = random.random() < PAID_SHARE
                status, paid_at = ("paid", "2026-01-01") if paid else ("unpaid", None)
                row = (
                    order_id,
                    client,
                    status,
                    "EUR",
                    3750,
                    "2026-01-01",
                    "2026-01-01",
                    paid_at,
                    1,
                )
                copy.write_row(row)
        with connection.cursor().copy(
            "COPY order_items (order_id, sku, quantity, unit_price_minor) FROM STDIN"
        ) as copy:
            for order_id in ids:
                for sku in random.sample(range(SKUS), ITEMS):
                    copy.write_row((order_id, f"sku-{sku}", random.randint(1, 3), 1250))
        connection.execute(
            "UPDATE stock_items s SET reserved = held.quantity FROM (SELECT sku, sum(quantity) "
            "AS quantity FROM order_items JOIN orders ON orders.id = order_id "
            "WHERE status = 'unpaid' GROUP BY sku) AS held WHERE held.sku = s.sku"
        )
    with psycopg.connect(scene.dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
    return ids


def _assert_drained(scene: Scene, ids: list[str]) -> None:
    with psycopg.connect(scene.dsn) as connection:
        [unpaid, cancelled, events] = connection.execute(
            "SELECT count(*) FILTER (WHERE status = 'unpaid'), "
            "count(*) FILTER (WHERE status = 'cancelled'), "
            "(SELECT count(*) FROM order_events WHERE type = 'order.cancelled') FROM orders"
        ).fetchone() or [-1, -1, -1]
        [reserved, on_hand] = connection.execute(
            "SELECT sum(reserved), sum(on_hand) FROM stock_items"
        ).fetchone() or [-1, -1]
    assert unpaid == 0, f"{unpaid} of {len(ids)} orders are still unpaid"
    assert cancelled == events, f"{cancelled} cancelled, {events} events"
    assert (reserved, on_hand) == (0, SKUS * ON_HAND), f"stock is off: {reserved}, {on_hand}"


def _drain(scene: Scene, ids: list[str], workers: int, threads: int) -> float:
    """Seconds that this project's worker processes take."""
    client = connect(scene.redis_url, timeout_seconds=10)
    client.flushall()
    queue = DelayQueue(client, QUEUE)
    queue.pause()
    queue.schedule_many((order_id, 1_767_225_600_000, b"") for order_id in ids)
    env = {"DATABASE_URL": scene.database_url, "REDIS_URL": scene.redis_url, "LOG_LEVEL": "INFO"}
    logs = [scene.folder / f"worker-{n}.log" for n in range(workers)]
    processes = [worker(env, log, "--threads", str(threads)) for log in logs]
    wait_until(lambda: all(b'"available"' in log.read_bytes() for log in logs), "workers")
    start = time.perf_counter()
    queue.resume()
    wait_until(lambda: not any(_left(queue)), "the queue to drain", seconds=600)
    seconds = time.perf_counter() - start
    for process in processes:
        process.stop()
    for log in logs:
        log.unlink()
    _assert_drained(scene, ids)
    return seconds


def _left(queue: DelayQueue) -> tuple[int, int]:
    stats = queue.stats()
    assert stats.dead == 0
    return stats.scheduled, stats.leased


ARTICLE_POP = """
local tasks = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, 1)
if #tasks == 0 then return nil end
redis.call('ZREM', KEYS[1], tasks[1])
redis.call('ZADD', KEYS[2], ARGV[1] + ARGV[2], tasks[1])
return tasks[1]
"""


def _drain_as_the_article(scene: Scene, ids: list[str]) -> float:
    """Seconds that the article's queue takes: pop one, hand it to a thread, ack it."""
    client = redis.Redis.from_url(scene.redis_url)
    client.flushall()
    client.zadd(
        "waiting", {json.dumps({"message": {"order_id": i}, "retry_count": 0}): 1.0 for i in ids}
    )
    pop = client.register_script(ARTICLE_POP)
    local = threading.local()

    def cancel(text: bytes) -> None:
        if not hasattr(local, "connection"):
            local.connection = psycopg.connect(scene.dsn)
        order_id = json.loads(text)["message"]["order_id"]
        _in_transaction(local.connection, lambda run: _cancel_one(run, order_id))
        client.zrem("processing", text)

    start = time.perf_counter()
    with ThreadPoolExecutor(SEED_THREADS) as pool:
        while (text := pop(["waiting", "processing"], [time.time(), 300])) is not None:
            pool.submit(cancel, text)
    seconds = time.perf_counter() - start
    assert client.zcard("processing") == 0
    _assert_drained(scene, ids)
    return seconds


Run = Callable[..., psycopg.Cursor[tuple[object, ...]]]


def _in_transaction(
    connection: psycopg.Connection[tuple[object, ...]], work: Callable[[Run], None]
) -> None:
    while True:
        try:
            with connection.transaction():
                work(connection.execute)
            return
        except psycopg.errors.DeadlockDetected:
            continue


def _cancel_one(run: Run, order_id: str) -> None:
    """Conditional, as it must be: the article's own check, then write, would lose payments."""
    cancelled = run(
        "UPDATE orders SET status = 'cancelled', cancelled_at = now(), cancel_reason = 'expired', "
        "version = version + 1 WHERE id = %s AND status = 'unpaid' AND expires_at <= now()",
        [order_id],
    )
    if cancelled.rowcount == 0:
        return
    items = run(
        "SELECT sku, quantity FROM order_items WHERE order_id = %s ORDER BY sku", [order_id]
    )
    for sku, quantity in items.fetchall():
        run("UPDATE stock_items SET reserved = reserved - %s WHERE sku = %s", [quantity, sku])
    run(
        "INSERT INTO order_events (order_id, type, at, data) "
        "VALUES (%s, 'order.cancelled', now(), '{\"reason\": \"expired\"}')",
        [order_id],
    )


if __name__ == "__main__":
    main()
