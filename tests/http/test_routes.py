"""What each route answers when all is well, to whom, and what it says when it refuses."""

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from werkzeug.test import TestResponse

from orders.clients.domain import parted
from tests.kit.api import MOMENT, Api, content, expire, problem, until_scheduled

ORDER_KEYS = [
    "id",
    "client",
    "client_reference",
    "status",
    "currency",
    "total_minor",
    "items",
    "created_at",
    "expires_at",
    "paid_at",
    "cancelled_at",
    "cancel_reason",
    "refunded_minor",
    "metadata",
    "version",
]
PAYMENT_KEYS = [
    "id",
    "order_id",
    "provider",
    "reference",
    "amount_minor",
    "currency",
    "status",
    "reason",
    "created_at",
    "paid_at",
    "refunded_minor",
    "refunded_at",
    "refund_reference",
]


# -- orders --------------------------------------------------------------------------------


def test_an_order_is_created_located_shown_and_scheduled(
    api: Api, redis_client: redis.Redis
) -> None:
    api.stock("cup", 5, 1_099)
    items = [{"sku": "tea", "quantity": 3}, {"sku": "cup", "quantity": 1}]
    response = api.place(items=items, timeout_seconds=60)
    assert response.status_code == 201
    order = content(response)
    assert [*order] == ORDER_KEYS
    assert [*order["items"][0]] == ["sku", "quantity", "unit_price_minor"]
    assert {**order, "id": "", "created_at": "", "expires_at": ""} == {
        "id": "",
        "client": "customer",
        "client_reference": None,
        "status": "unpaid",
        "currency": "EUR",
        "total_minor": 3 * 250 + 1_099,
        "items": [
            {"sku": "cup", "quantity": 1, "unit_price_minor": 1_099},
            {"sku": "tea", "quantity": 3, "unit_price_minor": 250},
        ],
        "created_at": "",
        "expires_at": "",
        "paid_at": None,
        "cancelled_at": None,
        "cancel_reason": None,
        "refunded_minor": 0,
        "metadata": None,
        "version": 1,
    }
    assert MOMENT.fullmatch(order["created_at"])
    assert MOMENT.fullmatch(order["expires_at"])
    assert response.headers["Location"] == f"/v1/orders/{order['id']}"
    assert "Idempotent-Replayed" not in response.headers
    assert content(api.send("GET", response.headers["Location"])) == order
    until_scheduled(redis_client, 1)


def test_a_prefix_of_the_paths_is_encoded_in_the_location(api: Api) -> None:
    basket = {"items": [{"sku": "tea", "quantity": 1}]}
    under = {"SCRIPT_NAME": "/bücher".encode().decode("latin-1")}  # as WSGI has it
    key = {"Idempotency-Key": "key-1"}
    response = api.send("POST", "/v1/orders", basket, headers=key, environ_overrides=under)
    assert response.headers["Location"].startswith("/b%C3%BCcher/v1/orders/")


def test_a_repeated_create_gets_the_first_response_again(api: Api) -> None:
    first = api.place("key-1")
    expire(api, content(first)["id"])
    again = api.place("key-1")
    assert (again.status_code, again.get_data()) == (201, first.get_data())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    problem(api.place("key-1", timeout_seconds=60), 422, "key_reused")
    assert len(content(api.send("GET", "/v1/orders"))["data"]) == 1


def test_refusals_to_create_have_codes_and_do_not_use_up_the_key(api: Api) -> None:
    api.stock("gold", 5, 2**53 - 1)
    dollars = {"on_hand": 5, "price_minor": 1, "currency": "USD"}
    api.send("PUT", "/v1/stock/dollars", dollars, key="ops")

    def place(**quantities: int) -> TestResponse:
        items = [{"sku": sku, "quantity": quantity} for sku, quantity in quantities.items()]
        return api.place("key-1", items=items)

    body = problem(place(tea=101), 409, "out_of_stock")
    assert (body["sku"], body["available"]) == ("tea", 100)
    assert problem(place(coffee=1), 422, "unknown_sku")["sku"] == "coffee"
    problem(place(tea=1, dollars=1), 422, "mixed_currencies")
    problem(place(gold=2), 422, "total_too_large")
    for seconds in (0, -1, 86_401, 10**400):
        problem(api.place("key-1", timeout_seconds=seconds), 422, "timeout_out_of_range")
    assert place(tea=1).status_code == 201


