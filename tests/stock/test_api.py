"""Stock over HTTP: pages of it, conditional writes, and adjustments."""

from typing import Any
from uuid import uuid4

import pytest
from werkzeug.test import TestResponse

from orders.clients.domain import parted
from orders.http.schemas.paging import encoded
from orders.stock.domain import MAX_INT
from tests.kit.api import MOMENT, Api, content, expire, problem

ADJUSTMENT_KEYS = ["id", "sku", "client", "delta", "reason", "on_hand", "at", "key_id"]
ANY = {"If-Match": "*"}
NEW = {"If-None-Match": "*"}


def get(api: Api, sku: str = "tea") -> TestResponse:
    return api.send("GET", f"/v1/stock/{sku}")


def put(
    api: Api,
    on_hand: int,
    headers: dict[str, str] | None = None,
    *,
    sku: str = "tea",
    **changes: Any,
) -> TestResponse:
    body = {"on_hand": on_hand, "price_minor": 250, "currency": "EUR", **changes}
    return api.send("PUT", f"/v1/stock/{sku}", body, key="ops", headers=headers)


def adjust(
    api: Api, delta: Any, idempotency_key: str = "", *, sku: str = "tea", **changes: Any
) -> TestResponse:
    body = {"delta": delta, "reason": "counted", **changes}
    headers = {"Idempotency-Key": idempotency_key or uuid4().hex}
    return api.send("POST", f"/v1/stock/{sku}/adjustments", body, key="ops", headers=headers)


def adjustments(api: Api, query: str = "", sku: str = "tea") -> Any:
    return content(api.send("GET", f"/v1/stock/{sku}/adjustments{query}", key="ops"))


def on_hand(api: Api) -> int:
    return int(content(get(api))["on_hand"])


# -- one SKU -------------------------------------------------------------------------------


def test_stock_is_set_and_shown(api: Api) -> None:
    response = put(api, 7, sku="A.b_c-9", price_minor=0, currency="JPY")
    assert (response.status_code, response.headers["Location"]) == (201, "/v1/stock/A.b_c-9")
    item = content(response)
    again = put(api, 7, sku="A.b_c-9", price_minor=0, currency="JPY")
    assert (again.status_code, content(again), again.headers.get("Location")) == (200, item, None)
    assert [*item.items()] == [
        ("sku", "A.b_c-9"),
        ("on_hand", 7),
        ("reserved", 0),
        ("price_minor", 0),
        ("currency", "JPY"),
        ("timeout_seconds", None),
        ("retired_at", None),
    ]
    for key in ("ops", "customer"):
        assert content(api.send("GET", "/v1/stock/A.b_c-9", key=key)) == item
    api.place()
    problem(put(api, 0, ANY), 409, "stock_reserved")
    assert content(get(api))["reserved"] == 1
    problem(get(api, "coffee"), 404, "sku_not_found")


def test_a_retired_sku_is_not_sold_and_what_is_held_stays_held(api: Api) -> None:
    held = [content(api.place())["id"] for _ in range(2)]
    tag = get(api).headers["ETag"]

    def retire(key: str = "ops", sku: str = "tea") -> TestResponse:
        return api.send("DELETE", f"/v1/stock/{sku}", key=key)

    problem(retire("customer"), 403, "forbidden")
    problem(retire(sku="coffee"), 404, "sku_not_found")
    assert [retire().status_code, retire().status_code] == [204, 204]
    problem(api.place(), 422, "unknown_sku")
    assert content(api.send("GET", "/v1/stock"))["data"] == []
    retired = get(api)
    assert content(retired)["retired_at"]
    assert retired.headers["ETag"] != tag
    assert api.pay(held[0]).status_code == 201
    assert api.send("POST", f"/v1/orders/{held[1]}/cancel").status_code == 200
    assert (on_hand(api), content(get(api))["reserved"]) == (99, 0)
    # Neither who repeats what it was nor who has its old version brings it back.
    problem(put(api, 99), 428, "precondition_required")
    problem(put(api, 99, {"If-Match": tag}), 412, "precondition_failed")
    back = put(api, 99, {"If-Match": get(api).headers["ETag"]})
    assert (back.status_code, content(back)["retired_at"]) == (200, None)
    assert api.place().status_code == 201


