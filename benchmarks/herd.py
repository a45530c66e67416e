"""Orders that fall due in one second, a million of them, and customers who place orders beside them.

    python -m benchmarks.herd [--herd 1000000] [--rate 50] [--seconds 10]

Customers place orders that live for 5 s over HTTP, at a steady rate: first in peace, then from the moment the herd is due until
one worker has cancelled it. A create's time counts from when it was to be sent. Lateness is by the database's clock. Stock
and events are asserted: one event for each order.
"""

import argparse
import json
import math
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import psycopg

from benchmarks.report import Report
from benchmarks.scene import EARLIER, Scene, scene
from devtools.accounts import create_key
from devtools.processes import Process, wait_until

LIVE_SECONDS = 5
#: How many customers there are, who each wait for an answer.
CUSTOMERS = 16
#: How many SKUs the herd's orders are for, each for one.
SKUS = 500
HERD = (
    (
        "INSERT INTO stock_items SELECT 'herd-' || n, %(count)s, %(count)s / %(skus)s, 100, 'EUR' "
        "FROM generate_series(0, %(skus)s - 1) AS n"
    ),
    (
        "INSERT INTO orders (id, client_id, currency, total_minor, created_at, idempotency_key, "
        "fingerprint, timeout_ms) SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, "
        "(SELECT id FROM api_clients LIMIT 1), 'EUR', 100, now(), 'herd-' || n, '', "
        "1000 * n / %(count)s FROM generate_series(1, %(count)s) AS n"
    ),
    (
        "INSERT INTO order_items SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, "
        "'herd-' || n %% %(skus)s, 1, 100 FROM generate_series(1, %(count)s) AS n"
    ),
)
DUE = (
    "INSERT INTO unpaid_orders (order_id, client_id, expires_at, pieces) SELECT id, client_id, "
    "to_timestamp(%(due_at)s + timeout_ms / 1000.0), 1 FROM orders WHERE idempotency_key LIKE 'herd-%%'"
)


class Answer(NamedTuple):
    """A create's time, in seconds, and its order; "" if it was refused."""

    seconds: float
    order: str


#: Places an order that was to be sent at a time.
Place = Callable[[float], Answer]


def main() -> None:
    parser = argparse.ArgumentParser(description="A herd of due orders.")
    parser.add_argument("--herd", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="in peace")
    options = parser.parse_args()
    with scene() as stage:
        report = Report("herd", stage.settings())
        stage.load(EARLIER, items=1, paid_share=1)
        key = create_key(stage.env, "herd", "orders")
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            for statement in HERD:
                connection.execute(statement, {"count": options.herd, "skus": SKUS})
            connection.execute("CHECKPOINT")
        with stage.workers(1, 1) as [worker], stage.api() as (port, _):
            place = partial(_place, threading.local(), port, key)
            _measure(report, stage, options, worker, place)
        _assert_once(stage)
        report.save()


def make_due(stage: Scene, count: int, due_at: float) -> None:
    """Have the herd due within the second that begins then."""
    client, scheduled = stage.client(), stage.queue().keys.scheduled
    for first in range(1, count + 1, 10_000):
        numbers = range(first, min(first + 10_000, count + 1))
        client.zadd(
            scheduled,
            {
                f"00000000-0000-7000-8000-{n:012x}": math.ceil(1000 * due_at) + 1000 * n // count
                for n in numbers
            },
        )
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute(DUE, {"due_at": due_at})
        connection.execute("ANALYZE")


