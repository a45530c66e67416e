"""A client that a generator makes of docs/openapi.json plays the demo's story, with types all the way."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import httpx
import pytest

from devtools import accounts
from devtools.processes import ROOT, free_port, wait_until
from devtools.service import Service

pytestmark = pytest.mark.slow

PACKAGE = "generated_orders_client"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the package that the generator wrote, without a warning."""
    folder = tmp_path_factory.mktemp("client")
    scripts = Path(sys.executable).parent  # where ruff is, which formats what was written
    done = subprocess.run(
        [
            *(str(scripts / "openapi-python-client"), "generate", "--fail-on-warning"),
            *("--path", str(ROOT / "docs" / "openapi.json"), "--meta", "none"),
            *("--output-path", str(folder / PACKAGE)),
        ],
        env={**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "arning" not in done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield PACKAGE
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), free_port()) as running:
        yield running


class Shop:
    """Calls the operations of the generated package, by their ids."""

    def __init__(self, package: str, service: Service) -> None:
        self._package = package
        key = accounts.create_key(service.env, "generated", "orders", "payments", "ops")
        client: Any = self._module("").AuthenticatedClient
        self.client = client(
            base_url=service.base_url,
            token=key,
            raise_on_unexpected_status=True,
            timeout=httpx.Timeout(60),
        )

    def call(self, operation: str, *path: Any, **arguments: Any) -> Any:
        """What the operation returned, and its status."""
        [module] = [
            self._module(f".api.{tag}.{operation}")
            for tag in ("orders", "payments", "stock", "health")
            if importlib.util.find_spec(f"{self._package}.api.{tag}.{operation}")
        ]
        return module.sync_detailed(*path, client=self.client, **arguments)

    def model(self, name: str, **values: Any) -> Any:
        return getattr(self._module(".models"), name)(**values)

    def order(self, quantity: int, **more: Any) -> Any:
        line = self.model("LineIn", sku="mug", quantity=quantity)
        body = self.model("OrderIn", items=[line], **more)
        return self.call("create_order", body=body, idempotency_key=uuid4().hex).parsed

    def pay(self, order: Any) -> Any:
        body = self.model(
            "PaymentIn",
            provider="bank",
            reference=uuid4().hex,
            amount_minor=order.total_minor,
            currency=order.currency,
        )
        return self.call("create_payment", order.id, body=body)

    def held(self) -> int:
        return int(self.call("get_stock", "mug").parsed.reserved)

    def _module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self._package}{name}")


@pytest.fixture
def shop(package: str, service: Service) -> Iterator[Shop]:
    """A shop with ten mugs."""
    made = Shop(package, service)
    with made.client:
        found = made.call("get_stock", "mug")
        euro = made.model("StockInCurrency", value="EUR")
        body = made.model("StockIn", on_hand=10, price_minor=1250, currency=euro)
        tag = {"if_match": found.headers["ETag"]} if found.status_code == 200 else {}
        assert made.call("put_stock", "mug", body=body, **tag).status_code in (200, 201)
        yield made


def test_the_generated_client_plays_the_story(shop: Shop) -> None:
    others = shop.held()
    paid = shop.order(2)
    assert (paid.status, paid.total_minor, shop.held()) == ("unpaid", 2500, others + 2)
    payment = shop.pay(paid)
    assert (payment.status_code, payment.parsed.status) == (201, "applied")
    assert shop.call("get_order", paid.id).parsed.paid_at >= paid.created_at

    late = shop.order(1, timeout_seconds=1)

    def is_cancelled() -> bool:
        return bool(shop.call("get_order", late.id).parsed.cancel_reason == "expired")

    wait_until(is_cancelled, "the order to expire")
    too_late = shop.pay(late)
    assert (too_late.status_code, too_late.parsed.reason) == (202, "order_cancelled")
    due = shop.call("list_payments", status=shop.model("PaymentStatus", value="refund_due"))
    assert [each.id for each in due.parsed.data] == [too_late.parsed.id]
    body = shop.model("RefundIn", reference="re-1")
    refund = shop.call("refund_payment", too_late.parsed.id, body=body)
    assert refund.parsed.status == "refunded"

    unwanted = shop.order(3)
    assert shop.call("cancel_order", unwanted.id).parsed.cancel_reason == "requested"
    assert shop.held() == others


def test_the_generated_client_reads_pages_to_the_end(shop: Shop) -> None:
    placed = [shop.order(1).id for _ in range(3)]
    page = shop.call("list_orders", limit=2).parsed
    found = page.data
    while page.next_cursor is not None:
        page = shop.call("list_orders", limit=2, cursor=page.next_cursor).parsed
        found += page.data
    assert [each.id for each in found][:3] == placed[::-1]
    events = shop.call("list_events", placed[0]).parsed.data
    assert [(each.type_, each.data.id) for each in events] == [("order.created", placed[0])]


def test_the_generated_client_knows_problems(shop: Shop) -> None:
    refused = shop.order(1000)
    available = 10 - shop.held()
    assert (refused.status, refused.code, refused.available) == (409, "out_of_stock", available)
    assert shop.call("get_order", uuid4()).parsed.code == "order_not_found"
