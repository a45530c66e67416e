"""Requests per second under granian: orders created, paid and read.

    python -m benchmarks.http [--seconds 5] [--repetitions 3] [--clients 8] [--items 1] [--sqlite]

Each order is for SKUs chosen at random among a thousand, so that rows are rarely contended. What
is created is then paid, each order once, and read. Beside it, in the same run and under the same
server: a route that touches no database, and the plain ways to write an order; and without HTTP,
the last of these straight from the driver. What must be in SQL then is asserted after each row.
"""

import argparse
import http.client
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from benchmarks import raw
from benchmarks.load import Measured, load, request
from benchmarks.report import Report
from benchmarks.scene import EARLIER, SKUS, Scene, scene
from devtools.processes import GRANIAN, api, create_key, free_port, wait_until

WARM_UP_SECONDS = 1.0
CONNECTIONS = 4
PRICE_MINOR = 1250

#: The plain ways, by their paths in `benchmarks.bare`.
BARE = {
    "/route": "bare Flask: parse and answer JSON, no database",
    "/insert": "Flask + SQLAlchemy: one INSERT",
    "/order": "Flask + SQLAlchemy: stock, order and items in three statements",
}
#: Without HTTP, straight from the driver.
RAW = {
    f"psycopg without HTTP: the same three statements, {CONNECTIONS} connections": raw.plain,
    f"psycopg without HTTP: a create's own statements, {CONNECTIONS} connections": raw.create,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests per second under granian.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--items", type=int, default=1)
    parser.add_argument("--sqlite", action="store_true")
    options = parser.parse_args()
    with scene(sqlite=options.sqlite) as stage:
        settings = {
            "server": f"granian {version('granian')} {' '.join(GRANIAN)}",
            "load": f"{options.clients} connections",
            "items per order": str(options.items),
        }
        report = Report("http-sqlite" if options.sqlite else "http", stage.settings() | settings)
        bench = Bench(stage, options.seconds, options.clients, options.items)
        for _ in range(options.repetitions):
            for name, measured in bench.rows():
                report.add(name, per_s=measured.per_s, p99_ms=measured.p99_ms)
        report.save()


@dataclass(frozen=True)
class Bench:
    """What one repetition measures, and how."""

    stage: Scene
    seconds: float
    clients: int
    items: int

    def rows(self) -> Iterator[tuple[str, Measured]]:
        """Each row in turn, on a server started for it."""
        key = self._reopen()
        yield "this project: create", self._create(key)
        yield "this project: pay", self._pay(key)
        yield "this project: read", self._read(key)
        for path, name in BARE.items():
            yield name, self._bare(path)
        if not self.stage.database_url.startswith("sqlite"):
            for name, write_order in RAW.items():
                yield name, self._raw(write_order)

    def _reopen(self) -> str:
        """Empty the scene but for the earlier orders; return a new client's key."""
        self.stage.client().flushall()
        self.stage.load(EARLIER, items=self.items, paid_share=1)
        return create_key(self.stage.env, "http", "orders")

    def _create(self, key: str) -> Measured:
        headers = _bearer(key)
        orders = (
            request(
                "POST",
                "/v1/orders",
                headers | {"Idempotency-Key": uuid4().hex},
                {"items": [{"sku": sku, "quantity": 1} for sku in skus]},
            )
            for skus in self._baskets()
        )
        measured = self._under_load("orders.app:create_app", orders, 201)
        self._assert_written(measured.answered)
        _assert_all(
            measured.answered,
            events=self.stage.count("FROM order_events WHERE type = 'order.created'"),
            keys=self.stage.count("FROM orders WHERE idempotency_key IS NOT NULL") - EARLIER,
            scheduled=self.stage.queue().stats().scheduled,
        )
        return measured

    def _pay(self, key: str) -> Measured:
        headers = _bearer(key)
        facts = {"provider": "bank", "currency": "EUR"}
        payments = [
            request(
                "POST",
                f"/v1/orders/{order_id}/payments",
                headers,
                {**facts, "reference": uuid4().hex, "amount_minor": total_minor},
            )
            for order_id, total_minor in self.stage.rows(
                "SELECT id, total_minor FROM orders WHERE status = 'unpaid'"
            )
        ]
        measured = self._under_load("orders.app:create_app", payments, 201)
        _assert_all(
            measured.answered,
            paid=self.stage.count("FROM orders WHERE status = 'paid'") - EARLIER,
            applied=self.stage.count("FROM payments WHERE status = 'applied'"),
            events=self.stage.count("FROM order_events WHERE type = 'order.paid'"),
        )
        return measured

    def _read(self, key: str) -> Measured:
        headers = _bearer(key)
        own = self.stage.rows(f"SELECT id FROM orders WHERE customer_id = '{_client(key)}'")
        random.shuffle(own)
        reads = [request("GET", f"/v1/orders/{order_id}", headers) for (order_id,) in own]
        return self._under_load("orders.app:create_app", itertools.cycle(reads), 200)

    def _bare(self, path: str) -> Measured:
        customer = _client(self._reopen())
        orders = (
            request("POST", path, {}, {"customer_id": customer, "items": _priced(skus)})
            for skus in self._baskets()
        )
        measured = self._under_load("benchmarks.bare:create_app", orders, 201)
        if path == "/order":
            self._assert_written(measured.answered)
        elif path == "/insert":
            _assert_all(measured.answered, orders=self.stage.count("FROM orders") - EARLIER)
        return measured

    def _raw(self, write_order: Callable[..., None]) -> Measured:
        customer = _client(self._reopen())
        orders = ((customer, _priced(skus)) for skus in self._baskets())
        measured = raw.orders(self.stage, orders, write_order, CONNECTIONS, self.seconds)
        self._assert_written(measured.answered)
        return measured

    def _baskets(self) -> Iterator[list[str]]:
        """SKUs of one order after the other, sorted: locks are taken in this order."""
        while True:
            yield sorted(f"sku-{n}" for n in random.sample(range(SKUS), self.items))

    def _under_load(self, app: str, requests: Iterable[bytes], expected: int) -> Measured:
        """Start the app, warm it up, and measure it; ``answered`` has the warming up in it."""
        requests = iter(requests)
        port, log = free_port(), self.stage.folder / "api.log"
        server = api(self.stage.env, port, log, app)
        try:
            wait_until(lambda: _answers(port), "the API to answer", ignoring=OSError)
            warm_up = load(port, requests, expected, self.clients, WARM_UP_SECONDS)
            self.stage.analyze()
            measured = load(port, requests, expected, self.clients, self.seconds)
        finally:
            server.stop()
        return measured._replace(answered=warm_up.answered + measured.answered)

    def _assert_written(self, orders: int) -> None:
        """So many orders are there, each with its items, and their stock is held."""
        [[held]] = self.stage.rows("SELECT sum(reserved) FROM stock_items")
        _assert_all(orders, orders=self.stage.count("FROM orders") - EARLIER)
        _assert_all(
            orders * self.items,
            items=self.stage.count("FROM order_items") - EARLIER * self.items,
            held=held,
        )


def _assert_all(expected: int, **counts: int) -> None:
    for what, count in counts.items():
        assert count == expected, f"{what}: {count}, not {expected}"


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/healthz")
    return bool(connection.getresponse().read())


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _client(key: str) -> str:
    """The id of the client whose key this is."""
    return key.partition(".")[0]


def _priced(skus: Iterable[str]) -> list[dict[str, Any]]:
    return [{"sku": sku, "quantity": 1, "unit_price_minor": PRICE_MINOR} for sku in skus]


if __name__ == "__main__":
    main()
