"""The limits of a drain: its statements without a queue, and its scripts without a database.

And the limit of creating orders: the same statement, without a server.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from psycopg.types.string import TextLoader
from uuid_utils import uuid7

from benchmarks.load import Measured, measured
from benchmarks.scene import FINGERPRINT, Scene
from orders.db.files import Statement
from orders.db.ids import array_of, random_part
from orders.order.rows import SQL
from worker import Settlement, Verb

BATCH = 500
LEASE_MS = 10_000


def statements(stage: Scene, ids: Sequence[str], connections: int) -> float:
    """How many seconds the service's own statements take in the same batches, straight from psycopg."""
    lock = threading.Lock()
    batches = _batches(ids)

    def drain(connection: psycopg.Connection[Any]) -> None:
        while True:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            _expire(connection, batch)

    with ThreadPoolExecutor(connections) as pool:
        opened = [psycopg.connect(stage.dsn, autocommit=True) for _ in range(connections)]
        for connection in opened:
            connection.adapters.register_loader("uuid", TextLoader)
        start = time.perf_counter()
        for done in [pool.submit(drain, connection) for connection in opened]:
            done.result()
        seconds = time.perf_counter() - start
    for connection in opened:
        connection.close()
    stage.assert_drained()
    return seconds


def _batches(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), BATCH):
        yield [*ids[start : start + BATCH]]


def _expire(connection: psycopg.Connection[Any], batch: list[str]) -> None:
    """Send only what `OrderService.expire` sends to the database."""
    _send(connection, SQL.expire, ids=array_of(batch), not_after=None, in_detail=False)


def _send(connection: psycopg.Connection[Any], statement: Statement, **values: Any) -> None:
    given = [values[name] for name in statement.parameters]
    psycopg.RawCursor(connection).execute(statement.text.encode(), given).fetchall()


def scripts(stage: Scene, ids: Sequence[str]) -> float:
    """How many seconds it takes to claim and ack all of them, in the same batches."""
    queue = stage.schedule(ids)
    queue.resume()
    start = time.perf_counter()
    while tasks := queue.claim(BATCH, LEASE_MS).tasks:
        queue.settle([Settlement(tasks, Verb.DONE)])
    return time.perf_counter() - start


def orders(
    stage: Scene,
    baskets: Iterator[tuple[str, list[dict[str, Any]]]],
    connections: int,
    seconds: float,
) -> Measured:
    """Write orders for so many seconds on so many connections; a basket is (customer, items)."""
    lock = threading.Lock()
    latencies: list[float] = []

    def write(connection: psycopg.Connection[Any]) -> None:
        while (began := time.perf_counter()) < until:
            with lock:
                customer, items = next(baskets)
            create(connection, customer, items)
            latencies.append(time.perf_counter() - began)

    opened = [psycopg.connect(stage.dsn, autocommit=True) for _ in range(connections)]
    with ThreadPoolExecutor(connections) as pool:
        start = time.perf_counter()
        until = start + seconds
        for done in [pool.submit(write, connection) for connection in opened]:
            done.result()
        elapsed = time.perf_counter() - start
    for connection in opened:
        connection.close()
    return measured(latencies, elapsed)


def create(
    connection: psycopg.Connection[Any],
    customer: str,
    items: list[dict[str, Any]],
    timeout_ms: int = 1_800_000,
) -> None:
    """Send only what `OrderService.place` sends to the database."""
    unset = dict.fromkeys(("min_ms", "max_ms", "client_reference", "metadata", "origin", "key_id"))
    _send(
        connection,
        SQL.place,
        **unset,
        client_id=customer,
        key=str(uuid7()),
        fingerprint=FINGERPRINT,
        skus=[item["sku"] for item in items],
        quantities=[item["quantity"] for item in items],
        timeout_ms=timeout_ms,
        random=random_part(),
    )
