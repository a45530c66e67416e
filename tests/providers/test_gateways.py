"""Asking a provider over HTTP, from the flow through `examples.gateway` to a stand-in for Stripe."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote

import pytest
import redis

from devtools.valkey import Valkey
from examples.gateway import Gateway, Stripe
from orders.config import MAX_BODY_BYTES
from orders.errors import OrderError
from orders.features.providers.attempts.domain import Closer, DueAttempt
from orders.features.providers.attempts.flow import attempt_flow
from orders.features.providers.attempts.gateway import Reply, close
from orders.features.providers.errors import GatewayUnavailable
from orders.features.providers.schemas import OtherReply, PaidReply
from orders.features.providers.service import Providers
from orders.features.signing.sender import Answer, HttpSender
from orders.features.signing.signatures import new_secret, verify
from tests.kit.api import serving
from tests.kit.receiver import receiving
from tests.providers.provider import Till

SECRET = new_secret()
AT = datetime(2026, 11, 24, 3, tzinfo=UTC)
CREATED = 1_767_225_599


class Recorder:
    """Answers one text, and keeps what was sent."""

    def __init__(self, status: int | None, body: str | None) -> None:
        self.answer = Answer(status, None if status else "timed out", body)
        self.sent: list[tuple[str, dict[str, str], bytes]] = []

    def post(self, url: str, headers: dict[str, str], body: bytes, /) -> Answer:
        self.sent.append((url, headers, body))
        return self.answer


ORDER_ID = "01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f"
ATTEMPT = DueAttempt(
    *("01936d5e-0000-7b3e-9f04-2a6b8c0d1e2f", ORDER_ID, "a client", "bank", "tx-1", 250, "EUR"),
    ends_in_ms=0,
    asks=True,
    is_over=False,
)
PAID = f'{{"outcome":"paid","provider":"Bank","order_id":"{ORDER_ID}","reference":"tx-1","amount_minor":250,"currency":"eur"}}'
TAKEN = PaidReply(
    outcome="paid",
    provider="bank",
    order_id=ORDER_ID,
    reference="tx-1",
    amount_minor=250,
    currency="EUR",
)


@pytest.mark.parametrize(
    ("status", "body", "reply"),
    [
        (200, '{"outcome":"closed","more":1}', OtherReply(outcome="closed")),
        (
            200,
            '{"outcome":"closed","provider":"BANK "}',
            OtherReply(outcome="closed", provider="bank"),
        ),
        (200, '{"outcome":"closed","reference":1}', GatewayUnavailable),
        (200, '{"outcome":"unknown"}', OtherReply(outcome="unknown")),
        (202, PAID, TAKEN),
        (200, PAID.replace("250", "250.0"), TAKEN),
        (200, PAID.replace(ORDER_ID, f" {ORDER_ID.upper()}"), TAKEN),
        (200, '{"outcome":"refused"}', GatewayUnavailable),
        (200, '{"outcome":"paid"}', GatewayUnavailable),
        (200, PAID.replace("provider", "id"), GatewayUnavailable),
        (200, PAID.replace("order_id", "id"), GatewayUnavailable),
        (200, PAID.replace("reference", "id"), GatewayUnavailable),
        (200, PAID.replace("{", '{"outcome":"closed",'), GatewayUnavailable),
        (200, PAID.replace("250", "0"), GatewayUnavailable),
        (200, PAID.replace("250", "2.5"), GatewayUnavailable),
        (200, PAID.replace("eur", "euro"), GatewayUnavailable),
        (200, PAID.replace("}", ',"paid_at":"2026-01-01T00:00:00"}'), GatewayUnavailable),
        (200, PAID.replace("}", ',"paid_at":1767225600}'), GatewayUnavailable),
        (200, PAID.replace("}", ',"paid_at":"9999-12-31T23:59:59-14:00"}'), GatewayUnavailable),
        (200, "<html>", GatewayUnavailable),
        (200, "", GatewayUnavailable),
        (404, '{"outcome":"closed"}', GatewayUnavailable),
        (429, '{"outcome":"closed"}', GatewayUnavailable),
        (500, '{"outcome":"closed"}', GatewayUnavailable),
        (None, None, GatewayUnavailable),
    ],
)
def test_only_what_makes_sense_is_an_answer(
    status: int | None, body: str | None, reply: Reply | type[OrderError]
) -> None:
    sender: Any = Recorder(status, body)
    gateway = partial(close, sender, Closer("https://bank.example/close", (SECRET,), AT))
    if isinstance(reply, type):
        with pytest.raises(reply):
            gateway(ATTEMPT)
    else:
        assert gateway(ATTEMPT) == reply
    [(url, headers, sent)] = sender.sent
    assert url == "https://bank.example/close"
    names = {"provider": "bank", "order_id": ORDER_ID, "reference": "tx-1"}
    data = {**names, "amount_minor": 250, "currency": "EUR"}
    assert json.loads(sent) == {"type": "payment.close", "data": data}
    assert verify(headers, sent, [SECRET], now_seconds=AT.timestamp()), "whatever this clock says"


def test_an_answer_may_be_as_long_as_a_report() -> None:
    with receiving() as provider:
        sender = HttpSender(30, allow_private=True)
        gateway = partial(close, sender, Closer(provider.url, (SECRET,), AT))
        for length in (1_100, MAX_BODY_BYTES):
            more = "x" * (length - len(PAID) - len('"more":"",'))
            provider.text = PAID.replace("{", f'{{"more":"{more}",').encode()
            assert len(provider.text) == length
            assert gateway(ATTEMPT) == TAKEN
        provider.text = provider.text.replace(b"xx", b"xxx", 1)
        with pytest.raises(GatewayUnavailable):
            gateway(ATTEMPT)


class FakeStripe(BaseHTTPRequestHandler):
    """Checkout sessions whose ids say what became of them."""

    #: By session, the order that it is for.
    orders: ClassVar[dict[str, str]] = {}
    expired: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.expired.append(unquote(self.path.split("/")[-2]))
        self._answer(200, {})

    def do_GET(self) -> None:
        session_id = unquote(self.path.split("/")[-1].partition("?")[0])
        if session_id == ".":
            self._answer(200, {"object": "list"})
            return
        if session_id not in self.orders:
            self._answer(404, {})
            return
        status = "expired" if session_id in self.expired else "open"
        paid = {"latest_charge": {"created": CREATED}} if session_id == "paid" else None
        session = {
            "id": session_id,
            "client_reference_id": self.orders[session_id],
            "status": "complete" if session_id in ("paid", "debit", "subscription") else status,
            "payment_status": "paid" if paid or session_id == "subscription" else "unpaid",
        }
        currency = None if session_id == "setup" else "eur"
        money = {"amount_total": 250, "currency": currency, "payment_intent": paid}
        self._answer(200, session | money)

    def _answer(self, status: int, body: Any) -> None:
        assert self.headers["Authorization"] == "Bearer sk_test"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a port of this machine; its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_stripe_is_asked_through_a_gateway_of_the_shops(
    migrated_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,  # noqa: ARG001  empties it
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        serving(migrated_url, valkey.url, webhook_allow_private=True) as api,
        listening(FakeStripe) as stripe,
        listening(Gateway) as url,
    ):
        till = Till(api)
        till.flow = attempt_flow(api.services)
        monkeypatch.setattr(Gateway, "stripe", Stripe("sk_test", stripe, "bank"), raising=False)
        monkeypatch.setattr(Gateway, "secret", till.bank.secret)
        till.services[Providers].set_close_url(till.bank.endpoint.id, f"{url}/close")
        mistaken = ["theirs", "setup", ".", "subscription", "paid?expand[]=x"]
        placed = {
            each: till.place(timeout_seconds=600) for each in (*mistaken, "open", "paid", "debit")
        }
        sessions = {**placed, "theirs": placed["open"]}
        monkeypatch.setattr(
            FakeStripe, "orders", {each: sessions[each] for each in sessions if "?" not in each}
        )
        monkeypatch.setattr(FakeStripe, "expired", [])
        for reference, order_id in placed.items():
            till.open(order_id, reference)
        till.pass_(1000)
        causes = [type(each.__cause__) for each in till.settle().values()]
        assert causes.count(GatewayUnavailable) == len(mistaken) == len(causes) - 1
        for order_id in placed.values():
            till.expire(order_id)
        found = {each: till.status(order_id) for each, order_id in placed.items()}
        assert found == {
            "open": "cancelled",
            "paid": "paid",
            "debit": "unpaid",
            **dict.fromkeys(mistaken, "unpaid"),
        }
        assert FakeStripe.expired == ["open"], "only what is the order's own"
        paid: Any = api.send("GET", f"/v1/orders/{placed['paid']}/payments").json
        [payment] = paid["data"]
        assert payment["paid_at"] == "2025-12-31T23:59:59.000Z"
