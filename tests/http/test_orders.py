"""Deadlines, references, metadata and tags over HTTP; what ops sees; the limits of a client."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from werkzeug.test import TestResponse

from devtools.valkey import Valkey
from orders.http.schemas.orders import MAX_METADATA_BYTES
from orders.http.schemas.types import rfc3339
from tests.kit.api import Api, content, expire, problem, serving, until_scheduled


def tag(response: TestResponse) -> str:
    return response.headers["ETag"]


def patch(api: Api, order: Any, body: Any, if_match: str | None = '"1"') -> TestResponse:
    headers = {} if if_match is None else {"If-Match": if_match}
    return api.send("PATCH", f"/v1/orders/{order['id']}", body, headers=headers)


def after_creation(order: Any, **time: int) -> str:
    return rfc3339(datetime.fromisoformat(order["created_at"]) + timedelta(**time))


# -- deadlines -----------------------------------------------------------------------------


def test_a_deadline_is_moved_with_the_tag_that_was_read(
    api: Api, redis_client: redis.Redis
) -> None:
    order = content(api.place())
    until_scheduled(redis_client, 1)
    read = api.send("GET", f"/v1/orders/{order['id']}")
    deadline = after_creation(order, hours=2)
    response = patch(api, order, {"expires_at": deadline}, tag(read))
    assert (response.status_code, tag(response)) == (200, '"2"')
    extended = content(response)
    assert extended == {**order, "expires_at": deadline, "version": 2}
    again = api.send("GET", f"/v1/orders/{order['id']}")
    assert (content(again), tag(again)) == (extended, '"2"')
    problem(patch(api, order, {"expires_at": deadline}, tag(read)), 412, "precondition_failed")
    [_, event] = content(api.send("GET", f"/v1/orders/{order['id']}/events"))["data"]
    assert (event["type"], event["data"]) == (
        "order.extended",
        {"previous_expires_at": order["expires_at"], "expires_at": deadline},
    )


@pytest.mark.parametrize(
    ("status", "conditions"),
    [
        (200, ["*", '"1"', '"7", "1"', '  "1"  ,"x"']),
        (400, ["", "1", '"1', '"1 "', '"1" "2"', '*, "1"', '"1",', '"a"' * 400]),
        (412, ['"2"', 'W/"1"', '"%"', '"_"', '"*"', '"01"', '""', '"", "a"', '"11", "0", "21"']),
        (428, [None]),
    ],
)
def test_if_match_is_a_list_of_versions_one_of_which_is_current(
    api: Api, status: int, conditions: list[str | None]
) -> None:
    for condition in conditions:
        order = content(api.place())
        body = {"expires_at": after_creation(order, hours=2)}
        assert patch(api, order, body, condition).status_code == status, condition


def test_a_deadline_that_cannot_be_moved_says_why(api: Api) -> None:
    unpaid, paid, cancelled, expired = (content(api.place()) for _ in range(4))
    api.pay(paid["id"])
    api.send("POST", f"/v1/orders/{cancelled['id']}/cancel")
    expire(api, expired["id"])
    body = {"expires_at": after_creation(unpaid, hours=2)}
    versions = '"1", "2"'
    problem(patch(api, paid, body, versions), 409, "already_paid")
    for ended in (cancelled, expired):
        problem(patch(api, ended, body, versions), 409, "order_cancelled")
    problem(patch(api, {"id": str(uuid4())}, body), 404, "order_not_found")
    for moment in (
        after_creation(unpaid, days=1, milliseconds=1),
        after_creation(unpaid, milliseconds=999),
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
    ):
        detail = problem(patch(api, unpaid, {"expires_at": moment}), 422, "timeout_out_of_range")
        assert "1 to 86400 s after the order's creation, and not past" in detail["detail"]
    assert content(api.send("GET", f"/v1/orders/{unpaid['id']}")) == unpaid
    latest = {"expires_at": after_creation(unpaid, days=1)}
    assert content(patch(api, unpaid, latest)) == {**unpaid, **latest, "version": 2}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"expires_at": None},
        {"expires_at": 1_900_000_000},
        {"expires_at": "1900000000"},
        {"expires_at": "2030-01-01"},
        {"expires_at": "2030-01-01 00:00:00Z"},
        {"expires_at": "2030-01-01T00:00:00"},
        {"expires_at": "2030-02-30T00:00:00Z"},
        {"expires_at": "2030-01-01T00:00:00Z\n"},
        {"expires_at": "\u0662030-01-01T00:00:00Z"},
        {"expires_at": ["2030-01-01T00:00:00Z"]},
        {"expires_at": "2030-01-01T00:00:00Z", "status": "paid"},
        {"timeout_seconds": 60},
    ],
)
def test_a_new_deadline_is_one_time_and_nothing_else(api: Api, body: Any) -> None:
    order = content(api.place())
    problem(patch(api, order, body), 422, "unprocessable_entity")
    assert content(api.send("GET", f"/v1/orders/{order['id']}")) == order


def test_a_deadline_is_rounded_down_to_the_millisecond(api: Api) -> None:
    order = content(api.place())
    deadline = after_creation(order, hours=2)
    sent = deadline.replace("Z", "999999+00:00").replace("T", "t")
    assert content(patch(api, order, {"expires_at": sent}))["expires_at"] == deadline


# -- what clients keep with an order -------------------------------------------------------

METADATA: list[Any] = [
    {},
    {"b": 1, "a": [None, True, -0.5, 2**70, {"": ""}], "\u00fc\U0001f375": "\u2028"},
    {"a": "x" * (MAX_METADATA_BYTES - len('{"a":""}'))},
    {"a": "\u00e9" * ((MAX_METADATA_BYTES - len('{"a":""}')) // 2)},
]


@pytest.mark.parametrize("metadata", METADATA, ids=range(len(METADATA)))
def test_reference_and_metadata_come_back_with_the_order(
    api: Api, metadata: dict[str, Any]
) -> None:
    first = api.place("key", client_reference="A-17 \u00fc", metadata=metadata)
    order = content(first)
    kept = ("client_reference", "metadata")
    assert [order[name] for name in kept] == ["A-17 \u00fc", metadata]
    assert [*order["metadata"]] == [*metadata], "in the order they came in"
    again = api.place("key", client_reference="A-17 \u00fc", metadata=metadata)
    assert again.get_data() == first.get_data()
    path = f"/v1/orders/{order['id']}"
    shown = [
        content(api.send("GET", path)),
        content(api.send("GET", "/v1/orders"))["data"][0],
        content(api.send("GET", f"{path}/events"))["data"][0]["data"],
        content(patch(api, order, {"expires_at": after_creation(order, hours=2)})),
        content(api.send("POST", f"{path}/cancel")),
    ]
    for each in shown:
        assert [each[name] for name in kept] == ["A-17 \u00fc", metadata]
        assert [*each["metadata"]] == [*metadata]


def test_another_reference_or_other_metadata_is_another_request(api: Api) -> None:
    api.place("key", client_reference="a", metadata={"a": None})
    for options in (
        {},
        {"client_reference": "a"},
        {"client_reference": "a", "metadata": {}},
        {"client_reference": "b", "metadata": {"a": None}},
    ):
        problem(api.place("key", **options), 422, "key_reused")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client_reference", ""),
        ("client_reference", "x" * 256),
        ("client_reference", "a\nb"),
        ("client_reference", "a\0"),
        ("client_reference", "a\x85"),
        ("client_reference", 17),
        ("client_reference", "\ud800"),
        ("metadata", {"a": "\ud800"}),
        ("metadata", {"\udc00": 1}),
        ("metadata", []),
        ("metadata", "{}"),
        ("metadata", {"a": "x" * (MAX_METADATA_BYTES - len('{"a":""}') + 1)}),
        ("metadata", {"a": "\u00e9" * (MAX_METADATA_BYTES // 2)}),
        ("metadata", {"a": [{"b": "\0"}]}),
        ("metadata", {"a": {"\0": 1}}),
    ],
)
def test_what_cannot_be_kept_is_refused(api: Api, name: str, value: Any) -> None:
    refused = problem(api.place(**{name: value}), 422, "unprocessable_entity")
    assert [*refused["errors"]] == [name]


def test_orders_are_found_by_their_reference(api: Api) -> None:
    named = [content(api.place(client_reference="A 17")) for _ in range(3)]
    api.place(client_reference="A 18")
    api.place()
    api.send(
        "POST",
        "/v1/orders",
        {"items": [{"sku": "tea", "quantity": 1}], "client_reference": "A 17"},
        key="other",
        headers={"Idempotency-Key": "theirs"},
    )
    first = content(api.send("GET", "/v1/orders?client_reference=A%2017&limit=2"))
    path = f"/v1/orders?client_reference=A%2017&limit=2&cursor={first['next_cursor']}"
    rest = content(api.send("GET", path))
    assert first["data"] + rest["data"] == named[::-1]
    assert rest["next_cursor"] is None
    api.pay(named[0]["id"])
    paid = content(api.send("GET", "/v1/orders?client_reference=A%2017&status=paid"))["data"]
    assert [order["id"] for order in paid] == [named[0]["id"]]
    assert content(api.send("GET", "/v1/orders?client_reference=A"))["data"] == []
    for bad in ("client_reference=", "client_reference=%00", "client_reference=%0a"):
        problem(api.send("GET", f"/v1/orders?{bad}"), 400, "bad_request")
    both = "client_reference=A&expires_before=2030-01-01T00:00:00Z"
    problem(api.send("GET", f"/v1/orders?{both}"), 400, "bad_request")


# -- tags ----------------------------------------------------------------------------------


def test_every_answer_with_an_order_has_the_tag_of_its_version(api: Api) -> None:
    created = api.place("key")
    path = f"/v1/orders/{content(created)['id']}"
    read = api.send("GET", path)
    cancelled = api.send("POST", f"{path}/cancel")
    assert [tag(each) for each in (created, read, cancelled)] == ['"1"', '"1"', '"2"']
    assert tag(api.place("key")) == '"1"', "its body is of that version too"
    assert tag(api.send("GET", path)) == '"2"'


# -- ops -----------------------------------------------------------------------------------


def their_order(api: Api) -> Any:
    return content(api.place(key="other"))


def test_ops_reads_every_clients_orders_newest_first(api: Api) -> None:
    mine, theirs, last = content(api.place()), their_order(api), content(api.place())
    seen, path = [], "/v1/orders?limit=1"
    while True:
        page = content(api.send("GET", path, key="ops"))
        seen += page["data"]
        if page["next_cursor"] is None:
            break
        path = f"/v1/orders?limit=1&cursor={page['next_cursor']}"
    assert seen == [last, theirs, mine]
    assert [order["client"] for order in seen] == ["customer", "other", "customer"]
    assert content(api.send("GET", "/v1/orders?client=other", key="ops"))["data"] == [theirs]
    assert content(api.send("GET", "/v1/orders?client=ops", key="ops"))["data"] == []
    problem(api.send("GET", "/v1/orders?client=nobody", key="ops"), 404, "client_not_found")


def test_ops_reads_an_order_its_events_and_its_payments(api: Api) -> None:
    order = their_order(api)
    body = {"provider": "bank", "reference": "r", "amount_minor": 250, "currency": "EUR"}
    api.send("POST", f"/v1/orders/{order['id']}/payments", body, key="other")
    for path in ("", "/events", "/payments"):
        both = [
            content(api.send("GET", f"/v1/orders/{order['id']}{path}", key=key))
            for key in ("ops", "other")
        ]
        assert both[0] == both[1]
        problem(api.send("GET", f"/v1/orders/{order['id']}{path}"), 404, "order_not_found")
    for method, path in (("PATCH", ""), ("POST", "/cancel"), ("POST", "/payments")):
        answer = api.send(method, f"/v1/orders/{order['id']}{path}", body, key="ops")
        problem(answer, 403, "forbidden")


@pytest.mark.parametrize(
    "filters",
    [
        "status=paid",
        "created_after=2020-01-01T00:00:00Z",
        "created_before=9999-01-01T00:00:00Z",
        "expires_before=9999-01-01T00:00:00Z",
        "client_reference=A",
    ],
)
def test_a_list_of_all_clients_cannot_be_narrowed_down(api: Api, filters: str) -> None:
    refused = problem(api.send("GET", f"/v1/orders?{filters}", key="ops"), 400, "bad_request")
    assert "client=NAME" in refused["detail"]
    their_order(api)
    page = api.send("GET", f"/v1/orders?{filters}&client=other", key="ops")
    assert len(content(page)["data"]) == (filters[:2] in ("cr", "ex"))


def test_an_integer_is_what_json_schema_says(api: Api) -> None:
    """144.0 is one; a repeated request may write it as 144."""
    key = {"Idempotency-Key": "whole"}
    bodies = (
        f'{{"items":[{{"sku":"tea","quantity":{n}}}],"timeout_seconds":{s},"metadata":{{"x":1.0}}}}'
        for n, s in (("2.0", "144.0"), ("2", "144"), ("2e0", "1.44e2"))
    )
    placed = [
        api.send("POST", "/v1/orders", headers=key, data=body, content_type="application/json")
        for body in bodies
    ]
    assert [each.status_code for each in placed] == [201] * 3
    assert len({each.get_data() for each in placed}) == 1
    assert content(placed[0])["items"][0]["quantity"] == 2
    assert content(placed[0])["metadata"] == {"x": 1.0}


def test_only_ops_names_a_client(api: Api) -> None:
    for name in ("other", "customer", "nobody"):
        problem(api.send("GET", f"/v1/orders?client={name}"), 403, "forbidden")
    for name in ("", "%00", "x" * 101):
        problem(api.send("GET", f"/v1/orders?client={name}", key="ops"), 400, "bad_request")


def test_a_key_with_both_scopes_lists_its_own_orders_by_default(api: Api) -> None:
    mine, theirs = content(api.place()), their_order(api)
    api.keys["both"] = api.services.clients.create_key("customer", ["orders", "ops"])
    assert content(api.send("GET", "/v1/orders?status=unpaid", key="both"))["data"] == [mine]
    assert content(api.send("GET", "/v1/orders?client=other", key="both"))["data"] == [theirs]
    read = content(api.send("GET", f"/v1/orders/{theirs['id']}", key="both"))
    assert {**read, **theirs} == read


# -- limits --------------------------------------------------------------------------------


# <limits>
@pytest.fixture
def small(migrated_url: str, valkey: Valkey, redis_client: redis.Redis) -> Iterator[Api]:  # noqa: ARG001  empties it
    with serving(migrated_url, valkey.url, max_unpaid_orders=2, max_held_pieces=10) as made:
        yield made


def test_a_client_at_its_limit_is_told_to_come_back(small: Api) -> None:
    eleven = small.place(items=[{"sku": "tea", "quantity": 11}])
    assert problem(eleven, 429, "too_many_held_pieces")["limit"] == 10
    first = small.place("first")
    small.place()
    refused = small.place()
    assert problem(refused, 429, "too_many_unpaid_orders")["limit"] == 2
    assert int(refused.headers["Retry-After"]) > 0
    again = small.place("first")
    assert (again.status_code, again.get_data()) == (201, first.get_data())
    problem(small.place("first", timeout_seconds=60), 422, "key_reused")
    their_order(small)
    small.pay(content(first)["id"])
    assert small.place().status_code == 201
    assert json.loads(small.place().get_data())["code"] == "too_many_unpaid_orders"


# </limits>