def test_orders_are_paged_newest_first(api: Api) -> None:
    placed = [content(api.place()) for _ in range(4)]
    seen, path = [], "/v1/orders?limit=2"
    sizes = []
    while True:
        page = content(api.send("GET", path))
        assert [*page] == ["data", "next_cursor"]
        seen += page["data"]
        sizes.append(len(page["data"]))
        if page["next_cursor"] is None:
            break
        path = f"/v1/orders?limit=2&cursor={page['next_cursor']}"
    assert seen == placed[::-1]
    assert sizes == [2, 2, 0], "a page may hold the last one"


def test_orders_are_filtered_by_status_and_time(api: Api) -> None:
    paid, unpaid = content(api.place()), content(api.place(timeout_seconds=60))
    api.pay(paid["id"])

    def ids(query: str) -> list[str]:
        return [order["id"] for order in content(api.send("GET", f"/v1/orders?{query}"))["data"]]

    assert ids("status=paid") == [paid["id"]]
    assert ids("status=unpaid") == [unpaid["id"]]
    assert ids("status=cancelled") == []
    assert ids(f"created_after={unpaid['created_at']}") == []
    assert ids(f"created_before={paid['created_at']}") == []
    assert ids("created_after=2000-01-01T00:00:00%2B02:00") == [unpaid["id"], paid["id"]]
    assert ids(f"expires_before={paid['expires_at']}") == [unpaid["id"]]
    assert ids("expires_before=0001-01-01T00:00:00%2B14:00") == []
    assert len(ids("expires_before=9999-12-31T23:59:59-14:00")) == 2


def test_an_orders_events_are_told_oldest_first(api: Api) -> None:
    order = content(api.place())
    paid = {reference: content(api.pay(order["id"], reference)) for reference in ("r-1", "r-2")}

    def money(reference: str) -> dict[str, Any]:
        facts = ("provider", "reference", "amount_minor", "currency")
        payment = paid[reference]
        return {"payment_id": payment["id"], **{name: payment[name] for name in facts}}

    path = f"/v1/orders/{order['id']}/events"
    first = content(api.send("GET", f"{path}?limit=2"))
    assert [*first] == ["data", "next_cursor"]
    assert [[*event] for event in first["data"]] == [["type", "at", "key_id", "data"]] * 2
    assert all(MOMENT.fullmatch(event["at"]) for event in first["data"])
    rest = content(api.send("GET", f"{path}?limit=2&cursor={first['next_cursor']}"))
    assert [(event["type"], event["data"]) for event in first["data"] + rest["data"]] == [
        ("order.created", order),
        ("order.paid", money("r-1")),
        ("payment.refund_due", {**money("r-2"), "reason": "already_paid"}),
    ]
    assert rest["next_cursor"] is None


# -- payments and cancellations ------------------------------------------------------------


def test_a_payment_is_applied_and_its_check_leaves_the_queue(
    api: Api, redis_client: redis.Redis
) -> None:
    order = content(api.place())
    until_scheduled(redis_client, 1)
    response = api.pay(order["id"])
    again = api.pay(order["id"])
    for each, replayed in ((response, None), (again, "true")):
        assert (each.status_code, each.get_data()) == (201, response.get_data())
        assert each.headers.get("Idempotent-Replayed") == replayed
    payment = content(response)
    assert [*payment] == PAYMENT_KEYS
    assert MOMENT.fullmatch(payment["created_at"])
    assert {**payment, "id": "", "created_at": ""} == {
        "id": "",
        "order_id": order["id"],
        "provider": "bank",
        "reference": "r-1",
        "amount_minor": 250,
        "currency": "EUR",
        "status": "applied",
        "reason": None,
        "created_at": "",
        "refunded_minor": 0,
        "refunded_at": None,
        "refund_reference": None,
        "paid_at": None,
    }
    shown = content(api.send("GET", f"/v1/orders/{order['id']}"))
    assert (shown["status"], shown["version"]) == ("paid", 2)
    assert MOMENT.fullmatch(shown["paid_at"])
    until_scheduled(redis_client, 0)


