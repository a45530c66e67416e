"""Asking a provider over HTTP, from the flow through `examples.gateway` to a stand-in for Stripe."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote

import pytest
import redis

from devtools.valkey import Valkey
from examples.gateway import Gateway, Stripe
from orders.attempts.circuit import FIRST_SECONDS, MOST_FAILURES, MOST_SECONDS, Circuit
from orders.attempts.domain import Closed, Closer, DueAttempt, Paid, Reply, Unknown
from orders.attempts.flow import attempt_flow
from orders.attempts.gateway import HttpGateway
from orders.config import MAX_BODY_BYTES
from orders.errors import GatewayUnavailable
from orders.webhooks.domain import Answer
from orders.webhooks.sender import WebhookSender
from orders.webhooks.signatures import new_secret, verify
from tests.conftest import serving
from tests.integration.test_attempts import Till
from tests.receiver import receiving

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
    is_unpaid=True,
)
PAID = f'{{"outcome":"paid","order_id":"{ORDER_ID}","reference":"tx-1","amount_minor":250,"currency":"eur"}}'


@pytest.mark.parametrize(
    ("status", "body", "reply"),
    [
        (200, '{"outcome":"closed","more":1}', Closed()),
        (200, '{"outcome":"unknown"}', Unknown()),
        (202, PAID, Paid(ORDER_ID, "tx-1", 250, "EUR")),
        (200, PAID.replace("250", "250.0"), Paid(ORDER_ID, "tx-1", 250, "EUR")),
        (200, PAID.replace(ORDER_ID, f" {ORDER_ID.upper()}"), Paid(ORDER_ID, "tx-1", 250, "EUR")),
        (200, '{"outcome":"refused"}', None),
        (200, '{"outcome":"paid"}', None),
        (200, PAID.replace("order_id", "id"), None),
        (200, PAID.replace("reference", "id"), None),
        (200, PAID.replace("{", '{"outcome":"closed",'), None),
        (200, PAID.replace("250", "0"), None),
        (200, PAID.replace("250", "2.5"), None),
        (200, PAID.replace("eur", "euro"), None),
        (200, PAID.replace("}", ',"paid_at":"2026-01-01T00:00:00"}'), None),
        (200, PAID.replace("}", ',"paid_at":1767225600}'), None),
        (200, PAID.replace("}", ',"paid_at":"9999-12-31T23:59:59-14:00"}'), None),
        (200, "<html>", None),
        (200, "", None),
        (404, '{"outcome":"closed"}', None),
        (500, '{"outcome":"closed"}', None),
        (None, None, None),
    ],
)
def test_only_what_makes_sense_is_an_answer(
    status: int | None, body: str | None, reply: Reply | None
) -> None:
    sender = Recorder(status, body)
    gateway = HttpGateway(sender, Closer("https://bank.example/close", (SECRET,), AT))
    if reply is None:
        with pytest.raises(GatewayUnavailable):
            gateway.close(ATTEMPT)
    else:
        assert gateway.close(ATTEMPT) == reply
    [(url, headers, sent)] = sender.sent
    assert url == "https://bank.example/close"
    data = {"order_id": ORDER_ID, "reference": "tx-1", "amount_minor": 250, "currency": "EUR"}
    assert json.loads(sent) == {"type": "payment.close", "data": data}
    assert verify(headers, sent, [SECRET], now_seconds=AT.timestamp()), "whatever this clock says"


def test_an_answer_may_be_as_long_as_a_report() -> None:
    with receiving() as provider:
        gateway = HttpGateway(
            WebhookSender(30, allow_private=True), Closer(provider.url, (SECRET,), AT)
        )
        for length in (1_100, MAX_BODY_BYTES):
            more = "x" * (length - len(PAID) - len('"more":"",'))
            provider.text = PAID.replace("{", f'{{"more":"{more}",').encode()
            assert len(provider.text) == length
            assert gateway.close(ATTEMPT) == Paid(ORDER_ID, "tx-1", 250, "EUR")
        provider.text = provider.text.replace(b"xx", b"xxx", 1)
        with pytest.raises(GatewayUnavailable):
            gateway.close(ATTEMPT)


def test_a_circuit_opens_lets_one_try_and_closes() -> None:
    now = [0.0]
    circuit = Circuit(lambda: now[0])
    opened = []
    for _ in range(MOST_FAILURES):
        assert circuit.wait_seconds() == 0
        opened.append(circuit.failed())
    assert opened == [False] * (MOST_FAILURES - 1) + [True]
    assert circuit.wait_seconds() == FIRST_SECONDS
    now[0] += FIRST_SECONDS
    assert [circuit.wait_seconds() for _ in range(3)] == [0, FIRST_SECONDS, FIRST_SECONDS]
    assert circuit.failed()
    assert circuit.wait_seconds() == 2 * FIRST_SECONDS
    for _ in range(9):
        circuit.failed()
    assert circuit.wait_seconds() == MOST_SECONDS
    now[0] += MOST_SECONDS
    assert circuit.wait_seconds() == 0
    circuit.succeeded()
    assert (circuit.wait_seconds(), circuit.is_open, circuit.failed()) == (0, False, False)


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
        if session_id not in self.orders:
            self._answer(404, {})
            return
        status = "expired" if session_id in self.expired else "open"
        paid = {"latest_charge": {"created": CREATED}} if session_id == "paid" else None
        session = {
            "id": session_id,
            "client_reference_id": self.orders[session_id],
            "status": "complete" if session_id in ("paid", "debit") else status,
            "payment_status": "paid" if paid else "unpaid",
        }
        money = {"amount_total": 250, "currency": "eur", "payment_intent": paid}
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
        till.flow = attempt_flow(api.services, spacing_seconds=0)
        monkeypatch.setattr(Gateway, "stripe", Stripe("sk_test", stripe), raising=False)
        monkeypatch.setattr(Gateway, "secret", till.bank.secret)
        till.services.providers.set_close_url(till.bank.endpoint.id, f"{url}/close")
        mistaken = {"paid?expand[]=x#", "paid?expand[]=x#2", "theirs"}
        placed = {
            each: till.place(timeout_seconds=600) for each in ("open", "paid", "debit", *mistaken)
        }
        sessions = {**placed, "theirs": placed["open"]}
        monkeypatch.setattr(
            FakeStripe, "orders", {each: sessions[each] for each in sessions if "?" not in each}
        )
        monkeypatch.setattr(FakeStripe, "expired", [])
        for reference, order_id in placed.items():
            till.open(order_id, reference)
        till.pass_(1000)
        assert len(till.settle()) == 1 + len(mistaken)
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
