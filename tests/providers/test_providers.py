"""Webhooks of payment providers: who may report payments, and what becomes of each report."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs
from werkzeug.test import TestResponse

from devtools.postgres import Postgres
from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.caches import CACHE_SECONDS
from orders.config import MAX_BODY_BYTES
from orders.db.base import metadata
from orders.errors import ClientNotFound
from orders.features.providers.errors import EndpointNotFound
from orders.features.providers.service import KEPT, Providers
from orders.features.providers.tables import provider_messages, provider_secrets
from orders.features.signing.errors import SignatureInvalid
from orders.features.signing.signatures import TOLERANCE_SECONDS, new_secret
from orders.features.throttling.rate_limits import WRONG_KEYS_BURST, RateLimits  # <throttling/>
from tests.kit.api import Api, serving
from tests.kit.databases import upgrade
from tests.kit.races import together
from tests.providers.provider import Provider, fill_inbox, waits

HEADERS = ["webhook-id", "webhook-timestamp", "webhook-signature"]


@pytest.fixture
def provider(api: Api) -> Provider:
    return Provider(api)


@pytest.fixture
def order_id(api: Api) -> str:
    return place(api)


def place(api: Api) -> str:
    return str(json.loads(api.place().get_data())["id"])


def message(order_id: str) -> bytes:
    data = {"order_id": order_id, "reference": "tx-1", "amount_minor": 250, "currency": "EUR"}
    return json.dumps({"type": "payment.succeeded", "data": data}).encode()


def outcome(response: TestResponse) -> str:
    assert response.status_code == 200, response.get_data()
    return str(json.loads(response.get_data())["outcome"])


def problem(response: TestResponse) -> tuple[int, str]:
    assert response.content_type == "application/problem+json"
    return response.status_code, json.loads(response.get_data())["code"]


def order(api: Api, order_id: str) -> Any:
    return json.loads(api.send("GET", f"/v1/orders/{order_id}").get_data())


def payments(api: Api, order_id: str) -> list[Any]:
    page = api.send("GET", f"/v1/orders/{order_id}/payments")
    return list(json.loads(page.get_data())["data"])


def tables(api: Api) -> dict[str, list[Any]]:
    with api.services.engine.begin() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(sa.select(table))))
            for table in metadata.sorted_tables
            if table.name != "api_keys"  # which note when they were used
        }


def inbox(api: Api, status: str = "waiting") -> list[Any]:
    page = api.send("GET", f"/v1/providers/messages?status={status}", key="ops")
    return list(json.loads(page.get_data())["data"])


def settle(api: Api, how: str, message_id: str) -> tuple[str, str]:
    """Replay or dismiss a message; what became of it."""
    path = f"/v1/providers/messages/{message_id}/{how}"
    message = json.loads(api.send("POST", path, key="ops").get_data())
    return message["status"], message["note"]


def but_the_inbox(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: rows for name, rows in found.items() if name != "provider_messages"}


# -- what is reported ----------------------------------------------------------------------


def test_a_reported_payment_pays_its_order(api: Api, provider: Provider, order_id: str) -> None:
    response = provider.paid(order_id)
    assert outcome(response) == "applied"
    assert order(api, order_id)["status"] == "paid"
    [payment] = payments(api, order_id)
    assert payment["id"] == json.loads(response.get_data())["payment_id"]
    assert (payment["provider"], payment["reference"]) == ("bank", "tx-1")
    assert json.loads(api.send("GET", "/v1/stock/tea").get_data())["on_hand"] == 99


def test_a_report_that_comes_again_changes_nothing(
    api: Api, provider: Provider, order_id: str
) -> None:
    assert outcome(provider.paid(order_id)) == "applied"
    before = tables(api)
    again = provider.paid(order_id)
    assert outcome(again) == "replayed"
    assert again.headers["Idempotent-Replayed"] == "true"
    assert tables(api) == before
    assert outcome(provider.deliver(message(order_id), message_id="m-2")) == "replayed"
    assert but_the_inbox(tables(api)) == but_the_inbox(before)


def test_fifty_deliveries_of_one_message_at_once_are_one_payment(
    migrated_url: str, valkey: Valkey
) -> None:
    patient = {"statement_timeout_seconds": 60, "lock_timeout_seconds": 60, "lease_seconds": 61}
    with serving(migrated_url, valkey.url, database_pool_size=50, **patient) as api:
        provider, order_id = Provider(api), place(api)
        responses = together(*[lambda: provider.deliver(message(order_id))] * 50)
        assert sorted(map(outcome, responses)) == ["applied"] + 49 * ["replayed"]
        assert len(payments(api, order_id)) == 1


def test_a_payment_reported_with_a_key_is_the_same_to_a_webhook(
    api: Api, provider: Provider, order_id: str
) -> None:
    assert api.pay(order_id, "tx-1").status_code == 201
    assert outcome(provider.paid(order_id)) == "replayed"
    assert api.pay(order_id, "tx-1").headers["Idempotent-Replayed"] == "true"


def test_money_that_an_order_cannot_take_is_refunded(
    api: Api, provider: Provider, order_id: str
) -> None:
    assert api.send("POST", f"/v1/orders/{order_id}/cancel").status_code == 200
    wrong = place(api)
    assert outcome(provider.paid(order_id, "late")) == "refund_due"
    assert outcome(provider.paid(wrong, "little", amount_minor=249)) == "refund_due"
    assert outcome(provider.paid(wrong, "dollars", currency="USD")) == "refund_due"
    due = json.loads(api.send("GET", "/v1/payments?status=refund_due").get_data())["data"]
    assert {payment["reference"]: payment["reason"] for payment in due} == {
        "late": "order_cancelled",
        "little": "wrong_amount",
        "dollars": "wrong_amount",
    }
    assert order(api, order_id)["status"] == "cancelled"
    assert order(api, wrong)["status"] == "unpaid"

    assert outcome(provider.refunded("late")) == "refunded"
    [payment] = payments(api, order_id)
    assert (payment["status"], payment["refund_reference"]) == ("refunded", "re-1")
    before = tables(api)
    assert outcome(provider.refunded("late")) == "replayed"
    assert tables(api) == before


def test_a_provider_refunds_parts_of_what_paid_an_order(
    api: Api, provider: Provider, order_id: str
) -> None:
    assert outcome(provider.paid(order_id)) == "applied"
    cent: dict[str, Any] = {"amount_minor": 1, "currency": "EUR"}
    assert outcome(provider.refunded("tx-1", **cent)) == "refunded"
    assert outcome(provider.refunded("tx-1", **cent)) == "replayed"
    assert waits(provider.refunded("tx-1", "re-2", currency="USD"))
    assert order(api, order_id)["refunded_minor"] == 1
    assert outcome(provider.refunded("tx-1", "dp-1", "dispute.opened")) == "disputed"
    assert outcome(provider.refunded("tx-1", "dp-1", "dispute.opened")) == "replayed"
    assert outcome(provider.refunded("tx-1", "dp-1", "dispute.lost")) == "disputed"
    assert outcome(provider.refunded("tx-1", "re-2")) == "refunded"
    assert problem(provider.refunded("tx-1", "re-3")) == (409, "already_refunded")
    after = order(api, order_id)
    assert (after["status"], after["refunded_minor"]) == ("paid", 250)
    [payment] = payments(api, order_id)
    assert (payment["status"], payment["refunded_minor"]) == ("refunded", 250)
    page = json.loads(api.send("GET", f"/v1/orders/{order_id}/events").get_data())["data"]
    assert [event["type"] for event in page[2:]] == [
        *("order.refunded", "payment.disputed", "payment.disputed", "order.refunded")
    ]


def test_a_refund_that_fails_later_is_due_again(
    api: Api, provider: Provider, order_id: str
) -> None:
    api.send("POST", f"/v1/orders/{order_id}/cancel")
    assert outcome(provider.paid(order_id)) == "refund_due"
    failed = ("tx-1", "re-1", "refund.failed")
    assert outcome(provider.refunded("tx-1")) == "refunded"
    overtaking = partial(provider.refunded, "tx-1", "re-2", amount_minor=250.0)
    assert problem(overtaking()) == (409, "already_refunded"), "it comes again, too"
    assert [each["note"] for each in inbox(api)] == [
        "All of this payment was already refunded, with other references."
    ]
    assert outcome(provider.refunded(*failed)) == "failed"
    assert outcome(provider.refunded(*failed)) == "replayed"
    assert outcome(provider.refunded("tx-1")) == "replayed", "its report comes again"
    due: Any = api.send("GET", "/v1/payments?status=refund_due").json
    assert [each["refunded_minor"] for each in due["data"]] == [0]
    assert outcome(overtaking()) == "refunded"
    page: Any = api.send("GET", f"/v1/orders/{order_id}/events").json
    assert [event["type"] for event in page["data"][3:]] == [
        *("payment.refunded", "payment.refund_failed", "payment.refunded")
    ]
    assert inbox(api) == []


def test_a_refund_before_its_payment_is_taken_when_it_returns(
    api: Api, provider: Provider, order_id: str
) -> None:
    api.send("POST", f"/v1/orders/{order_id}/cancel")
    assert problem(provider.refunded("tx-1")) == (404, "payment_not_found")
    assert [each["note"] for each in inbox(api)] == ["There is no such payment."], "until then"
    assert outcome(provider.paid(order_id)) == "refund_due"
    assert outcome(provider.refunded("tx-1")) == "refunded"
    assert inbox(api) == []


def test_the_first_of_each_unknown_type_waits(api: Api, provider: Provider, order_id: str) -> None:
    """A provider sends types without end, and one of them may be about money."""
    stranger = Provider(api, "other")
    before = but_the_inbox(tables(api))
    for message_id in ("m-1", "m-2", "m-1"):
        response = provider.report("payment.failed", message_id, order_id=order_id)
        assert json.loads(response.get_data()) == {"outcome": "ignored", "payment_id": None}
    assert outcome(provider.deliver(b'{"type": "ping"}')) == "ignored"
    assert outcome(stranger.deliver(b'{"type": "ping"}')) == "ignored"
    first, ping, theirs = inbox(api)
    assert (first["webhook_id"], first["note"]) == ("m-1", "unknown type payment.failed")
    assert (ping["client"], theirs["client"]) == ("customer", "other")
    assert settle(api, "replay", ping["id"]) == ("waiting", "unknown type ping")
    assert settle(api, "dismiss", ping["id"]) == ("settled", "dismissed")
    assert outcome(provider.deliver(b'{"type":"ping"}')) == "ignored"
    assert inbox(api) == [first, theirs]
    assert but_the_inbox(tables(api)) == before


def test_fields_that_a_provider_adds_are_ignored(provider: Provider, order_id: str) -> None:
    assert outcome(provider.paid(order_id, fee_minor=5, card={"brand": "any"})) == "applied"


def test_what_contradicts_what_is_known_is_refused_and_logged(
    api: Api, provider: Provider, order_id: str
) -> None:
    assert outcome(provider.paid(order_id)) == "applied"
    second = place(api)
    assert outcome(provider.paid(second, "tx-2", amount_minor=1)) == "refund_due"
    assert outcome(provider.refunded("tx-1", "dp-2", "dispute.opened")) == "disputed"
    failed = provider.report("payment.failed", order_id=order_id, reference="tx-3")
    assert outcome(failed) == "ignored", "there is nothing to end"
    before = tables(api)
    with capture_logs() as logs:
        assert waits(provider.paid(second))
        assert waits(provider.paid(order_id, amount_minor=1))
        assert waits(provider.refunded("tx-1", order_id=second))
        assert waits(provider.refunded("tx-1", "dp-1", "dispute.opened", order_id=second))
        assert waits(provider.refunded("tx-2", "dp-2", "dispute.lost"))
        assert waits(provider.report("payment.failed", order_id=second, reference="tx-3"))
        for kind in ("payment.failed", "payment.pending"):
            assert waits(provider.report(kind, order_id=second, reference="tx-1"))
        assert problem(provider.refunded("tx-1", amount_minor=251)) == (409, "refund_too_large")
    refused = [line for line in logs if line["event"] == "webhook refused"]
    assert [line["error"] for line in refused] == 8 * ["ReferenceReused"] + ["RefundTooLarge"]
    assert {line["webhook_id"] for line in refused} == {"m-1"}
    assert provider.secret not in repr(logs)
    assert but_the_inbox(tables(api)) == but_the_inbox(before)
    assert [each["note"].split(".")[0] for each in inbox(api)] == [
        *8 * ["This reference was already used for a different order, amount, currency or refund"],
        "That is more than is left of this payment",
    ]


# -- what cannot be read ------------------------------------------------------------------


def test_what_can_mean_one_thing_only_is_read(api: Api, provider: Provider, order_id: str) -> None:
    response = provider.paid(f" {order_id.upper()}", " tx-1 ", currency="eur ", amount_minor=250.0)
    assert outcome(response) == "applied"
    assert outcome(provider.paid(order_id)) == "replayed"
    money = {"currency": "Eur", "order_id": order_id.upper()}
    assert outcome(provider.refunded("tx-1 ", " re-1", **money)) == "refunded"
    assert inbox(api) == []
    assert inbox(api, "settled") == [], "of what is recorded at once, nothing else is kept"


MONEY: dict[str, Any] = {"reference": "tx-1", "amount_minor": 250, "currency": "EUR"}


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (b"", "The body is not JSON: line 1, column 1."),
        (b"[]", "The body is not a JSON object."),
        (b'{"\xff": 1}', "The body is not UTF-8: byte 2."),
        ({}, "other.type: "),
        ({"type": 1}, "other.type: "),
        ({"type": ["payment.succeeded"]}, "other.type: "),
        ({"type": ""}, "other.type: "),
        ({"type": "a\nb"}, "other.type: "),
        ({"type": "x" * 101}, "other.type: "),
        ({"type": "payment.succeeded"}, "payment.succeeded.data: "),
        ({"type": "payment.succeeded", "data": []}, "payment.succeeded.data: "),
        ({"type": "refund.succeeded", "data": {"reference": "re-1"}}, "entry.data.payment_referen"),
        *(
            ({"type": "payment.succeeded", "data": {**MONEY, **changed}}, next(iter(changed)))
            for changed in (
                *({"order_id": "1"}, {"order_id": "0" * 36}, {"order_id": None}),
                *({"reference": ""}, {"reference": "a b"}, {"reference": None}),
                *({"amount_minor": 0}, {"amount_minor": "250"}, {"amount_minor": 250.5}),
                *({"amount_minor": True}, {"amount_minor": 2**53}, {"currency": "EURO"}),
            )
        ),
    ],
)
def test_what_cannot_be_read_is_kept_as_it_came(
    api: Api, provider: Provider, order_id: str, body: bytes | dict[str, Any], note: str
) -> None:
    if isinstance(body, dict):
        if "data" in body and "payment" in body["type"] and body["data"]:
            body = {**body, "data": {"order_id": order_id, **body["data"]}}
        body = json.dumps(body).encode()
    before = but_the_inbox(tables(api))
    for _ in range(2):
        assert waits(provider.deliver(body, content_type="text/plain"))
    assert but_the_inbox(tables(api)) == before
    [kept] = inbox(api)
    assert note in kept["note"]
    assert kept["body"] == body.decode(errors="replace")
    assert (kept["client"], kept["provider"], kept["webhook_id"]) == ("customer", "bank", "m-1")
    assert settle(api, "replay", kept["id"]) == ("waiting", kept["note"])
    with api.services.engine.begin() as connection:
        assert [*connection.scalars(sa.select(provider_messages.c.body))] == [body]


def test_a_message_that_waits_is_replayed_or_dismissed(
    api: Api, provider: Provider, order_id: str
) -> None:
    other = api.services[Providers].add("customer", "card")[0]
    assert api.services[Providers]._look_up(provider.endpoint.id)  # so that it is cached
    Providers(api.services.engine).revoke(provider.endpoint.id)
    assert waits(provider.paid(order_id)), "its provider is registered no more"
    [kept] = inbox(api)
    assert settle(api, "replay", kept["id"]) == ("waiting", kept["note"])
    api.services[Providers].revoke(other.id)
    assert settle(api, "replay", kept["id"]) == ("settled", "applied")
    assert order(api, order_id)["status"] == "paid"
    before = tables(api)
    for how in ("replay", "dismiss"):
        assert settle(api, how, kept["id"]) == ("settled", "applied")
    assert tables(api) == before
    for how in ("replay", "dismiss"):
        path = f"/v1/providers/messages/{uuid4()}/{how}"
        assert problem(api.send("POST", path, key="ops")) == (404, "message_not_found")


def test_what_is_not_foreseen_is_kept_all_the_same(
    api: Api, provider: Provider, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.app.testing = False
    with monkeypatch.context() as patch:
        patch.setattr(api.services.orders, "pay", lambda *_, **__: 1 / 0)
        assert problem(provider.paid(order_id)) == (500, "internal_error")
    [kept] = inbox(api)
    assert kept["note"] == "ZeroDivisionError"
    assert outcome(provider.paid(order_id)) == "applied", "when the provider sends it again"
    assert inbox(api) == []


def test_messages_that_are_settled_are_deleted_in_time(
    api: Api, provider: Provider, order_id: str
) -> None:
    assert outcome(provider.paid(order_id)) == "applied"
    for body in (b"[", b"{"):
        assert waits(provider.deliver(body))
    assert settle(api, "dismiss", inbox(api)[0]["id"]) == ("settled", "dismissed")
    assert [each["body"] for each in inbox(api, "settled")] == [None]
    with api.services.engine.begin() as connection:
        old = provider_messages.c.created_at - KEPT - timedelta(minutes=1)
        connection.execute(sa.update(provider_messages).values(created_at=old))
    assert outcome(provider.refunded("tx-1")) == "refunded"
    assert inbox(api, "settled") == []
    assert len(inbox(api)) == 1, "what waits is never deleted"


def test_a_full_inbox_leaves_the_rest_with_its_provider(
    api: Api, provider: Provider, order_id: str
) -> None:
    fill_inbox(api.services.engine, provider.endpoint.id)
    assert waits(provider.deliver(b"{"))
    for body in (b"[", message(str(uuid4())), b'{"type": "odd", "data": {}}'):
        refused = provider.deliver(body)
        assert problem(refused) == (503, "inbox_full")
        assert refused.headers["Retry-After"] == "3600"
    assert waits(provider.deliver(b"{")), "it is kept already"
    assert outcome(provider.paid(order_id)) == "applied"
    assert waits(Provider(api).deliver(b"[")), "another endpoint's inbox"
    assert settle(api, "dismiss", inbox(api)[0]["id"]) == ("settled", "dismissed")
    assert waits(provider.deliver(b"["))


def test_a_body_over_the_limit_is_refused(provider: Provider) -> None:
    most = b'{"type": "a"}'.ljust(MAX_BODY_BYTES)
    assert outcome(provider.deliver(most)) == "ignored"
    assert problem(provider.deliver(most + b" ")) == (413, "request_entity_too_large")


# -- who may report ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]},
        {"late_seconds": TOLERANCE_SECONDS + 60},
        {"webhook_id": "m-2"},
        {name.replace("-", "_"): None for name in HEADERS},
    ],
    ids=repr,
)
def test_a_message_that_is_not_signed_for_now_is_refused(
    api: Api, provider: Provider, order_id: str, how: dict[str, Any]
) -> None:
    before = tables(api)
    assert problem(provider.deliver(message(order_id), **how)) == (401, "signature_invalid")
    assert problem(provider.deliver(b"{", **how)) == (401, "signature_invalid")
    assert tables(api) == before


def test_an_api_key_is_not_asked_for_and_does_not_help(
    api: Api, provider: Provider, order_id: str
) -> None:
    assert problem(api.send("POST", provider.path, {})) == (401, "signature_invalid")
    assert outcome(provider.paid(order_id)) == "applied"


def test_an_unknown_endpoint_looks_like_a_wrong_signature(
    api: Api, provider: Provider, order_id: str
) -> None:
    def answered() -> tuple[int, Any]:
        response = provider.deliver(message(order_id), secrets=[secret])
        return response.status_code, json.loads(response.get_data())

    secret = new_secret()
    wrong = answered()
    known, provider.path = provider.path, f"/v1/providers/{uuid4()}/webhook"
    assert answered() == wrong
    provider.path, secret = known, provider.secret
    api.services[Providers].revoke(provider.endpoint.id)
    assert answered() == wrong
    assert wrong[1]["code"] == "signature_invalid"


def test_whatever_is_wrong_the_same_work_is_done(
    api: Api, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the time taken does not tell which endpoints there are."""
    work: list[str] = []
    plain = Providers._look_up

    def looked_up(self: Providers, endpoint_id: str) -> Any:
        work.append("look-up")
        return plain(self, endpoint_id)

    def digest(*_: object) -> str:
        work.append("digest")
        return ""

    monkeypatch.setattr(Providers, "_look_up", looked_up)
    monkeypatch.setattr("orders.features.signing.signatures._signature", digest)
    headers = {"webhook-id": "m-1", "webhook-timestamp": "0", "webhook-signature": "v1,AAAA"}
    now = {"now": 0.0, "old": 10_000.0}
    known, unknown = provider.endpoint.id, str(uuid4())
    for endpoint_id, when in ((known, "now"), (known, "now"), (unknown, "now"), (known, "old")):
        with pytest.raises(SignatureInvalid):
            api.services[Providers].authenticate(endpoint_id, headers, b"{}", now_seconds=now[when])
        assert work == ["digest", "look-up", "digest"]
        work.clear()