def test_money_an_order_cannot_take_is_accepted_and_due_back(api: Api) -> None:
    paid, cancelled, expired, unpaid = (content(api.place())["id"] for _ in range(4))
    api.pay(paid, "first")
    api.send("POST", f"/v1/orders/{cancelled}/cancel")
    expire(api, expired)
    for order_id, amount, reason in (
        (paid, 250, "already_paid"),
        (cancelled, 250, "order_cancelled"),
        (expired, 250, "order_cancelled"),
        (unpaid, 251, "wrong_amount"),
    ):
        reference = uuid4().hex
        response = api.pay(order_id, reference, amount_minor=amount)
        assert response.status_code == 202
        payment = content(response)
        assert [*payment] == PAYMENT_KEYS
        assert (payment["status"], payment["reason"]) == ("refund_due", reason)
        again = api.pay(order_id, reference, amount_minor=amount)
        assert (again.status_code, again.get_data()) == (202, response.get_data())
        assert again.headers["Idempotent-Replayed"] == "true"
    shown = content(api.send("GET", f"/v1/orders/{expired}"))
    assert (shown["status"], shown["cancel_reason"]) == ("cancelled", "expired")


def test_a_reference_that_came_with_another_order_is_a_conflict(api: Api) -> None:
    first, second = content(api.place())["id"], content(api.place())["id"]
    api.pay(first)
    problem(api.pay(second), 409, "reference_reused")
    for other in ({"amount_minor": 1}, {"currency": "USD"}):
        problem(api.pay(first, **other), 409, "reference_reused")
    for order_id, count in ((first, 1), (second, 0)):
        shown = content(api.send("GET", f"/v1/orders/{order_id}/payments"))["data"]
        assert len(shown) == count


def test_an_order_is_cancelled_once_and_a_paid_one_never(
    api: Api, redis_client: redis.Redis
) -> None:
    order, paid = content(api.place()), content(api.place())
    until_scheduled(redis_client, 2)
    api.pay(paid["id"])
    response = api.send("POST", f"/v1/orders/{order['id']}/cancel")
    cancelled = content(response)
    assert response.status_code == 200
    assert [*cancelled] == ORDER_KEYS
    assert (cancelled["status"], cancelled["cancel_reason"]) == ("cancelled", "requested")
    assert MOMENT.fullmatch(cancelled["cancelled_at"])
    again = api.send("POST", f"/v1/orders/{order['id']}/cancel")
    assert content(again) == cancelled
    problem(api.send("POST", f"/v1/orders/{paid['id']}/cancel"), 409, "already_paid")
    until_scheduled(redis_client, 0)


# -- who may -------------------------------------------------------------------------------


def routes(api: Api, order_id: str) -> list[tuple[str, str, str]]:
    """Every method and path under /v1, and its rule."""
    with api.app.test_request_context():
        adapter = api.app.create_url_adapter(None) or api.app.url_map.bind("localhost")
        return [
            (method, adapter.build(rule.endpoint, values), rule.rule)
            for rule in api.app.url_map.iter_rules()
            if rule.rule.startswith("/v1")
            for values in [{name: "tea" if name == "sku" else order_id for name in rule.arguments}]
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
        ]


