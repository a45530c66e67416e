"""Requests per second under granian: orders created, paid and read.

    python -m benchmarks.http [--seconds 5] [--repetitions 3] [--clients 8]

Orders are for SKUs chosen at random from a thousand, so that rows are rarely contended, or all for
one SKU. The orders created are then paid, each once, and read. For comparison, in the same run and without
HTTP: the statement that creates an order, straight from the driver. After each row, the contents of the
database are asserted.
"""

import argparse
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from benchmarks import raw
from benchmarks.load import Measured, load, request
from benchmarks.report import Report
from benchmarks.scene import EARLIER, ON_HAND, SKUS, Scene, scene
from devtools.accounts import create_key
from devtools.processes import GRANIAN

WARM_UP_SECONDS = 1.0
CONNECTIONS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests per second under granian.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    with scene() as stage:
        settings = {
            "server": f"granian {version('granian')} {' '.join(GRANIAN)}",
            "load": f"{options.clients} connections",
        }
        report = Report("http", stage.settings() | settings)
        bench = Bench(stage, options.seconds, options.clients)
        for _ in range(options.repetitions):
            for name, measured in bench.rows():
                report.add(name, per_s=measured.per_s, p99_ms=measured.p99_ms)
        report.save()


@dataclass(frozen=True)
class Baskets:
    """The items of orders."""

    items: int = 1
    skus: int = SKUS

    def __str__(self) -> str:
        many = f"{self.items} item{'s' * (self.items > 1)}"
        return f"{many}, one SKU for all" if self.skus == 1 else many

    def __iter__(self) -> Iterator[list[str]]:
        """The SKUs of each order in turn, sorted, because locks are taken in this order."""
        while True:
            yield sorted(f"sku-{n}" for n in random.sample(range(self.skus), self.items))


@dataclass(frozen=True)
class Bench:
    """One repetition."""

    stage: Scene
    seconds: float
    clients: int

    def rows(self) -> Iterator[tuple[str, Measured]]:
        """Measure each row in turn, on a server started for it."""
        for baskets in (Baskets(50), Baskets(5), Baskets(skus=1), Baskets()):
            key = self.reopen(baskets)
            yield f"this project: create, {baskets}", self.create(key, baskets)
        yield "this project: pay", self.pay(key)
        yield "this project: read", self._read(key)
        name = f"psycopg without HTTP: a create's own statements, {CONNECTIONS} connections"
        yield name, self._raw()

    def reopen(self, baskets: Baskets) -> str:
        """Delete everything but the earlier orders; return the key of a new client."""
        self.stage.client().flushall()
        self.stage.load(EARLIER, items=baskets.items, paid_share=1)
        return create_key(self.stage.env, "http", "orders", "payments")

    def create(self, key: str, baskets: Baskets) -> Measured:
        headers = _bearer(key)
        orders = (
            request(
                "POST",
                "/v1/orders",
                headers | {"Idempotency-Key": uuid4().hex},
                {"items": _lines(skus)},
            )
            for skus in baskets
        )
        measured = self._under_load(orders, 201)
        self._assert_written(measured.answered, baskets)
        _assert_all(
            measured.answered,
            events=self.stage.count("FROM order_events WHERE type = 'order.created'"),
            keys=self.stage.count("FROM orders WHERE idempotency_key IS NOT NULL") - EARLIER,
            scheduled=self.stage.queue().stats().scheduled,
        )
        return measured

    def pay(self, key: str) -> Measured:
        headers = _bearer(key)
        payments = (
            request("POST", f"/v1/orders/{order_id}/payments", headers, payment)
            for order_id, payment in self._payments()
        )
        measured = self._under_load(payments, 201)
        self._assert_paid(measured.answered)
        paid = self.stage.count("FROM order_events WHERE type = 'order.paid'") - EARLIER
        _assert_all(measured.answered, events=paid)
        return measured

    def _payments(self) -> list[tuple[str, dict[str, Any]]]:
        """Each unpaid order's id, and a payment for it."""
        unpaid = self.stage.rows(
            "SELECT id, total_minor FROM orders JOIN unpaid_orders ON order_id = id"
        )
        facts = {"provider": "bank", "currency": "EUR"}
        return [
            (str(order_id), {**facts, "reference": uuid4().hex, "amount_minor": total_minor})
            for order_id, total_minor in unpaid
        ]

    def _read(self, key: str) -> Measured:
        reads = [request("GET", f"/v1/orders/{id_}", _bearer(key)) for id_ in self._placed()]
        return self._under_load(itertools.cycle(reads), 200)

    def _placed(self) -> list[str]:
        """The ids of the orders placed over HTTP, shuffled."""
        created = "SELECT order_id FROM order_events WHERE type = 'order.created'"
        ids = [str(row[0]) for row in self.stage.rows(created)]
        random.shuffle(ids)
        return ids

    def _raw(self) -> Measured:
        self.reopen(Baskets())
        [[customer]] = self.stage.rows("SELECT id FROM api_clients WHERE name = 'http'")
        orders = ((str(customer), _lines(skus)) for skus in Baskets())
        measured = raw.orders(self.stage, orders, CONNECTIONS, self.seconds)
        self._assert_written(measured.answered, Baskets())
        return measured

    def _under_load(self, requests: Iterable[bytes], expected: int) -> Measured:
        """Start the API, warm it up, and measure it; ``answered`` includes the warm-up."""
        requests = iter(requests)
        with self.stage.api() as (port, _):
            warm_up = load(port, requests, expected, self.clients, WARM_UP_SECONDS)
            self.stage.analyze()
            measured = load(port, requests, expected, self.clients, self.seconds)
        return measured._replace(answered=warm_up.answered + measured.answered)

    def _assert_written(self, orders: int, baskets: Baskets) -> None:
        """Assert that so many orders exist, each with its items, and that their stock is held."""
        [[held]] = self.stage.rows("SELECT sum(reserved) FROM stock_items")
        _assert_all(orders, orders=self.stage.count("FROM orders") - EARLIER)
        _assert_all(
            orders * baskets.items,
            items=self.stage.count("FROM order_items") - EARLIER * baskets.items,
            held=held,
        )

    def _assert_paid(self, orders: int) -> None:
        """Assert that so many orders are paid, and their stock is sold."""
        [[on_hand]] = self.stage.rows("SELECT sum(on_hand) FROM stock_items")
        _assert_all(
            orders,
            paid=self.stage.count("FROM order_events WHERE type = 'order.paid'") - EARLIER,
            applied=self.stage.count("FROM payments WHERE status = 'applied'"),
            sold=SKUS * ON_HAND - on_hand,
        )


def _assert_all(expected: int, **counts: int) -> None:
    for what, count in counts.items():
        assert count == expected, f"{what}: {count}, not {expected}"


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _lines(skus: Iterable[str]) -> list[dict[str, Any]]:
    return [{"sku": sku, "quantity": 1} for sku in skus]


if __name__ == "__main__":
    main()
