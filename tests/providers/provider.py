"""A payment provider that reports to the API, and is asked."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from werkzeug.test import TestResponse

from orders.db.base import Instant
from orders.db.tables import unpaid_orders
from orders.features.providers.attempts.domain import DueAttempt
from orders.features.providers.attempts.flow import attempt_flow
from orders.features.providers.attempts.gateway import Gateway, Reply
from orders.features.providers.domain import MOST_WAITING
from orders.features.providers.entries import Entries
from orders.features.providers.schemas import CloseReply
from orders.features.providers.service import Providers
from orders.features.providers.tables import payment_attempts
from orders.features.signing.signatures import signed
from orders.order.domain import Payment
from orders.order.payments import PaymentResult
from orders.queues import QUEUE
from tests.kit.api import Api, content
from tests.kit.expiring import expire_now
from tests.kit.shop import Shop
from worker import DelayQueue, Outcome, Task


class Provider:
    """A payment provider with an endpoint for one client."""

    def __init__(self, api: Api, client: str = "customer") -> None:
        self.api = api
        self.endpoint, self.secret = api.services[Providers].add(client, "bank")
        self.path = f"/v1/providers/{self.endpoint.id}/webhook"

    def deliver(
        self,
        body: bytes,
        *,
        message_id: str = "m-1",
        late_seconds: float = 0,
        secrets: list[str] | None = None,
        content_type: str = "application/json",
        **changed: str | None,
    ) -> TestResponse:
        """Send bytes, signed. Headers may be changed afterwards, and with None left out."""
        now = time.time() - late_seconds
        headers = signed(message_id, body, secrets or [self.secret], now_seconds=now)
        for name, value in changed.items():
            headers |= {name.replace("_", "-"): value or ""}
        headers = {name: value for name, value in headers.items() if value}
        client = self.api.app.test_client()  # of its own: threads may share a provider
        return client.post(self.path, data=body, headers=headers, content_type=content_type)

    def report(self, kind: str, message_id: str = "m-1", /, **data: Any) -> TestResponse:
        body = {"type": kind, "timestamp": "2026-01-01T00:00:00Z", "data": data}
        return self.deliver(json.dumps(body).encode(), message_id=message_id)

    def paid(self, order_id: str, reference: str = "tx-1", **data: Any) -> TestResponse:
        money = {"amount_minor": 250, "currency": "EUR", **data}
        return self.report("payment.succeeded", order_id=order_id, reference=reference, **money)

    def refunded(
        self, payment: str, reference: str = "re-1", kind: str = "refund.succeeded", **data: Any
    ) -> TestResponse:
        return self.report(kind, payment_reference=payment, reference=reference, **data)


def waits(response: TestResponse) -> bool:
    assert response.status_code == 202, response.get_data()
    return bool(json.loads(response.get_data()) == {"outcome": "waiting", "payment_id": None})


def fill_inbox(engine: sa.Engine, endpoint_id: str) -> None:
    """As many messages of an endpoint as may wait, but for one."""
    rows = sa.text(
        "INSERT INTO provider_messages (id, endpoint_id, webhook_id, body, created_at, status, note)"
        " SELECT gen_random_uuid(), :endpoint, 'm', '', now() - interval '2 h', 'waiting', 'odd'"
        " FROM generate_series(1, :most)"
    )
    with engine.begin() as connection:
        connection.execute(rows, {"endpoint": endpoint_id, "most": MOST_WAITING - 1})


def report(shop: Shop, payment: Payment, kind: str, reference: str, **more: Any) -> PaymentResult:
    of = {"payment_reference": payment.reference, "reference": reference, **more}
    return Entries(shop.engine).enter(shop.client, payment.provider, kind, **of)


#: What a scripted answer of a payment may leave out, to be what it is asked about.
NAMES = ("provider", "order_id", "reference")
CLOSED: dict[str, Any] = {"outcome": "closed"}
UNKNOWN: dict[str, Any] = {"outcome": "unknown"}
PAID: dict[str, Any] = {"outcome": "paid", "amount_minor": 250, "currency": "EUR"}


class Scripted:
    """A provider that gives one answer after another, and the last one for ever."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[dict[str, Any] | Exception] = [CLOSED]
        self.hangs: threading.Event | None = None

    def __call__(self, attempt: DueAttempt) -> Reply:
        self.asked.append(attempt.reference)
        if self.hangs is not None:
            self.hangs.wait(60)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer["outcome"] == "paid":
            answer = {name: getattr(attempt, name) for name in NAMES} | answer
        return CloseReply.model_validate(answer).root


class Till:
    """The application, a provider that reports to it, and the flow that settles attempts."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.services = api.services
        self.bank = Provider(api)
        self.gateway = Scripted()
        self.flow = attempt_flow(api.services, self._find)

    def _find(self, _client_id: str, _provider: str) -> Gateway | None:
        return self.gateway

    def asks(self) -> None:
        """From now on attempts at this provider are asked about."""
        url = "https://bank.example/close"
        self.services[Providers].set_close_url(self.bank.endpoint.id, url)

    def place(self, **body: Any) -> str:
        return str(content(self.api.place(**body))["id"])

    def open(self, order_id: str, reference: str = "tx-1", **body: Any) -> TestResponse:
        body = {"provider": "bank", "reference": reference, **body}
        return self.api.send("POST", f"/v1/orders/{order_id}/payment-attempts", body)

    def move(self, order_id: str, deadline: timedelta) -> TestResponse:
        """Have it expire so long from now."""
        body = {"expires_at": (datetime.now(UTC) + deadline).isoformat()}
        return self.api.send("PATCH", f"/v1/orders/{order_id}", body, headers={"If-Match": "*"})

    def attempts(self, order_id: str) -> Any:
        return content(self.api.send("GET", f"/v1/orders/{order_id}/payment-attempts"))["data"]

    def outcomes(self, order_id: str) -> list[str | None]:
        return [each["outcome"] for each in self.attempts(order_id)]

    def pass_(self, seconds: float) -> None:
        """Have time pass for orders and attempts."""
        earlier = sa.literal(timedelta(seconds=seconds), sa.Interval)
        with self.services.engine.begin() as connection:
            for table in (unpaid_orders, payment_attempts):
                moved = {each: each - earlier for each in table.c if each.type is Instant}
                connection.execute(sa.update(table).values(moved))

    def alter(self, action: str) -> None:
        with self.services.engine.begin() as connection:
            connection.execute(sa.text(f"ALTER TABLE payment_attempts {action}"))

    def settle(self) -> dict[str, Outcome]:
        """Let the flow look at all attempts that are not settled."""
        found: dict[str, Outcome] = {}
        with self.services.engine.connect() as connection:
            open_ = payment_attempts.c.settled_at.is_(None)
            ids = connection.execute(sa.select(payment_attempts.c.id).where(open_)).scalars().all()
        for each in ids:
            found.update(self.flow.handler([Task(each)]) or {})
        return found

    def expire(self, order_id: str) -> dict[str, float]:
        return expire_now(self.services.orders, [order_id])

    def status(self, order_id: str) -> str:
        return str(content(self.api.send("GET", f"/v1/orders/{order_id}"))["status"])

    def checks_due(self) -> int:
        """How many orders' checks are due."""
        return DelayQueue(self.services.redis, QUEUE).stats().due