def test_an_endpoint_reports_on_its_own_clients_orders_only(api: Api, order_id: str) -> None:
    stranger = Provider(api, "other")
    before = but_the_inbox(tables(api))
    assert problem(stranger.paid(order_id)) == (404, "order_not_found")
    assert problem(stranger.paid(str(uuid4()))) == (404, "order_not_found")
    assert but_the_inbox(tables(api)) == before
    api.send("POST", f"/v1/orders/{order_id}/cancel")
    assert outcome(Provider(api).paid(order_id)) == "refund_due"
    assert problem(stranger.refunded("tx-1")) == (404, "payment_not_found")


def test_an_endpoint_reports_on_its_own_providers_payments_only(
    api: Api, provider: Provider, order_id: str
) -> None:
    api.send("POST", f"/v1/orders/{order_id}/cancel")
    assert outcome(provider.paid(order_id)) == "refund_due"
    other = Provider(api)
    other.endpoint, other.secret = api.services[Providers].add("customer", "card")
    other.path = f"/v1/providers/{other.endpoint.id}/webhook"
    assert problem(other.refunded("tx-1")) == (404, "payment_not_found")
    assert outcome(other.paid(order_id)) == "refund_due"
    assert len(payments(api, order_id)) == 2


# -- secrets -------------------------------------------------------------------------------