def test_its_version_changes_when_set_or_sold_not_when_held(api: Api) -> None:
    first = get(api).headers["ETag"]
    order_id = content(api.place())["id"]
    held = get(api, "tea")
    assert (content(held)["reserved"], held.headers["ETag"]) == (1, first)
    api.pay(order_id)
    sold = get(api).headers["ETag"]
    assert sold != first
    written = put(api, 99, {"If-Match": sold}, price_minor=300)
    assert written.headers["ETag"] == get(api).headers["ETag"] != sold
    dollars = put(api, 99, ANY, price_minor=300, currency="USD")
    assert dollars.headers["ETag"] != written.headers["ETag"]


def test_a_timeout_stays_until_it_is_changed(api: Api) -> None:
    first = put(api, 5, ANY, timeout_seconds=300)
    assert content(first)["timeout_seconds"] == 300
    same = put(api, 5)
    assert (same.status_code, content(same)["timeout_seconds"]) == (200, 300)
    assert same.headers["ETag"] == first.headers["ETag"]
    problem(put(api, 5, timeout_seconds=301), 428, "precondition_required")
    refused = put(api, 5, ANY, timeout_seconds=86_401)
    assert "1 to 86400 s" in problem(refused, 422, "timeout_out_of_range")["detail"]
    none = put(api, 5, {"If-Match": first.headers["ETag"]}, timeout_seconds=None)
    assert content(none) == content(get(api)) == {**content(first), "timeout_seconds": None}
    assert none.headers["ETag"] != first.headers["ETag"]


def test_a_timeout_is_changed_alone(api: Api) -> None:
    """Whatever is sold or set meanwhile, and if it is retired."""
    placed = content(api.place())
    first, path = get(api), "/v1/stock/tea"

    def change(seconds: int | None, headers: Any = None, sku: str = "tea") -> TestResponse:
        body = {"timeout_seconds": seconds}
        return api.send("PUT", f"/v1/stock/{sku}", body, key="ops", headers=headers)

    problem(change(300), 428, "precondition_required")
    problem(change(86_401, ANY), 422, "timeout_out_of_range")
    problem(change(300, ANY, "coffee"), 404, "sku_not_found")
    problem(change(300, sku="coffee"), 404, "sku_not_found")
    changed = change(300, {"If-Match": first.headers["ETag"]})
    assert content(changed) == {**content(first), "timeout_seconds": 300}
    assert change(300).headers["ETag"] == changed.headers["ETag"] != first.headers["ETag"]
    problem(change(600, {"If-Match": first.headers["ETag"]}), 412, "precondition_failed")
    assert content(api.send("GET", f"/v1/orders/{placed['id']}")) == placed, "it keeps its deadline"
    api.send("DELETE", path, key="ops")
    assert content(change(None, ANY)) == {**content(get(api)), "timeout_seconds": None}
    assert content(get(api))["retired_at"]


# -- conditional writes --------------------------------------------------------------------


def test_a_sale_between_a_read_and_a_write_is_not_overwritten(api: Api) -> None:
    put(api, 10, ANY)
    version = get(api).headers["ETag"]
    api.pay(content(api.place(items=[{"sku": "tea", "quantity": 4}]))["id"], amount_minor=1000)
    refused = problem(put(api, 15, {"If-Match": version}), 412, "precondition_failed")
    assert refused["title"] == "Precondition Failed"
    assert on_hand(api) == 6
    assert put(api, 11, {"If-Match": get(api).headers["ETag"]}).status_code == 200
    assert on_hand(api) == 11


def test_what_orders_hold_and_give_back_does_not_stop_a_write(api: Api) -> None:
    version = get(api).headers["ETag"]
    held, gone = (content(api.place())["id"] for _ in range(2))
    expire(api, gone)
    assert put(api, 150, {"If-Match": version}).status_code == 200
    item = content(get(api))
    assert (item["on_hand"], item["reserved"]) == (150, 1)
    assert content(api.pay(held))["status"] == "applied"


