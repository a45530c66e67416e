"""A client's own names for an order change and are erased wherever they are shown, whatever its state."""

from typing import Any

import pytest
import sqlalchemy as sa

from orders.db.base import metadata
from orders.order.domain import Order
from tests.kit.api import Api
from tests.kit.expiring import expire_now
from tests.kit.races import waiting
from tests.kit.shop import Shop

PERSONAL = "Jane-Doe"
ERASED = {"client_reference": None, "metadata": None}


def patch(
    api: Api, order_id: str, body: Any, tag: str | None = "*", key: str = "customer"
) -> tuple[int, Any]:
    headers = {} if tag is None else {"If-Match": tag}
    answer = api.send("PATCH", f"/v1/orders/{order_id}", body, headers=headers, key=key)
    return answer.status_code, answer.json


def end(api: Api, order_id: str, status: str) -> None:
    if status == "paid":
        assert api.pay(order_id).status_code == 201
    elif status == "cancelled":
        assert api.send("POST", f"/v1/orders/{order_id}/cancel").status_code == 200
    elif status == "expired":
        with api.services.engine.begin() as connection:
            connection.execute(sa.text("UPDATE unpaid_orders SET expires_at = now()"))
        expire_now(api.services.orders, [order_id])


@pytest.mark.parametrize("status", ["unpaid", "paid", "cancelled", "expired"])
def test_own_names_change_and_are_erased_in_any_state(api: Api, status: str) -> None:
    named = {"client_reference": PERSONAL, "metadata": {"mail": PERSONAL}}
    placed = api.place("key-1", **named).json or {}
    before = (api.send("GET", f"/v1/orders/{placed['id']}").json or {})["version"]
    end(api, placed["id"], status)
    order = api.send("GET", f"/v1/orders/{placed['id']}").json or {}
    assert order == {**order, **named}
    path = f"/v1/orders/{placed['id']}"
    assert patch(api, placed["id"], {"metadata": {"a": 1}}, tag='"9"')[0] == 412
    status_code, changed = patch(
        api, placed["id"], {"client_reference": "A-2"}, tag=f'"{order["version"]}"'
    )
    expected = {**order, "client_reference": "A-2", "version": order["version"] + 1}
    assert (status_code, changed) == (200, expected)
    assert order["version"] >= before
    for reference, ids in ((PERSONAL, []), ("A-2", [placed["id"]])):
        for query in ("", f"&status={order['status']}"):
            found = api.send("GET", f"/v1/orders?client_reference={reference}{query}").json or {}
            assert [each["id"] for each in found["data"]] == ids
    assert patch(api, placed["id"], ERASED) == (
        200,
        {**expected, **ERASED, "version": order["version"] + 2},
    )
    # Nor does it come back: in a replay, in events, or in any table.
    assert api.place("key-1", **named).json == {**placed, **ERASED}
    for listed in (f"{path}/events", "/v1/events"):
        assert PERSONAL not in api.send("GET", listed).get_data(as_text=True)
    with api.services.engine.begin() as connection:
        for table in metadata.sorted_tables:
            assert PERSONAL not in repr(connection.execute(sa.select(table)).all()), table.name
    if status == "unpaid":
        end(api, placed["id"], "paid")
        assert patch(api, placed["id"], {"client_reference": "A-3"})[1]["version"] == 5


def test_whose_order_which_version_and_what_body_is_checked(api: Api) -> None:
    order_id = (api.place().json or {})["id"]
    for key, tag, body, status in (
        ("other", "*", ERASED, 404),
        ("customer", None, ERASED, 428),
        ("customer", '"2"', ERASED, 412),
        ("customer", "*", {"items": []}, 422),
        ("customer", "*", {"client_reference": ""}, 422),
        ("customer", "*", {"client_reference": "a\nb"}, 422),
        ("customer", "*", {"metadata": {"a": "\0"}}, 422),
        ("customer", "*", {"metadata": {"a": "x" * 5000}}, 422),
        ("customer", "*", {"expires_at": "2030-01-31T12:30:00Z", **ERASED}, 422),
    ):
        assert patch(api, order_id, body, tag, key)[0] == status, body
    for body, wrong in (({}, "_schema"), ({"client_reference": ""}, "client_reference")):
        assert [*patch(api, order_id, body)[1]["errors"]] == [wrong]


@pytest.mark.parametrize("how", ["pay", "cancel"])
def test_an_order_that_ends_meanwhile_is_described_all_the_same(shop: Shop, how: str) -> None:
    order = shop.place()

    def change() -> Order:
        return shop.service.describe(
            shop.client, order.id, {"client_reference": "A-9"}, versions=None
        )

    with waiting(shop, change) as (other, found):
        orders = shop.inside(other)
        if how == "pay":
            money: Any = {"provider": "bank", "reference": "tx", "currency": "EUR"}
            orders.pay(shop.client, order.id, amount_minor=250, **money)
        else:
            orders.cancel(shop.client, order.id)
    assert (found[0].client_reference, found[0].version) == ("A-9", 3)
    listed = shop.service.orders(shop.client, page_size=9, client_reference="A-9")
    assert [each.id for each in listed] == [order.id]