def test_both_secrets_work_during_a_rotation(
    api: Api, provider: Provider, order_id: str, tick: Callable[[float], None]
) -> None:
    elsewhere = Providers(api.services.engine)  # as in the process of the command line
    assert outcome(provider.paid(order_id)) == "applied"  # the old secret is cached
    new = elsewhere.rotate(provider.endpoint.id, timedelta(hours=1))
    for secrets in ([new], [provider.secret], [new, provider.secret], [new_secret(), new]):
        assert outcome(provider.deliver(message(order_id), secrets=secrets)) == "replayed"
    expire_secrets(api)
    tick(CACHE_SECONDS + 0.001)
    assert provider.deliver(message(order_id)).status_code == 401
    assert outcome(provider.deliver(message(order_id), secrets=[new])) == "replayed"
    newest = elsewhere.rotate(provider.endpoint.id, timedelta(0))
    assert secrets_of(api) == {new, newest}, "what has expired is deleted at the next rotation"
    tick(CACHE_SECONDS + 0.001)
    assert provider.deliver(message(order_id), secrets=[new]).status_code == 401
    assert outcome(provider.deliver(message(order_id), secrets=[newest])) == "replayed"


def expire_secrets(api: Api) -> None:
    """Those that are to expire have."""
    with api.services.engine.begin() as connection:
        connection.execute(
            sa.update(provider_secrets)
            .where(provider_secrets.c.expires_at.is_not(None))
            .values(expires_at=provider_secrets.c.created_at)
        )