#: What a key may have to be let in, one of them; a webhook of a provider is signed instead.
SCOPES: dict[tuple[str, str], set[str]] = {
    ("POST", "/v1/orders"): {"orders"},
    ("GET", "/v1/orders"): {"orders", "ops"},
    ("GET", "/v1/orders/<uuid:order_id>"): {"orders", "ops"},
    ("PATCH", "/v1/orders/<uuid:order_id>"): {"orders"},
    ("GET", "/v1/orders/<uuid:order_id>/events"): {"orders", "ops"},
    # <feed>
    ("GET", "/v1/events"): {"orders"},
    # </feed>
    ("POST", "/v1/orders/<uuid:order_id>/cancel"): {"orders"},
    ("POST", "/v1/orders/<uuid:order_id>/payments"): {"payments"},
    ("GET", "/v1/orders/<uuid:order_id>/payments"): {"orders", "payments", "ops"},
    # <providers>
    ("POST", "/v1/orders/<uuid:order_id>/payment-attempts"): {"orders"},
    ("GET", "/v1/orders/<uuid:order_id>/payment-attempts"): {"orders", "payments", "ops"},
    # </providers>
    ("GET", "/v1/payments"): {"payments"},
    ("GET", "/v1/payments/<uuid:payment_id>"): {"payments"},
    ("POST", "/v1/payments/<uuid:payment_id>/refund"): {"payments"},
    # <providers>
    ("GET", "/v1/providers/messages"): {"ops"},
    ("POST", "/v1/providers/messages/<uuid:message_id>/replay"): {"ops"},
    ("POST", "/v1/providers/messages/<uuid:message_id>/dismiss"): {"ops"},
    # </providers>
    ("GET", "/v1/stock"): {"orders", "payments", "ops"},
    ("GET", "/v1/stock/<sku>"): {"orders", "payments", "ops"},
    ("PUT", "/v1/stock/<sku>"): {"ops"},
    ("DELETE", "/v1/stock/<sku>"): {"ops"},
    ("GET", "/v1/stock/<sku>/adjustments"): {"ops"},
    ("POST", "/v1/stock/<sku>/adjustments"): {"ops"},
    # <freezes>
    ("GET", "/v1/freezes"): {"ops"},
    ("POST", "/v1/freezes"): {"ops"},
    ("GET", "/v1/freezes/<uuid:freeze_id>"): {"ops"},
    ("PATCH", "/v1/freezes/<uuid:freeze_id>"): {"ops"},
    ("DELETE", "/v1/freezes/<uuid:freeze_id>"): {"ops"},
    # </freezes>
    # <webhooks>
    ("GET", "/v1/webhooks"): {"orders", "ops"},
    ("POST", "/v1/webhooks"): {"orders", "ops"},
    ("GET", "/v1/webhooks/<uuid:webhook_id>"): {"orders", "ops"},
    ("PATCH", "/v1/webhooks/<uuid:webhook_id>"): {"orders", "ops"},
    ("DELETE", "/v1/webhooks/<uuid:webhook_id>"): {"orders", "ops"},
    ("POST", "/v1/webhooks/<uuid:webhook_id>/rotate-secret"): {"orders", "ops"},
    ("POST", "/v1/webhooks/<uuid:webhook_id>/ping"): {"orders", "ops"},
    ("GET", "/v1/webhooks/deliveries/<uuid:delivery_id>"): {"orders", "ops"},
    ("GET", "/v1/webhooks/<uuid:webhook_id>/deliveries"): {"orders", "ops"},
    ("POST", "/v1/webhooks/deliveries/<uuid:delivery_id>/redeliver"): {"orders", "ops"},
    # </webhooks>
}
SIGNED: list[tuple[str, str]] = [
    ("POST", "/v1/providers/<uuid:endpoint_id>/webhook")  # <providers/>
]


def test_every_route_needs_a_key(api: Api) -> None:
    order_id = content(api.place())["id"]
    client_id, secret = parted(api.keys["customer"])
    found = [each for each in routes(api, order_id) if (each[0], each[2]) not in SIGNED]
    assert len(found) >= 8
    for number, (method, path, _) in enumerate(found):
        # Wrong keys are limited by address.
        api.http.environ_base["REMOTE_ADDR"] = f"192.0.2.{number}"
        for header in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer nonsense",
            f"Bearer {client_id}.wrong",
            f"Bearer {client_id}",
            f"Bearer {secret}",
            f"Basic {client_id}.{secret}",
            f"{client_id}.{secret}",
            "Bearer \u00fc.\u00fc",
        ):
            headers = {} if header is None else {"Authorization": header}
            response = api.send(method, path, key=None, headers=headers)
            refused = problem(response, 401, "unauthorized")
            assert "Send an API key as Authorization: Bearer KEY." in refused["detail"]
            assert response.headers["WWW-Authenticate"].startswith("Bearer")


