"""A sale: everybody wants one SKU, beside the orders for 500 others.

    python -m benchmarks.hot [--seconds 4] [--orders 20000] [--repetitions 3]

Orders of one item are created, paid and expired, all for one SKU, and in the same run spread over 500. Then all three at once:
customers order as soon as the one before is answered, and pay every second order; a worker cancels the others after two seconds.
Meanwhile visitors order one of 500 other SKUs, at a steady rate. A visitor's time counts from when the order was to be sent;
lateness is by the database's clock. Stock and events are asserted.
"""

import argparse
import itertools
import json
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from typing import Any
from uuid import uuid4

from benchmarks.http import Baskets, Bench
from benchmarks.lateness import spread
from benchmarks.report import Report
from benchmarks.scene import EARLIER, ON_HAND, SKUS, Scene, scene
from devtools.accounts import create_key
from devtools.processes import wait_until

#: How many SKUs the orders are spread over that are not all for one; and how many the visitors choose from, which come after.
SPREAD = 500
#: Customers of the sale, who each wait for an answer; visitors a second, and how many may wait at a time.
CUSTOMERS, VISITORS_PER_S, VISITORS = 16, 50, 32
#: What the customers do not pay lives for so long.
LIVE_SECONDS = 2
CLIENTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description="A hot SKU.")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with scene() as stage:
        report = Report("hot", stage.settings())
        bench = Bench(stage, options.seconds, CLIENTS)
        for _ in range(options.repetitions):
            spread, hot = (
                {**_alone(bench, skus, options.orders), **_sale(stage, skus, options.seconds)}
                for skus in (SPREAD, 1)
            )
            for name in spread:
                columns = {f"{SPREAD}_SKUs": spread[name], "one_SKU": hot[name]}
                report.add(name, **columns, ratio=hot[name] / spread[name])
        report.save()


def _alone(bench: Bench, skus: int, orders: int) -> dict[str, float]:
    """Creates, payments and expiries, one after another and each as fast as it goes."""
    baskets, stage = Baskets(skus=skus), bench.stage
    key = bench.reopen(baskets)
    created, paid = bench.create(key, baskets), bench.pay(key)
    ids = stage.load(orders, items=1, skus=skus, paid_share=0)
    seconds = stage.drain(stage.schedule(ids), workers=1, threads=2)
    stage.assert_drained()
    return {
        "creates, per s": created.per_s,
        "creates, p99 ms": created.p99_ms,
        "payments, per s": paid.per_s,
        "payments, p99 ms": paid.p99_ms,
        "expiries, per s": len(ids) / seconds,
    }


def _sale(stage: Scene, skus: int, seconds: float) -> dict[str, float]:
    """All at once."""
    stage.client().flushall()
    stage.load(EARLIER, items=1, paid_share=1)
    key = create_key(stage.env, "sale", "orders", "payments")
    with stage.workers(1, 1), stage.api() as (port, _):
        shop = Shop(port, key)
        shop.open(skus, 1.0)  # warms up
        stage.analyze()
        shop.times.clear()
        shop.open(skus, seconds)
        unpaid = partial(stage.count, "FROM unpaid_orders")
        wait_until(lambda: unpaid() == 0, "the last to expire", seconds=60, every=0.1)
    _assert_ended(stage)
    took = {name: 1000 * spread(times)["p99_ms"] for name, times in sorted(shop.times.items())}
    return {
        "all at once: creates, per s": len(shop.times["creates"]) / seconds,
        **{f"all at once: {name}, p99 ms": p99_ms for name, p99_ms in took.items()},
        "all at once: expiries, late p99 ms": spread(stage.lateness_ms())["p99_ms"],
    }


class Shop:
    """The customers of a sale, and visitors who want something else."""

    def __init__(self, port: int, key: str) -> None:
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._port, self._local = port, threading.local()
        #: How long each request took, in seconds, by what it was.
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def open(self, skus: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(CUSTOMERS) as sale, ThreadPoolExecutor(VISITORS) as visitors:
            crowd = [sale.submit(self._buy, n, skus, end) for n in range(CUSTOMERS)]
            start = end - seconds
            for n in range(round(seconds * VISITORS_PER_S)):
                at = start + n / VISITORS_PER_S
                time.sleep(max(0.0, at - time.monotonic()))
                crowd.append(visitors.submit(self._visit, SPREAD + n % SPREAD, at))
        for each in crowd:
            each.result()

    def _buy(self, customer: int, skus: int, end: float) -> None:
        for n in itertools.count(customer, CUSTOMERS):
            if (at := time.monotonic()) > end:
                return
            order = self._place(n % skus)
            self.times["creates"].append(time.monotonic() - at)
            if n // CUSTOMERS % 2:
                at = time.monotonic()
                self._pay(order)
                self.times["payments"].append(time.monotonic() - at)

    def _visit(self, sku: int, at: float) -> None:
        self._place(sku)
        self.times["visitors' creates"].append(time.monotonic() - at)

    def _place(self, sku: int) -> Any:
        items = [{"sku": f"sku-{sku}", "quantity": 1}]
        body = {"items": items, "timeout_seconds": LIVE_SECONDS}
        return self._send("/v1/orders", body, {"Idempotency-Key": uuid4().hex})

    def _pay(self, order: Any) -> None:
        facts = {"provider": "bank", "reference": uuid4().hex, "currency": "EUR"}
        payment = {**facts, "amount_minor": order["total_minor"]}
        self._send(f"/v1/orders/{order['id']}/payments", payment, {})

    def _send(self, path: str, body: object, headers: dict[str, str]) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection = self._local.connection
        connection.request("POST", path, json.dumps(body), self._headers | headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 201, answer
        return answer


def _assert_ended(stage: Scene) -> None:
    """Assert that each order ended once, and that only what was paid for is gone."""
    ended = "FROM order_events WHERE type IN ('order.cancelled', 'order.paid')"
    orders, paid = stage.count("FROM orders"), stage.count("FROM payments")
    [[sold, held]] = stage.rows(
        f"SELECT {SKUS * ON_HAND} - sum(on_hand), sum(reserved) FROM stock_items"
    )
    assert stage.count(ended) == orders
    assert (sold, held) == (paid, 0)


if __name__ == "__main__":
    main()