def test_changing_a_sku_needs_a_version_and_says_the_current_one(api: Api) -> None:
    refused = problem(put(api, 15), 428, "precondition_required")
    assert "If-Match" in refused["detail"]
    assert "/v1/stock/tea/adjustments" in refused["detail"]
    assert on_hand(api) == 100
    assert put(api, 15, ANY).status_code == 200


def test_repeating_a_write_is_harmless(api: Api) -> None:
    version = get(api).headers["ETag"]
    written = put(api, 15, {"If-Match": version})
    for headers in (None, ANY, {"If-Match": written.headers["ETag"]}):
        again = put(api, 15, headers)
        assert (again.status_code, again.get_data()) == (200, written.get_data())
        assert again.headers["ETag"] == written.headers["ETag"]
    problem(put(api, 15, {"If-Match": version}), 412, "precondition_failed")
    assert [change["delta"] for change in adjustments(api)["data"]] == [-85, 100]


def test_a_new_sku_needs_no_version_and_is_known_to_be_new(api: Api) -> None:
    assert put(api, 5, sku="cup").status_code == 201
    assert put(api, 5, NEW, sku="jug").status_code == 201
    for sku in ("cup", "jug"):
        problem(put(api, 5, NEW, sku=sku), 412, "precondition_failed")
        problem(put(api, 6, NEW, sku=sku), 412, "precondition_failed")
    for header in ("*", '"5-250-EUR"'):
        problem(put(api, 5, {"If-Match": header}, sku="pot"), 412, "precondition_failed")
    problem(get(api, "pot"), 404, "sku_not_found")


def test_a_version_is_compared_as_a_whole_and_one_of_several_will_do(api: Api) -> None:
    others = ['W/"100-250-EUR"', '"100-250-eur"', '"100-250"', '"0100-250-EUR"', '"\\"', '"%00"']
    for header in others:
        problem(put(api, 15, {"If-Match": header}), 412, "precondition_failed")
    none = ["", ",,,", "100-250-EUR", f'"{"x" * 5000}"']
    none += ['"\u0661\u0660\u0660-250-EUR"'.encode().decode("latin-1")]
    for header in none:
        problem(put(api, 15, {"If-Match": header}), 400, "bad_request")
    assert on_hand(api) == 100
    assert put(api, 15, {"If-Match": '"1-1-EUR", "100-250-EUR"'}).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"If-None-Match": '"100-250-EUR"'}, {"If-None-Match": ""}, {**NEW, **ANY}]
)
def test_a_condition_that_is_not_compared_is_refused(api: Api, headers: dict[str, str]) -> None:
    problem(put(api, 15, headers), 400, "bad_request")
    assert on_hand(api) == 100


def test_what_orders_hold_is_checked_after_the_version(api: Api) -> None:
    version = get(api).headers["ETag"]
    api.place()
    problem(put(api, 0), 428, "precondition_required")
    problem(put(api, 0, {"If-Match": '"x"'}), 412, "precondition_failed")
    refused = problem(put(api, 0, {"If-Match": version}), 409, "stock_reserved")
    assert (
        refused["detail"]
        == "That would leave less than unpaid orders reserve. They reserve 1 of 100."
    )
    assert put(api, 1, {"If-Match": version}).status_code == 200


# -- adjustments ---------------------------------------------------------------------------


def test_an_adjustment_adds_and_removes_and_is_written_down(api: Api) -> None:
    reason = "delivery 4711 \u2013 f\u00fcnf ".ljust(200, "\u8336")
    added = adjust(api, 5, reason=reason)
    assert added.status_code == 201
    told = content(added)
    assert [*told] == ADJUSTMENT_KEYS
    assert {**told, "id": 0, "at": ""} == {
        "id": 0,
        "sku": "tea",
        "client": "ops",
        "delta": 5,
        "reason": reason,
        "on_hand": 105,
        "at": "",
        "key_id": parted(api.keys["ops"])[0],
    }
    assert MOMENT.fullmatch(told["at"])
    assert "Idempotent-Replayed" not in added.headers
    removed = content(adjust(api, -7))
    assert (removed["on_hand"], on_hand(api)) == (98, 98)
    listed = adjustments(api)
    assert listed["next_cursor"] is None
    assert listed["data"][:2] == [removed, told]


