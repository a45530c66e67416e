"""Placing an order: stock is held, prices are the server's, one key makes one order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from orders.db.ids import new_id
from orders.db.statements import Position
from orders.db.tables import order_events, stock_items
from orders.errors import (
    AlreadyPaid,
    MixedCurrencies,
    OrderError,
    OrderNotFound,
    OutOfStock,
    TimeoutOutOfRange,
    TotalTooLarge,
    UnknownSku,
)
from orders.order.domain import Item, NewOrder, Order, OrderStatus
from orders.stock.domain import MAX_INT, MAX_MINOR
from tests.kit.shop import Shop


def place(shop: Shop, **changes: Any) -> Any:
    request: dict[str, Any] = {
        "client_id": shop.client,
        "key": "key-1",
        "fingerprint": "f",
        "quantities": {"tea": 1},
    }
    return shop.service.place(NewOrder(**{**request, **changes}))


def test_an_order_holds_its_stock_at_the_servers_prices(shop: Shop) -> None:
    shop.stock("tea", 10, 250)
    shop.stock("cup", 5, 1_099)
    order = shop.place(tea=3, cup=2)
    assert order == Order(
        id=order.id,
        status=OrderStatus.UNPAID,
        currency="EUR",
        total_minor=3 * 250 + 2 * 1_099,
        items=(Item("cup", 2, 1_099), Item("tea", 3, 250)),
        created_at=order.created_at,
        expires_at=order.created_at + timedelta(seconds=1800),
        client="customer",
    )
    assert UUID(order.id).version == 7
    assert (shop.shelf("tea"), shop.shelf("cup")) == ((10, 3), (5, 2))
    assert shop.events(order) == ["order.created"]
    [(order_id, delay_ms)] = shop.scheduler.scheduled
    assert order_id == order.id
    assert 0 < 1_800_000 - delay_ms < 60_000, "less what has passed since the row was written"


def test_an_order_that_costs_nothing_is_paid_at_once(shop: Shop) -> None:
    shop.stock("sample", 10, 0)
    order = shop.place(key="free", sample=3)
    assert (order.status, order.total_minor, order.version) == (OrderStatus.PAID, 0, 1)
    assert order.paid_at == order.created_at
    assert shop.shelf("sample") == (7, 0)
    assert shop.events(order) == ["order.created", "order.paid"]
    assert shop.scheduler.scheduled == []
    assert shop.service.order(shop.client, order.id) == order
    assert shop.place(key="free", sample=3) == order
    assert shop.pay(order, "r-1", amount_minor=1).payment.reason == "already_paid"
    with pytest.raises(AlreadyPaid):
        shop.service.cancel(shop.client, order.id)
    shop.stock("tea", 10, 250)
    assert shop.place(sample=1, tea=1).status is OrderStatus.UNPAID
    with pytest.raises(OutOfStock):
        shop.place(sample=7)


def test_an_order_keeps_its_price_when_the_price_changes(shop: Shop) -> None:
    shop.stock(price_minor=250)
    order = shop.place(tea=2)
    shop.stock(price_minor=900)
    assert shop.service.order(shop.client, order.id) == order
    assert shop.place(tea=1).total_minor == 900


def test_moments_are_aware_in_utc_and_whole_milliseconds(shop: Shop) -> None:
    before = datetime.now(UTC)
    order = shop.place()
    [event] = shop.service.events(shop.client, order.id, after_id=0, page_size=1)
    after = datetime.now(UTC)
    for moment in (order.created_at, event.at):
        assert moment.utcoffset() == timedelta(0)
        assert moment.microsecond % 1000 == 0
        assert before - timedelta(milliseconds=1) <= moment <= after
    assert order.expires_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("quantities", "asked", "seconds"),
    [
        ({"ticket": 1}, None, 300),
        ({"ticket": 1, "tea": 1, "boat": 1}, None, 300),
        ({"tea": 1, "boat": 1}, None, 1800),
        ({"boat": 1}, None, 7200),
        ({"ticket": 1}, 900, 900),
        ({"year": 1}, None, 86_400),
    ],
)
def test_without_a_wish_the_shortest_timeout_of_its_skus_counts(
    shop: Shop, quantities: dict[str, int], asked: int | None, seconds: int
) -> None:
    timeouts = {"ticket": 300, "boat": 7200, "year": 300}
    for sku, own in timeouts.items():
        values = {"on_hand": 9, "price_minor": 250, "currency": "EUR"}
        shop.stock_service.set(sku, **values, timeout_seconds=own)  # type: ignore[arg-type]
    with shop.engine.begin() as connection:  # set when the bounds were wider
        row = sa.update(stock_items).where(stock_items.c.sku == "year")
        connection.execute(row.values(timeout_seconds=MAX_INT))
    placed = place(shop, quantities=quantities, timeout_seconds=asked)
    assert placed.order.expires_at - placed.order.created_at == timedelta(seconds=seconds)
    [(_, delay_ms)] = shop.scheduler.scheduled
    assert 0 < 1000 * seconds - delay_ms < 60_000
    with shop.engine.begin() as connection:
        connection.execute(sa.update(stock_items).values(timeout_seconds=1))
    again = place(shop, quantities=quantities, timeout_seconds=asked)
    assert (again.order, again.replayed) == (placed.order, True)


def test_a_timeout_out_of_bounds_is_refused_and_leaves_nothing(shop: Shop) -> None:
    before = shop.tables()
    for seconds in (0, -1, 0.999, 86_400.001, 10**400, float("nan")):
        with pytest.raises(TimeoutOutOfRange, match="It must be 1 to 86400 s"):
            place(shop, timeout_seconds=seconds)
    assert shop.tables() == before


def test_the_same_key_and_request_replays_the_first_response(shop: Shop) -> None:
    first = place(shop)
    before = shop.tables()
    again = place(shop)
    assert (first.replayed, again.replayed) == (False, True)
    assert again.order == first.order
    assert shop.tables() == before
    assert len(shop.scheduler.scheduled) == 1


def test_two_customers_may_use_the_same_key(shop: Shop) -> None:
    mine = shop.place(key="same")
    theirs = shop.place(shop.other, key="same")
    assert mine.id != theirs.id
    assert shop.shelf() == (100, 2)


REFUSALS: list[tuple[dict[str, int], type[OrderError], dict[str, Any]]] = [
    ({"tea": 1, "unheard-of": 1}, UnknownSku, {"sku": "unheard-of"}),
    ({"tea": 8, "unheard-of": 1}, OutOfStock, {"sku": "tea", "available": 7}),
    ({"cup": 1, "tea": 8}, OutOfStock, {"sku": "tea", "available": 7}),
    ({"tea": 2**31 - 1}, OutOfStock, {"sku": "tea", "available": 7}),
    ({"tea": 1, "dollars": 1}, MixedCurrencies, {}),
    ({"gold": 2}, TotalTooLarge, {}),
    ({"tea": 1, "gold": 1}, TotalTooLarge, {}),
]


def test_a_refusal_says_why_and_leaves_nothing_behind(shop: Shop) -> None:
    shop.stock("tea", 10)
    shop.stock("cup", 5)
    shop.stock("gold", 5, MAX_MINOR)
    shop.stock("dollars", 5, 1, "USD")
    shop.place(tea=3)
    before = shop.tables()
    for quantities, error, facts in REFUSALS:
        with pytest.raises(error) as refused:
            place(shop, quantities=quantities)
        assert refused.value.facts == facts
        assert shop.tables() == before
    # The key was not used up, and a total may reach the largest exact number.
    placed = place(shop, quantities={"gold": 1}, fingerprint="corrected")
    assert (placed.replayed, placed.order.total_minor) == (False, MAX_MINOR)


def test_another_customers_order_does_not_exist(shop: Shop) -> None:
    order = shop.place()
    before = shop.tables()
    service = shop.service
    money: dict[str, Any] = {"provider": "bank", "reference": "r", "currency": "EUR"}
    asks: list[Callable[[str, str], object]] = [
        service.order,
        service.cancel,
        partial(service.events, after_id=0, page_size=1),
        partial(service.pay, amount_minor=order.total_minor, **money),
    ]
    for ask, who in product(asks, ((shop.other, order.id), (shop.client, new_id()))):
        with pytest.raises(OrderNotFound):
            ask(*who)
    assert service.orders(shop.other, page_size=10) == []
    assert shop.tables() == before
    assert shop.scheduler.cancelled == []


def test_orders_are_listed_newest_first_and_filtered(shop: Shop) -> None:
    unpaid, paid, cancelled = (shop.place() for _ in range(3))
    shop.pay(paid)
    shop.service.cancel(shop.client, cancelled.id)
    shop.expire_in(-60_000, unpaid)

    def ids(**filters: Any) -> list[str]:
        found = shop.service.orders(shop.client, **{"page_size": 10, **filters})
        return [order.id for order in found]

    assert ids() == [cancelled.id, paid.id, unpaid.id]
    assert ids(page_size=2) == [cancelled.id, paid.id]
    assert ids(after=Position(paid.created_at, paid.id)) == [unpaid.id]
    assert ids(status="paid") == [paid.id]
    assert ids(created_after=cancelled.created_at) == []
    assert ids(created_after=unpaid.created_at - timedelta(milliseconds=1)) == ids()
    ends = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
    for bound in (*ends, unpaid.created_at, cancelled.created_at):
        found = [each.id for each in (cancelled, paid, unpaid) if each.created_at < bound]
        assert ids(created_before=bound) == found
    just_after = unpaid.created_at + timedelta(microseconds=1)
    assert unpaid.id in ids(created_before=just_after, created_after=just_after - timedelta(1))
    assert ids(status="paid", created_before=paid.created_at) == []
    assert ids(expires_before=unpaid.created_at) == [unpaid.id]
    assert ids(expires_before=unpaid.created_at, status="cancelled") == []


def test_expires_before_lists_the_latest_deadline_first(shop: Shop) -> None:
    placed = [shop.place() for _ in range(4)]
    for order, minutes in zip(placed, (30, 10, 20, 40), strict=True):
        shop.expire_in(minutes * 60_000, order)
    shop.service.cancel(shop.client, placed[2].id)
    bound = placed[0].created_at + timedelta(minutes=35)
    pages, after = [], None
    while page := shop.service.orders(shop.client, page_size=1, expires_before=bound, after=after):
        [order] = page
        pages.append(order.id)
        after = Position(order.expires_at, order.id)
    assert pages == [placed[0].id, placed[2].id, placed[1].id]


@contextmanager
def stopped_clock(engine: sa.Engine) -> Iterator[datetime]:
    """The database's clock stands still for statements that read it when they hold their locks."""
    moment = datetime.now(UTC).replace(microsecond=7000)

    def stop(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> Any:
        return statement.replace("clock_timestamp()", f"timestamptz '{moment}'"), parameters

    sa.event.listen(engine, "before_cursor_execute", stop, retval=True)
    yield moment
    sa.event.remove(engine, "before_cursor_execute", stop)


def test_orders_of_one_moment_are_each_listed_once(shop: Shop) -> None:
    with stopped_clock(shop.engine) as moment:
        placed = [shop.place() for _ in range(7)]
    assert {order.created_at for order in placed} == {moment}
    shop.pay(placed[1])
    shop.service.cancel(shop.client, placed[4].id)
    wanted = sorted((order.id for order in placed), reverse=True)
    bound = placed[0].expires_at + timedelta(seconds=1)
    lists: list[tuple[dict[str, Any], datetime]] = [
        ({}, placed[0].created_at),
        ({"expires_before": bound}, placed[0].expires_at),
    ]
    for filters, at in lists:
        pages: list[str] = []
        while page := shop.service.orders(
            shop.client, page_size=2, after=Position(at, pages[-1]) if pages else None, **filters
        ):
            pages += [order.id for order in page]
        assert pages == wanted


def test_the_database_refuses_stock_that_makes_no_sense(shop: Shop) -> None:
    shop.stock("tea", 10)
    shop.place(tea=4)
    for change in ("reserved = 11", "reserved = -1", "on_hand = 3", "price_minor = -1"):
        with pytest.raises(sa.exc.IntegrityError), shop.engine.begin() as connection:
            connection.execute(sa.text(f"UPDATE stock_items SET {change}"))  # noqa: S608


def test_the_database_refuses_a_second_ending(shop: Shop) -> None:
    order = shop.place()
    shop.pay(order)
    for ending in ("order.paid", "order.cancelled"):
        again = sa.insert(order_events).values(
            order_id=order.id,
            client_id=shop.client,
            type=ending,
            at=order.created_at,
            data={},
            expires_at=order.expires_at,
            version=3,
        )
        once = pytest.raises(sa.exc.IntegrityError, match="uq_order_events_terminal")
        with once, shop.engine.begin() as connection:
            connection.execute(again)