def _measure(
    report: Report,
    stage: Scene,
    options: argparse.Namespace,
    worker: Process,
    place: Place,
) -> None:
    due_at = time.time() + 2 * options.seconds + options.herd / 20_000
    make_due(stage, options.herd, due_at)
    time.sleep(max(0.0, due_at - options.seconds - time.time()))
    quiet = _create(place, options.rate, lambda: time.time() > due_at)
    wal, memory_mb = _wal(stage), _peak_mb(worker.pid)
    gone = _gone(stage, options.herd)
    fresh = _create(place, options.rate, gone.is_set)
    seconds = time.time() - due_at
    wait_until(lambda: stage.count("FROM unpaid_orders") == 0, "the rest", seconds=120, every=0.5)
    late = _late_ms(stage, [answer.order for answer in fresh])
    report.add("in peace", **_of_creates(quiet))
    report.add(
        f"{options.herd:,} due",
        **_of_creates(fresh),
        late_p50_ms=statistics.median(late),
        late_p99_ms=statistics.quantiles(late, n=100)[98],
        late_max_ms=max(late),
        herd_gone_s=seconds,
        worker_grew_mb=_peak_mb(worker.pid) - memory_mb,
        WAL_bytes_an_order=(_wal(stage) - wal) / (options.herd + len(fresh)),
    )


def _of_creates(answers: list[Answer]) -> dict[str, float]:
    assert all(answer.order for answer in answers), "none is refused"
    ms = statistics.quantiles((1000 * answer.seconds for answer in answers), n=100)
    return {"create_p50_ms": ms[49], "create_p99_ms": ms[98]}


def _gone(stage: Scene, herd: int) -> threading.Event:
    """Set once few of the herd are left."""
    gone = threading.Event()

    def watch() -> None:
        queue = stage.queue()
        wait_until(
            lambda: queue.stats().due < herd / 1000, "the herd to go", seconds=600, every=0.2
        )
        gone.set()

    threading.Thread(target=watch, daemon=True).start()
    return gone


def _create(place: Place, rate: float, ended: Callable[[], bool]) -> list[Answer]:
    """Place orders at a steady rate until it is over."""
    start, number = time.monotonic(), 0
    answers = []
    with ThreadPoolExecutor(CUSTOMERS) as customers:
        while not ended():
            at = start + number / rate
            time.sleep(max(0.0, at - time.monotonic()))
            answers.append(customers.submit(place, at))
            number += 1
    return [answer.result() for answer in answers]


def _place(local: threading.local, port: int, key: str, at: float) -> Answer:
    if not hasattr(local, "connection"):
        local.connection = HTTPConnection("127.0.0.1", port, timeout=30)
    body = {"items": [{"sku": "sku-1", "quantity": 1}], "timeout_seconds": LIVE_SECONDS}
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Type": "application/json",
        "Idempotency-Key": uuid4().hex,
    }
    local.connection.request("POST", "/v1/orders", json.dumps(body), headers)
    response = local.connection.getresponse()
    answer = json.loads(response.read())
    return Answer(time.monotonic() - at, answer.get("id", "") if response.status == 201 else "")


def _late_ms(stage: Scene, ids: list[str]) -> list[float]:
    with psycopg.connect(stage.dsn) as connection:
        rows = connection.execute(
            "SELECT extract(epoch FROM at - expires_at) * 1000 FROM order_events "
            "WHERE type = 'order.cancelled' AND order_id = ANY(%s::uuid[])",
            [ids],
        ).fetchall()
    assert len(rows) == len(ids)
    return [float(late) for (late,) in rows]


def _wal(stage: Scene) -> int:
    [[written]] = stage.rows("SELECT pg_current_wal_lsn() - '0/0'")
    return int(written)


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def _assert_once(stage: Scene) -> None:
    [[orders, events, unpaid, reserved]] = stage.rows(
        "SELECT (SELECT count(*) FROM orders), (SELECT count(DISTINCT order_id) FROM order_events WHERE type IN "
        "('order.cancelled', 'order.paid')), (SELECT count(*) FROM unpaid_orders), (SELECT sum(reserved) FROM stock_items)"
    )
    ended = stage.count("FROM order_events WHERE type IN ('order.cancelled', 'order.paid')")
    assert orders == events == ended, f"{orders} orders, {events} of them ended, {ended} times"
    assert (unpaid, reserved) == (0, 0)


if __name__ == "__main__":
    main()
