"""An order instead of an unpaid one: both in one statement, or neither."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from orders.errors import (
    AlreadyPaid,
    KeyReused,
    MixedCurrencies,
    OrderCancelled,
    OrderError,
    OutOfStock,
    TimeoutOutOfRange,
    UnknownOrder,
    UnknownSku,
)
from orders.order.domain import Order, OrderStatus
from orders.order.repository import OrderRepository
from orders.order.service import Placed
from orders.sql.ids import new_id
from orders.stock.domain import MAX_INT
from tests.conftest import Api, Shop
from tests.expiring import expire_now
from tests.integration.test_api_routes import content, problem
from tests.integration.test_orders_limits import limited
from tests.integration.test_orders_statements import pay, stopped, waiting


def replace(shop: Shop, order: Order, key: str = "", **quantities: int) -> Placed:
    new = shop.new(key, replaces=order.id, quantities=quantities or {"tea": 1})
    return shop.service.place(new)


@pytest.mark.parametrize(
    ("old", "new", "shelves"),
    [
        ({"tea": 3}, {"tea": 5}, {"tea": (5, 5), "cup": (5, 0)}),
        ({"tea": 5}, {"tea": 1}, {"tea": (5, 1), "cup": (5, 0)}),
        ({"tea": 3, "cup": 1}, {"tea": 3, "cup": 1}, {"tea": (5, 3), "cup": (5, 1)}),
        ({"tea": 3}, {"cup": 5}, {"tea": (5, 0), "cup": (5, 5)}),
        ({"tea": 3}, {"gift": 2, "cup": 1}, {"tea": (5, 0), "cup": (5, 1), "gift": (5, 2)}),
        (
            {"tea": 3, "gift": 1, "cup": 1},
            {"gift": 5},
            {"tea": (5, 0), "cup": (5, 0), "gift": (0, 0)},
        ),
        ({"many": MAX_INT}, {"many": MAX_INT}, {"many": (MAX_INT, MAX_INT)}),
    ],
)
def test_an_order_may_have_what_the_one_it_replaces_held(
    shop: Shop, old: dict[str, int], new: dict[str, int], shelves: dict[str, tuple[int, int]]
) -> None:
    shop.stock("tea", 5)
    shop.stock("cup", 5)
    shop.stock("gift", 5, 0)
    shop.stock("many", MAX_INT)
    replaced = shop.basket(old)
    shop.stock_service.retire(next(iter(old.keys() - new.keys()), "gift"))
    placed = replace(shop, replaced, "one", **new)
    assert {sku: shop.shelf(sku) for sku in shelves} == shelves
    assert {item.sku: item.quantity for item in placed.order.items} == new
    cancelled = shop.service.order(shop.client, replaced.id)
    assert (cancelled.cancel_reason, cancelled.cancelled_at) == (
        "replaced",
        placed.order.created_at,
    )
    is_free = placed.order.status is OrderStatus.PAID
    assert shop.events(placed.order) == ["order.created", *["order.paid"] * is_free]
    [_, event] = shop.service.events(shop.client, replaced.id, after_id=0, page_size=9)
    assert event.data == {"reason": "replaced", "replaced_by": placed.order.id}
    assert shop.scheduler.cancelled == [replaced.id]
    assert [order_id for order_id, _ in shop.scheduler.scheduled] == [
        replaced.id,
        *[placed.order.id] * (not is_free),
    ]
    before = shop.tables()
    assert replace(shop, replaced, "one", **new) == Placed(placed.order, replayed=True)
    with pytest.raises(KeyReused):
        shop.service.place(shop.new("one", quantities=new, fingerprint="f2"))
    assert shop.tables() == before


def paid(shop: Shop, order: Order) -> str:
    shop.pay(order)
    return order.id


def cancelled(shop: Shop, order: Order) -> str:
    shop.service.cancel(shop.client, order.id)
    return order.id


REFUSALS: list[tuple[Callable[[Shop, Order], str], dict[str, Any], type[OrderError]]] = [
    (paid, {}, AlreadyPaid),
    (cancelled, {}, OrderCancelled),
    (lambda shop, _: shop.place(shop.other).id, {}, UnknownOrder),
    (lambda *_: new_id(), {}, UnknownOrder),
    (lambda _, order: order.id, {"quantities": {"tea": 11}}, OutOfStock),
    (lambda _, order: order.id, {"quantities": {"tea": 1, "no": 1}}, UnknownSku),
    (lambda _, order: order.id, {"quantities": {"no": 1}}, UnknownSku),
    (lambda _, order: order.id, {"quantities": {"old": 1}}, UnknownSku),
    (lambda _, order: order.id, {"quantities": {"tea": 1, "yen": 1}}, MixedCurrencies),
    (lambda _, order: order.id, {"timeout_seconds": 0}, TimeoutOutOfRange),
    (lambda _, order: order.id, {"key": "known"}, KeyReused),
]


@pytest.mark.parametrize(("prepare", "changes", "refusal"), REFUSALS)
def test_what_is_refused_leaves_the_old_order_as_it_was(
    shop: Shop,
    prepare: Callable[[Shop, Order], str],
    changes: dict[str, Any],
    refusal: type[OrderError],
) -> None:
    shop.stock("tea", 10)
    shop.stock("yen", currency="JPY")
    shop.stock("old")
    shop.basket({"tea": 1}, key="known")
    order = shop.place(tea=2, old=1)
    shop.stock_service.retire("old")
    replaces = prepare(shop, order)
    before = shop.tables(), [*shop.scheduler.cancelled]
    new = shop.new(changes.pop("key", ""), **changes, replaces=replaces)
    with pytest.raises(refusal) as refused:
        shop.service.place(new)
    assert (shop.tables(), shop.scheduler.cancelled) == before
    if refusal is OutOfStock:
        assert refused.value.facts == {"sku": "tea", "available": 9}


# -- with others ---------------------------------------------------------------------------


def test_an_order_that_is_being_paid_is_not_replaced(shop: Shop) -> None:
    shop.stock("tea", 5)
    order = shop.place(tea=3)
    with waiting(shop, lambda: replace(shop, order, tea=4)) as (other, found):
        pay(other, shop, order, "r-1")
    assert isinstance(found[0], AlreadyPaid)
    assert shop.shelf() == (2, 0)
    shop.check(tea=5)


def test_a_payment_that_waited_for_a_replacement_is_due_back(shop: Shop) -> None:
    shop.stock("tea", 5)
    order = shop.place(tea=3)
    with waiting(shop, lambda: shop.pay(order)) as (other, found):
        OrderRepository(other).place(shop.new(replaces=order.id), timeout_ms=60_000)
    assert found[0].payment.reason == "order_cancelled"
    assert shop.shelf() == (5, 1)
    shop.check(tea=5)


def test_of_two_replacements_one_is_placed(shop: Shop) -> None:
    shop.stock("tea", 5)
    order = shop.place(tea=3)
    with waiting(shop, lambda: replace(shop, order, tea=4)) as (other, found):
        OrderRepository(other).place(shop.new(replaces=order.id), timeout_ms=60_000)
    assert isinstance(found[0], OrderCancelled)
    assert shop.shelf() == (5, 1)
    with waiting(shop, lambda: replace(shop, twin, "twin")) as (other, found):
        [twin] = shop.service.orders(shop.client, status="unpaid", page_size=9)
        same = OrderRepository(other).place(shop.new("twin", replaces=twin.id), 1_800_000)
    assert found[0] == Placed(same, replayed=True)
    shop.check(tea=5)


def test_a_replacement_has_the_stock_and_deadline_it_waited_for(shop: Shop) -> None:
    shop.stock("tea", 5)
    order = shop.place(tea=3)
    with waiting(shop, lambda: replace(shop, order, tea=5)) as (other, found):
        other.execute(sa.text("UPDATE unpaid_orders SET version = 7"))
    assert shop.service.order(shop.client, order.id).version == 8
    with waiting(shop, lambda: replace(shop, found[0].order, tea=5)) as (other, second):
        other.execute(sa.text("UPDATE stock_items SET on_hand = 6, reserved = 6"))
    assert second[0].order.created_at >= second[1], "its time was to begin with its stock"
    assert shop.shelf() == (6, 6)
    with waiting(shop, lambda: replace(shop, second[0].order, tea=6)) as (other, third):
        other.execute(sa.text("UPDATE stock_items SET reserved = 5, on_hand = 5"))
    assert isinstance(third[0], OutOfStock)
    assert shop.service.order(shop.client, second[0].order.id).status is OrderStatus.UNPAID


def test_a_batch_skips_what_is_being_replaced(shop: Shop) -> None:
    order = shop.place()
    shop.expire_in(-1, order)
    placed, left = stopped(
        shop,
        partial(replace, shop, order, tea=2),
        lambda: expire_now(shop.service, [order.id]),
        waits=False,
    )
    assert ([*left], left[order.id] <= 0) == ([order.id], True)
    assert expire_now(shop.service, [order.id]) == {}
    assert shop.service.order(shop.client, order.id).cancel_reason == "replaced"
    assert placed.order.status is OrderStatus.UNPAID
    shop.check(tea=100)


@pytest.mark.parametrize(("limits", "less"), [((1, 0), 3), ((0, 3), 3)])
def test_at_the_limit_an_order_can_be_replaced(
    migrated_url: str, limits: tuple[int, int], less: int
) -> None:
    with limited(migrated_url, *limits) as shop:
        shop.stock()
        order = shop.place(tea=less)
        with pytest.raises(OrderError):
            shop.place()
        for _ in range(3):
            order = replace(shop, order, tea=less).order
        with pytest.raises(OrderError, match="too many"):
            shop.place()
        if limits[1]:
            with pytest.raises(OrderError, match="too many"):
                replace(shop, order, tea=less + 1)
        shop.check(tea=100)


# -- over HTTP -----------------------------------------------------------------------------


def test_an_order_is_replaced_over_http(api: Api) -> None:
    old = content(api.place())
    body = {"items": [{"sku": "tea", "quantity": 2}], "replaces": old["id"].upper()}
    headers = {"Idempotency-Key": "two"}
    new = api.send("POST", "/v1/orders", body, headers=headers)
    assert (new.status_code, content(new)["status"]) == (201, "unpaid")
    shown = content(api.send("GET", f"/v1/orders/{old['id']}"))
    assert (shown["status"], shown["cancel_reason"]) == ("cancelled", "replaced")
    same = api.send("POST", "/v1/orders", {**body, "replaces": old["id"]}, headers=headers)
    assert (same.headers["Idempotent-Replayed"], same.json) == ("true", new.json)
    for replaces, status, code in (
        (old["id"], 409, "order_cancelled"),
        (new_id(), 422, "unknown_order"),
        ("x", 422, "unprocessable_entity"),
    ):
        changed = {**body, "replaces": replaces}
        problem(
            api.send("POST", "/v1/orders", changed, headers={"Idempotency-Key": new_id()}),
            *(status, code),
        )
    api.pay(content(new)["id"], amount_minor=500)
    late = {**body, "replaces": content(new)["id"]}
    refused = api.send("POST", "/v1/orders", late, headers={"Idempotency-Key": "late"})
    problem(refused, 409, "already_paid")