def test_a_set_is_recorded_if_it_changes_what_is_on_hand(api: Api) -> None:
    put(api, 3, sku="cup")
    put(api, 3, ANY, sku="cup", price_minor=300)
    put(api, 10, ANY, sku="cup", price_minor=300)
    put(api, 0, sku="none")
    api.stock("cup", 1)
    found = adjustments(api, sku="cup")["data"]
    assert [(a["client"], a["delta"], a["reason"], a["on_hand"]) for a in found] == [
        (None, -9, "set", 1),
        ("ops", 7, "set", 10),
        ("ops", 3, "set", 3),
    ]
    assert adjustments(api, sku="none") == {"data": [], "next_cursor": None}


def test_an_adjustment_leaves_what_orders_hold(api: Api) -> None:
    api.place(items=[{"sku": "tea", "quantity": 30}])
    refused = problem(adjust(api, -71), 409, "stock_reserved")
    assert refused["detail"].endswith("They reserve 30 of 100.")
    assert content(adjust(api, -70))["on_hand"] == 30
    problem(adjust(api, -1), 409, "stock_reserved")
    problem(api.place(), 409, "out_of_stock")
    put(api, 5, sku="cup")
    problem(adjust(api, -6, sku="cup"), 409, "stock_reserved")
    assert content(adjust(api, -5, sku="cup"))["on_hand"] == 0


def test_an_adjustment_that_does_not_fit_is_refused(api: Api) -> None:
    for delta in (MAX_INT, MAX_INT - 99):
        refused = problem(adjust(api, delta), 422, "stock_too_large")
        assert str(MAX_INT) in refused["detail"]
    problem(adjust(api, -MAX_INT), 409, "stock_reserved")
    assert content(adjust(api, MAX_INT - 100))["on_hand"] == MAX_INT
    problem(adjust(api, 1, sku="coffee"), 404, "sku_not_found")
    problem(adjust(api, 1, sku="a;b"), 404, "sku_not_found")
    problem(api.send("GET", "/v1/stock/coffee/adjustments", key="ops"), 404, "sku_not_found")


def test_repeating_an_adjustment_returns_the_original_response(api: Api) -> None:
    first = adjust(api, -4, "count-1")
    adjust(api, -96)
    for _ in range(2):
        again = adjust(api, -4, "count-1")
        assert (again.status_code, again.get_data()) == (201, first.get_data())
        assert again.headers["Idempotent-Replayed"] == "true"
    assert on_hand(api) == 0
    put(api, 9, sku="cup")
    for other in (
        adjust(api, 4, "count-1"),
        adjust(api, -4, "count-1", reason="lost"),
        adjust(api, -4, "count-1", sku="cup"),
        adjust(api, -4, "count-1", sku="coffee"),
    ):
        problem(other, 422, "key_reused")
    assert on_hand(api) == 0


def test_a_refused_adjustment_does_not_use_its_key_up(api: Api) -> None:
    problem(adjust(api, -101, "one"), 409, "stock_reserved")
    adjust(api, 1)
    assert content(adjust(api, -101, "one"))["on_hand"] == 0


def test_a_key_is_the_clients_own(api: Api) -> None:
    api.keys["second"] = api.services.clients.create_key("second", ["ops"])
    sent = ("POST", "/v1/stock/tea/adjustments", {"delta": 1, "reason": "found"})
    header = {"Idempotency-Key": "same"}
    told = [content(api.send(*sent, key=key, headers=header)) for key in ("ops", "second")]
    assert [(change["client"], change["on_hand"]) for change in told] == [
        ("ops", 101),
        ("second", 102),
    ]