def test_a_key_without_the_scope_of_a_route_is_forbidden(api: Api) -> None:
    order_id = content(api.place())["id"]
    before = content(api.send("GET", f"/v1/orders/{order_id}"))
    for scope in ("orders", "payments", "ops"):
        api.keys[scope] = api.services.clients.create_key("customer", [scope])
    found = routes(api, order_id)
    assert {(method, rule) for method, _, rule in found} == SCOPES.keys() | SIGNED
    for method, path, rule in found:
        allowed = SCOPES.get((method, rule), {"orders", "payments", "ops"})
        for scope in {"orders", "payments", "ops"} - allowed:
            refused = problem(api.send(method, path, {}, key=scope), 403, "forbidden")
            assert sorted(allowed) == sorted(re.findall("orders|payments|ops", refused["detail"]))
    assert content(api.send("GET", f"/v1/orders/{order_id}")) == before


def test_a_cursor_from_another_customer_shows_nothing_of_theirs(api: Api) -> None:
    api.place()
    api.place()
    cursor = content(api.send("GET", "/v1/orders?limit=1"))["next_cursor"]
    page = content(api.send("GET", f"/v1/orders?cursor={cursor}", key="other"))
    assert page == {"data": [], "next_cursor": None}


@pytest.mark.parametrize(
    ("how", "seconds", "reason"),
    [
        ("expired", 0, "paid_in_time"),
        ("expired", 0.001, "order_cancelled"),
        ("requested", -60, "order_cancelled"),
        ("paid", -60, "already_paid"),
    ],
)
def test_money_that_was_paid_in_time_has_its_own_reason(
    api: Api, how: str, seconds: float, reason: str
) -> None:
    order_id = content(api.place())["id"]
    if how == "expired":
        expire(api, order_id)
    elif how == "requested":
        api.send("POST", f"/v1/orders/{order_id}/cancel")
    else:
        api.pay(order_id, "first")
    ended = content(api.send("GET", f"/v1/orders/{order_id}"))
    deadline = datetime.fromisoformat(ended["expires_at"])
    paid_at = (deadline + timedelta(seconds=seconds)).isoformat()
    payment = content(api.pay(order_id, paid_at=paid_at))
    assert (payment["status"], payment["reason"]) == ("refund_due", reason)
    assert datetime.fromisoformat(payment["paid_at"]) == deadline + timedelta(seconds=seconds)


def test_a_time_that_cannot_be_read_again_is_refused(api: Api) -> None:
    order_id = content(api.place())["id"]
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        problem(api.pay(order_id, paid_at=moment), 422, "unprocessable_entity")
    for moment in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"):
        payment = content(api.pay(order_id, moment, paid_at=moment))
        assert payment == content(api.send("GET", f"/v1/payments/{payment['id']}", key="customer"))


def test_money_that_is_due_back_is_listed_and_refunded_once(api: Api) -> None:
    order_id = content(api.place())["id"]
    api.send("POST", f"/v1/orders/{order_id}/cancel")
    for reference in ("r-1", "r-2"):
        api.pay(order_id, reference)
    page = content(api.send("GET", "/v1/payments?status=refund_due&limit=1"))
    [first] = page["data"]
    assert [*first] == PAYMENT_KEYS
    cursor = page["next_cursor"]
    [second] = content(api.send("GET", f"/v1/payments?status=refund_due&cursor={cursor}"))["data"]
    assert [first["reference"], second["reference"]] == ["r-1", "r-2"]

    refund = ("POST", f"/v1/payments/{first['id']}/refund")
    refunded = api.send(*refund, {"reference": "re-1"})
    told = content(refunded)
    assert (refunded.status_code, told["status"], told["refund_reference"]) == (
        200,
        "refunded",
        "re-1",
    )
    assert MOMENT.fullmatch(told["refunded_at"])
    again = api.send(*refund, {"reference": "re-1"})
    assert (again.status_code, again.get_data()) == (200, refunded.get_data())
    assert again.headers["Idempotent-Replayed"] == "true"
    problem(api.send(*refund, {"reference": "re-2"}), 409, "already_refunded")
    assert content(api.send("GET", "/v1/payments?status=refund_due"))["data"] == [second]
    both = content(api.send("GET", f"/v1/orders/{order_id}/payments"))["data"]
    assert both == [told, second]
    for bad in ("", "?status=lost", "?status=refund_due&page=1", "?status=refunded&cursor=x"):
        problem(api.send("GET", f"/v1/payments{bad}"), 400, "bad_request")
    problem(api.send(*refund, {"reference": "a b"}), 422, "unprocessable_entity")