def secrets_of(api: Api) -> set[str]:
    with api.services.engine.begin() as connection:
        return {*connection.scalars(sa.select(provider_secrets.c.secret))}


def test_a_rotation_whose_output_was_lost_may_be_repeated(
    api: Api, provider: Provider, order_id: str
) -> None:
    providers = api.services[Providers]
    providers.rotate(provider.endpoint.id, timedelta(hours=1))
    [before] = providers.list_endpoints("customer")
    new = providers.rotate(provider.endpoint.id, timedelta(hours=2))
    assert outcome(provider.deliver(message(order_id))) == "applied"
    assert outcome(provider.deliver(message(order_id), secrets=[new])) == "replayed"
    assert before.old_secret_until is not None
    with api.services.engine.begin() as connection:
        ends = connection.scalars(
            sa.select(provider_secrets.c.expires_at).where(
                provider_secrets.c.secret == provider.secret
            )
        ).one()
    assert ends == before.old_secret_until, "a second rotation makes none last longer"


def test_an_old_secret_is_cached_no_longer_than_it_lasts(
    api: Api,
    provider: Provider,
    order_id: str,
    tick: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orders.caches.CACHE_SECONDS", 600.0)
    elsewhere = Providers(api.services.engine)
    elsewhere.rotate(provider.endpoint.id, timedelta(seconds=60))
    assert outcome(provider.paid(order_id)) == "applied"
    expire_secrets(api)
    tick(60.001)
    assert provider.deliver(message(order_id)).status_code == 401


def test_a_revoked_endpoint_is_refused_within_seconds(
    api: Api, provider: Provider, order_id: str, tick: Callable[[float], None]
) -> None:
    assert outcome(provider.paid(order_id)) == "applied"
    elsewhere = Providers(api.services.engine)
    assert elsewhere.revoke(provider.endpoint.id).revoked_at
    assert secrets_of(api) == set()
    tick(CACHE_SECONDS)
    assert outcome(provider.paid(order_id)) == "replayed"
    tick(0.001)
    assert provider.paid(order_id).status_code == 401
    other = Provider(api)
    assert outcome(other.paid(order_id)) == "replayed"
    api.services[Providers].revoke(other.endpoint.id)
    assert other.paid(order_id).status_code == 401


def test_a_revoked_endpoint_stays_revoked_and_has_no_new_secret(
    api: Api, provider: Provider
) -> None:
    providers = api.services[Providers]
    first = providers.revoke(provider.endpoint.id)
    assert providers.revoke(provider.endpoint.id) == first
    with pytest.raises(EndpointNotFound, match="is revoked"):
        providers.rotate(provider.endpoint.id)
    assert secrets_of(api) == set()


@pytest.mark.parametrize("endpoint_id", ["", "nonsense", "00000000-0000-0000-0000-000000000000"])
def test_an_endpoint_that_is_none_is_neither_revoked_nor_rotated(
    api: Api, endpoint_id: str
) -> None:
    with pytest.raises(EndpointNotFound):
        api.services[Providers].revoke(endpoint_id)
    with pytest.raises(EndpointNotFound):
        api.services[Providers].rotate(endpoint_id)
    with pytest.raises(ClientNotFound):
        api.services[Providers].add("nobody", "bank")


# -- outages -------------------------------------------------------------------------------


@pytest.fixture
def stopped(own_postgres: Postgres, valkey: Valkey) -> Iterator[tuple[Api, Provider, str]]:
    """An order, its provider, and a database that has stopped."""
    name = f"stopped_{uuid4().hex}"
    own_postgres.execute(f"CREATE DATABASE {name}")
    upgrade(own_postgres.url(name))
    with serving(own_postgres.url(name), valkey.url) as api:
        made = api, Provider(api), place(api)
        assert outcome(made[1].deliver(b'{"type": "ping"}')) == "ignored"
        own_postgres.stop()
        yield made


@pytest.mark.parametrize("cached", [True, False])
def test_a_provider_is_told_to_come_back_while_sql_is_down(
    stopped: tuple[Api, Provider, str],
    own_postgres: Postgres,
    cached: bool,  # noqa: FBT001  whether the endpoint is
) -> None:
    api, provider, order_id = stopped
    if not cached:
        api.services[Providers]._cached.forget(provider.endpoint.id)
    response = provider.paid(order_id)
    assert problem(response) == (503, "storage_unavailable")
    assert int(response.headers["Retry-After"]) > 0
    own_postgres.start()
    assert outcome(provider.paid(order_id)) == "applied"


# <throttling>
def test_an_address_that_sends_many_wrong_signatures_is_limited(api: Api) -> None:
    path = f"/v1/providers/{uuid4()}/webhook"
    headers = {"webhook-id": "m-1"}
    limits = api.services[RateLimits]
    refused = api.send("POST", path, {}, key=None, headers=headers)
    assert problem(refused) == (401, "signature_invalid")

    def is_limited() -> bool:
        for _ in range(WRONG_KEYS_BURST):  # what they leave is over within a tenth of a second
            limits.count_stranger("127.0.0.1")
        response = api.send("POST", path, {}, key=None, headers=headers)
        return response.status_code == 429

    wait_until(is_limited, "a 429")


def test_guesses_of_endpoints_lock_no_provider_out(api: Api) -> None:
    """Where addresses are hidden, everybody has one. Its endpoint is not cached yet."""
    provider, limits, order_id = Provider(api), api.services[RateLimits], place(api)
    for _ in range(WRONG_KEYS_BURST):
        limits.count_stranger("127.0.0.1")
    assert outcome(provider.paid(order_id)) == "applied"


def test_each_wrong_signature_counts(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        api.services[RateLimits], "count_stranger", lambda *each: counted.append(each)
    )
    for _ in range(3):
        api.send("POST", f"/v1/providers/{uuid4()}/webhook", {}, key=None)
    assert counted == [("127.0.0.1", "")] * 3
    endpoint, _ = api.services[Providers].add("customer", "bank")
    api.send("POST", f"/v1/providers/{endpoint.id}/webhook", {}, key=None)
    # By endpoint: the provider's messages for others go on.
    assert counted[3:] == [("127.0.0.1", endpoint.id)]


# </throttling>


def test_of_an_unknown_endpoint_no_body_is_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orders.http.strict_json.StrictRequest.whole_body", pytest.fail)
    refused = api.send("POST", f"/v1/providers/{uuid4()}/webhook", {}, key=None)
    assert problem(refused) == (401, "signature_invalid")