NOT_A_DELTA: list[Any] = [0, -0, True, 0.0, 1.5, "1", None, [], {}, 10**400, 2**31, -(2**31), 2**63]
NOT_A_REASON: list[Any] = ["", "x" * 201, "a\nb", "a\0", "\x7f", "\x9b1m", "\u2028", "\u202e"]
NOT_A_REASON += ["\ud800", 1, None, [], {}, True]
BAD: list[Any] = [
    {},
    {"delta": 1},
    {"reason": "r"},
    *({"delta": delta, "reason": "r"} for delta in NOT_A_DELTA),
    *({"delta": 1, "reason": reason} for reason in NOT_A_REASON),
    *({"delta": 1, "reason": "r", name: 1} for name in ("on_hand", "sku", "at", "client")),
]


def test_an_adjustment_that_cannot_be_is_refused(api: Api) -> None:
    for body in BAD:
        response = api.send(
            "POST", "/v1/stock/tea/adjustments", body, key="ops", headers={"Idempotency-Key": "k"}
        )
        problem(response, 422, "unprocessable_entity")
    without_key = api.send(
        "POST", "/v1/stock/tea/adjustments", {"delta": 1, "reason": "r"}, key="ops"
    )
    problem(without_key, 400, "bad_request")
    assert on_hand(api) == 100


# -- pages ---------------------------------------------------------------------------------


def pages(api: Api, path: str) -> list[Any]:
    """Everything in a list, read three at a time."""
    found, cursor = [], ""
    while True:
        page = content(api.send("GET", f"{path}?limit=3{cursor}", key="ops"))
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        assert len(page["data"]) == 3
        cursor = f"&cursor={page['next_cursor']}"


def test_skus_are_listed_in_byte_order(api: Api) -> None:
    skus = ["a", "B", "b", "A", "_", "-", "a.", "10", "9", "a-b", "ab", "a_b", "Z", "z", "a.b"]
    for sku in skus:
        put(api, 1, sku=sku)
    found = pages(api, "/v1/stock")
    assert [item["sku"] for item in found] == sorted([*skus, "tea"])
    assert found[-2] == content(get(api, "tea"))
    assert len(content(api.send("GET", "/v1/stock", key="customer"))["data"]) == 16


def test_adjustments_are_listed_newest_first(api: Api) -> None:
    told = [content(adjust(api, delta))["id"] for delta in (1, -2, 3, -4, 5, -6)]
    found = pages(api, "/v1/stock/tea/adjustments")
    assert [change["id"] for change in found[:6]] == told[::-1]
    assert [change["delta"] for change in found] == [-6, 5, -4, 3, -2, 1, 100]


NOT_A_CURSOR = [
    *("sku ", "sku a b", "sku a\n", f"sku {'x' * 65}", "sku \u0661", "tea", "5"),
    *("adjustment ", "adjustment x", "adjustment -1", "adjustment \u0661"),
    *(f"adjustment {10**18}", "adjustment 1\n"),
]
NOT_A_QUERY = ["limit=101", "page=1", *(f"cursor={encoded(each)}" for each in NOT_A_CURSOR)]


@pytest.mark.parametrize("path", ["/v1/stock", "/v1/stock/tea/adjustments"])
def test_a_query_that_makes_no_sense_is_malformed(api: Api, path: str) -> None:
    for query in NOT_A_QUERY:
        problem(api.send("GET", f"{path}?{query}", key="ops"), 400, "bad_request")


def test_a_cursor_of_another_list_is_malformed(api: Api) -> None:
    put(api, 1, sku="42")
    of_stock = content(api.send("GET", "/v1/stock?limit=1"))["next_cursor"]
    of_changes = adjustments(api, "?limit=1")["next_cursor"]
    for path, cursor in (("/v1/stock/tea/adjustments", of_stock), ("/v1/stock", of_changes)):
        problem(api.send("GET", f"{path}?cursor={cursor}", key="ops"), 400, "bad_request")