def test_a_paid_order_says_what_was_sent_back(api: Api) -> None:
    order_id = content(api.place())["id"]
    payment_id = content(api.pay(order_id))["id"]
    path = f"/v1/orders/{order_id}"
    before = api.send("GET", path)
    refund = ("POST", f"/v1/payments/{payment_id}/refund")
    problem(api.send(*refund, {"reference": "r", "amount_minor": 251}), 409, "refund_too_large")
    problem(api.send(*refund, {"reference": "r", "currency": "USD"}), 409, "wrong_currency")
    part = {"reference": "re-1", "amount_minor": 100, "currency": "EUR"}
    told = content(api.send(*refund, part))
    assert (told["status"], told["refunded_minor"]) == ("applied", 100)
    assert content(api.send("GET", f"/v1/payments/{payment_id}")) == told
    after = api.send("GET", path)
    assert content(after) == {**content(before), "refunded_minor": 100}

    match = {"If-Match": after.headers["ETag"]}
    named = api.send("PATCH", path, {"client_reference": "A-1"}, headers=match)
    assert content(named) == {**content(after), "client_reference": "A-1", "version": 3}
    assert named.headers["ETag"] == '"3"'

    told = content(api.send(*refund, {"reference": "re-2"}))
    assert (told["status"], told["refunded_minor"]) == ("refunded", 250)
    assert content(api.send("GET", path))["status"] == "paid"
    assert content(api.send("GET", "/v1/payments?status=refunded"))["data"] == [told]
    again = api.pay(order_id)
    assert (again.status_code, content(again)) == (201, told), "it was applied"


def test_a_payment_is_found_by_provider_and_reference(api: Api) -> None:
    payment = content(api.pay(content(api.place())["id"], "r-1"))
    found = content(api.send("GET", "/v1/payments?provider=BANK&reference=r-1"))
    assert found == {"data": [payment], "next_cursor": None}
    for query, key in (
        ("provider=bank&reference=R-1", "customer"),
        ("provider=bank&reference=r-1", "other"),
    ):
        assert content(api.send("GET", f"/v1/payments?{query}", key=key))["data"] == []
    for query in ("provider=bank", "reference=r-1", "status=applied&provider=bank&reference=r-1"):
        problem(api.send("GET", f"/v1/payments?{query}"), 400, "bad_request")


def test_an_unknown_method_is_refused_and_known_ones_are_named(api: Api) -> None:
    known: dict[str, set[str]] = {}
    for method, path, _ in routes(api, str(uuid4())):
        known.setdefault(path, set()).add(method)
    for path in ("/healthz", "/readyz"):
        known[path] = {"GET"}
    known |= {"/openapi.json": {"GET"}, "/docs": {"GET"}}  # <openapi/>
    for path, methods in known.items():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - methods:
            response = api.send(method, path)
            problem(response, 405, "method_not_allowed")
            allowed = {name.strip() for name in response.headers["Allow"].split(",")}
            assert allowed - {"HEAD", "OPTIONS"} == methods


def test_a_path_that_leads_nowhere_is_a_problem_too(api: Api) -> None:
    for path in ("/", "/v1", "/v1/nothing", "/v2/orders", "/v1/orders/", "/v1/orders/ID"):
        refused = problem(api.send("GET", path), 404, "not_found")
        assert refused["detail"].endswith("Ids in paths are complete UUIDs.")
