"""The application, asked by a test client."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import pytest
import redis
from click.testing import Result
from flask import Flask
from werkzeug.test import TestResponse

from devtools.processes import wait_until
from orders.app import create_app
from orders.config import Settings
from orders.db.tables import unpaid_orders
from orders.queues import QUEUE
from orders.wiring import Services, bootstrap
from tests.kit.expiring import expire_now
from tests.kit.features import brought
from tests.kit.moments import later, now
from tests.kit.shop import an_engine
from worker import DelayQueue

#: What the keys of an `Api` may do.
CLIENTS = {"customer": ["orders", "payments"], "other": ["orders", "payments"], "ops": ["ops"]}


@functools.cache
def _conformances() -> list[Any]:
    return [each.Conformance() for each in brought("conformance")]


#: Applications between two tests. Making one takes longer than most tests: only what it is wired to
#: differs.
IDLE_APPS: list[Flask] = []


class Api:
    """The application with a test client, two customers' keys, and the shop's own."""

    def __init__(self, database_url: str, redis_url: str, **settings: Any) -> None:
        made = Settings.of(database_url=database_url, redis_url=redis_url, **settings)
        self._stack, self._is_plain = ExitStack(), "trusted_proxies" not in settings
        engine = self._stack.enter_context(an_engine(made))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orders.wiring.create_engine", lambda _: engine)
            if IDLE_APPS and self._is_plain:
                self.app = IDLE_APPS.pop()
                wired = bootstrap(made)
                self.app.extensions["orders"] = wired
            else:
                self.app = create_app(made)
        self.services: Services = self.app.extensions["orders"]
        self.http = self.app.test_client()
        self.keys: dict[str, str] = {}

    def make_keys(self) -> None:
        for name, scopes in CLIENTS.items():
            self.keys[name] = self.services.clients.create_key(name, scopes)

    def send(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        key: str | None = "customer",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> TestResponse:
        """A request with a client's API key; None sends none. The response is held to the document."""
        sent = dict(headers or {})
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {self.keys[key]}")
        response = self.http.open(path, method=method, json=json, headers=sent, **more)
        for each in _conformances():
            each.check(method, path, response)
        return response

    def stock(self, sku: str = "tea", on_hand: int = 100, price_minor: int = 250) -> None:
        self.services.stock.set(sku, on_hand=on_hand, price_minor=price_minor, currency="EUR")

    def place(
        self, idempotency_key: str = "", *, key: Any = "customer", **body: Any
    ) -> TestResponse:
        """An order for one tea, unless told otherwise."""
        basket = {"items": [{"sku": "tea", "quantity": 1}], **body}
        headers = {"Idempotency-Key": idempotency_key or uuid4().hex}
        return self.send("POST", "/v1/orders", basket, key=key, headers=headers)

    def pay(
        self, order_id: str, reference: str = "r-1", *, key: str = "customer", **body: Any
    ) -> TestResponse:
        payment = {"provider": "bank", "reference": reference, "amount_minor": 250}
        payment |= {"currency": "EUR", **body}
        return self.send("POST", f"/v1/orders/{order_id}/payments", payment, key=key)

    def close(self) -> None:
        self.services.close()
        self._stack.close()
        if self._is_plain:
            IDLE_APPS.append(self.app)


@contextmanager
def serving(database_url: str, redis_url: str, **settings: Any) -> Iterator[Api]:
    """The application on a migrated database, with some tea."""
    api = Api(database_url, redis_url, **settings)
    api.make_keys()
    api.stock()
    yield api
    api.close()


MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def content(response: TestResponse) -> Any:
    """The body, whose keys stand in the order they were sent in."""
    assert response.content_type == "application/json"
    return json.loads(response.get_data())


def until_scheduled(client: redis.Redis, count: int) -> None:
    """The scheduler has a thread of its own."""
    queue = DelayQueue(client, QUEUE)
    wait_until(lambda: queue.stats().scheduled == count, f"{count} checks to be scheduled")


def problem(response: TestResponse, status: int, code: str) -> Any:
    assert (response.status_code, response.content_type) == (status, "application/problem+json")
    body = json.loads(response.get_data())
    assert (body["type"], body["status"], body["code"]) == ("about:blank", status, code)
    assert body["title"]
    return body


def expire(api: Api, order_id: str) -> None:
    overdue = (
        unpaid_orders.update()
        .where(unpaid_orders.c.order_id == order_id)
        .values(expires_at=later(now(), "ms"))
    )
    with api.services.engine.begin() as connection:
        connection.execute(overdue, {"ms": -1})
    assert expire_now(api.services.orders, [order_id]) == {}


def run(api: Api, *args: str) -> Result:
    result: Result = api.app.test_cli_runner().invoke(args=list(args))
    return result


def create(api: Api, *options: str) -> str:
    result = run(api, "keys", "create", "shop", *options)
    assert result.exit_code == 0, result.output
    return str(result.stdout.strip())
