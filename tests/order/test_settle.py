"""How an order ends: paid, cancelled on request, or cancelled by the clock. Once."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from orders.db.ids import new_id
from orders.db.tables import order_events, unpaid_orders
from orders.errors import (
    OrderNotFound,
    PaymentNotFound,
    ReferenceReused,
    RefundTooLarge,
    WrongCurrency,
)
from orders.order.domain import CancelledOrder, Order, OrderStatus
from orders.order.payments import PaymentResult
from tests.kit.expiring import expire_now, swept
from tests.kit.shop import Shop, back, due, money, refundable

MINUTE_MS = 60_000


def current(shop: Shop, order: Order) -> Order:
    return shop.service.order(shop.client, order.id)


# -- paying --------------------------------------------------------------------------------


def test_a_payment_sells_what_the_order_held(shop: Shop) -> None:
    shop.stock("tea", 10)
    order = shop.place(tea=3)
    paid = shop.pay(order, "r-1")
    assert (paid.replayed, paid.payment.status, paid.payment.reason) == (False, "applied", None)
    after = current(shop, order)
    assert (after.status, after.version) == (OrderStatus.PAID, 2)
    assert after.paid_at is not None
    assert after.paid_at.utcoffset() == timedelta(0)
    assert (after.cancelled_at, after.cancel_reason) == (None, None)
    assert shop.shelf("tea") == (7, 0)
    [_, event] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)
    assert (event.type, event.data) == ("order.paid", money(paid.payment))
    assert shop.scheduler.cancelled == [order.id]


def test_the_same_reference_replays_the_payment(shop: Shop) -> None:
    order = shop.place()
    first = shop.pay(order, "r-1")
    before = shop.tables()
    assert shop.pay(order, "r-1") == (first.payment, True)
    assert shop.tables() == before


def refund(shop: Shop, order: Order, reason: str, **payment: Any) -> None:
    """The payment is kept, due back for this reason, and changes nothing else."""
    before, shelf, told = current(shop, order), shop.shelf(), list(shop.scheduler.cancelled)
    paid = shop.pay(order, "late", **payment)
    assert (paid.replayed, paid.payment.status, paid.payment.reason) == (
        False,
        "refund_due",
        reason,
    )
    assert (current(shop, order), shop.shelf(), shop.scheduler.cancelled) == (before, shelf, told)
    event = shop.service.events(shop.client, order.id, after_id=0, page_size=9)[-1]
    assert event.type == "payment.refund_due"
    assert event.data == {**money(paid.payment), "reason": reason}
    kept = shop.tables()
    assert [row[6] for row in kept["payments"] if row[3] == "late"] == ["refund_due"]
    assert shop.pay(order, "late", **payment) == (paid.payment, True)
    assert shop.tables() == kept


def expire(shop: Shop, order: Order) -> None:
    shop.expire_in(-1, order)
    expire_now(shop.service, [order.id])


ENDED: dict[str, tuple[Callable[[Shop, Order], object], str]] = {
    "cancelled": (
        lambda shop, order: shop.service.cancel(shop.client, order.id),
        "order_cancelled",
    ),
    "expired": (expire, "order_cancelled"),
    "paid": (lambda shop, order: shop.pay(order, "r-1"), "already_paid"),
}


@pytest.mark.parametrize("how", ENDED)
def test_money_that_comes_after_the_end_is_due_back(shop: Shop, how: str) -> None:
    order, (end, reason) = shop.place(), ENDED[how]
    end(shop, order)
    refund(shop, order, reason)


@pytest.mark.parametrize(
    "wrong", [{"amount_minor": 249}, {"amount_minor": 251}, {"currency": "USD"}]
)
def test_a_wrong_amount_is_due_back_and_the_order_stays_unpaid(
    shop: Shop, wrong: dict[str, Any]
) -> None:
    order = shop.place()
    refund(shop, order, "wrong_amount", **wrong)
    assert current(shop, order).status == "unpaid"
    assert shop.pay(order).payment.status == "applied"


def test_providers_name_their_payments_independently(shop: Shop) -> None:
    first, second = shop.place(), shop.place()
    shop.pay(first, "r-1")
    paid = shop.pay(second, "r-1", provider="card")
    assert (paid.replayed, paid.payment.status) == (False, "applied")


def test_a_late_payment_is_good_until_the_cancellation(shop: Shop) -> None:
    shop.stock("tea", 10)
    order = shop.place(tea=2)
    shop.expire_in(-MINUTE_MS, order)
    assert shop.pay(order).payment.status == "applied"
    assert expire_now(shop.service, [order.id]) == {}
    assert current(shop, order).status == "paid"
    assert shop.shelf("tea") == (8, 0)


# -- refunding -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["order.refunded", "payment.refunded"])
def test_refunds_of_parts_add_up_to_the_payment(shop: Shop, kind: str) -> None:
    payment = refundable(shop, kind)

    def refund(**entry: Any) -> PaymentResult:
        return shop.service.refund(shop.client, payment.id, **entry)

    one = refund(reference="re-1", amount_minor=1, currency="EUR").payment
    assert one == replace(
        payment, refunded_minor=1, refunded_at=one.refunded_at, refund_reference="re-1"
    ), "its status is the same as before"
    order = shop.service.order(shop.client, payment.order_id)
    assert order.refunded_minor == (1 if kind == "order.refunded" else 0)
    shop.service.refund(shop.client, payment.id, "re-2", amount_minor=200)
    last = refund(reference="re-3").payment
    assert (last.status, last.refunded_minor, last.reason) == ("refunded", 250, payment.reason)

    [*_, first, second, third] = shop.service.events(
        shop.client, payment.order_id, after_id=0, page_size=9
    )
    assert {event.type for event in (first, second, third)} == {kind}
    assert third.at == last.refunded_at
    assert [event.data for event in (first, second, third)] == [
        {**money(payment), **back("re-1", 1, 1)},
        {**money(payment), **back("re-2", 200, 201)},
        {**money(payment), **back("re-3", 49, 250)},
    ]
    before = shop.tables()
    for reference, amount in (("re-1", 1), ("re-2", None), ("re-3", 49)):
        assert refund(reference=reference, amount_minor=amount) == (last, True)
    assert shop.tables() == before
    after = shop.service.order(shop.client, payment.order_id)
    paid = kind == "order.refunded"
    assert (after.status, after.version) == (order.status, order.version)
    assert after.refunded_minor == (250 if paid else 0)
    listed = {order.id: order for order in shop.service.orders(shop.client, page_size=9)}
    assert listed[order.id] == after


@pytest.mark.parametrize(
    ("refund", "error"),
    [
        ({"amount_minor": 251}, RefundTooLarge),
        ({"amount_minor": 2**53 - 1}, RefundTooLarge),
        ({"amount_minor": 150}, RefundTooLarge),
        ({"amount_minor": 100, "currency": "USD"}, WrongCurrency),
        ({"reference": "re-1", "amount_minor": 99}, ReferenceReused),
        ({"reference": "re-1", "currency": "USD"}, ReferenceReused),
    ],
)
def test_a_refund_that_cannot_be_is_refused(
    shop: Shop, refund: dict[str, Any], error: type[Exception]
) -> None:
    """More than was paid or than is left, in another currency, or under a reference that is known."""
    payment = due(shop)
    shop.service.refund(shop.client, payment.id, "re-1", amount_minor=101)
    before = shop.tables()
    with pytest.raises(error):
        shop.service.refund(shop.client, payment.id, **{"reference": "re-2", **refund})
    assert shop.tables() == before


def test_what_another_client_was_paid_is_not_refunded(shop: Shop) -> None:
    for payment_id in (due(shop).id, new_id()):
        with pytest.raises(PaymentNotFound):
            shop.service.refund(shop.other, payment_id, "re-1")
        with pytest.raises(PaymentNotFound):
            shop.service.payment(shop.other, payment_id)
    assert shop.tables()["payment_entries"] == []


# -- cancelling on request -----------------------------------------------------------------


def test_a_cancellation_gives_the_stock_back(shop: Shop) -> None:
    shop.stock("tea", 10)
    order = shop.place(tea=3)
    shop.place(tea=5)
    cancelled = shop.service.cancel(shop.client, order.id)
    assert (cancelled.status, cancelled.cancel_reason, cancelled.version) == (
        "cancelled",
        "requested",
        2,
    )
    assert cancelled == current(shop, order)
    assert shop.shelf("tea") == (10, 5)
    [_, event] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)
    assert (event.type, event.data) == ("order.cancelled", {"reason": "requested"})
    assert shop.scheduler.cancelled == [order.id]
    before = shop.tables()
    assert shop.service.cancel(shop.client, order.id) == cancelled
    assert shop.tables() == before


# -- the clock -----------------------------------------------------------------------------


def test_expiry_cancels_only_unpaid_orders_past_their_deadline(shop: Shop) -> None:
    shop.stock("cup", 100)
    first, second = shop.place(tea=1, cup=2), shop.place(tea=4)
    paid, cancelled, early = shop.place(tea=8), shop.place(tea=16), shop.place(tea=32)
    bystander = shop.place(cup=5)
    shop.pay(paid)
    shop.service.cancel(shop.client, cancelled.id)
    shop.expire_in(-1, first, second, paid, cancelled, bystander)
    absent = new_id()
    batch = [first.id, second.id, paid.id, cancelled.id, early.id, absent, first.id]
    again = expire_now(shop.service, batch)
    assert [*again] == [early.id]
    assert 0 < again[early.id] <= 1800_000
    assert again[early.id] > 1700_000
    for order in (first, second):
        after = current(shop, order)
        assert (after.status, after.cancel_reason, after.version) == ("cancelled", "expired", 2)
        assert after.cancelled_at is not None
        assert after.cancelled_at >= after.expires_at
        [_, event] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)
        assert (event.type, event.data) == ("order.cancelled", {"reason": "expired"})
    assert current(shop, paid).status == "paid"
    assert current(shop, cancelled).cancel_reason == "requested"
    assert current(shop, early) == early
    assert current(shop, bystander).status == "unpaid"
    assert shop.shelf("tea") == (92, 32)
    assert shop.shelf("cup") == (100, 5)
    shop.check(tea=100, cup=100)


def test_expiring_twice_changes_nothing_the_second_time(shop: Shop) -> None:
    placed = [shop.place(tea=2) for _ in range(3)]
    shop.place(tea=50)
    shop.expire_in(-1, *placed)
    ids = [order.id for order in placed]
    assert expire_now(shop.service, ids) == {}
    before = shop.tables()
    assert expire_now(shop.service, ids) == {}
    for others in (ids[::-1], [], [new_id()]):
        assert expire_now(shop.service, others) == {}
    assert shop.tables() == before
    assert shop.shelf() == (100, 50)


def test_a_deadline_a_moment_away_is_not_yet(shop: Shop) -> None:
    order = shop.place()
    shop.expire_in(10_000, order)
    again = expire_now(shop.service, [order.id])
    assert 0 < again[order.id] <= 10_000
    assert current(shop, order).status == "unpaid"


def test_a_batch_expires_in_one_transaction_or_not_at_all(shop: Shop) -> None:
    good, spoilt = shop.place(tea=1), shop.place(tea=2)
    shop.expire_in(-1, good, spoilt)
    ended = sa.insert(order_events).values(
        order_id=spoilt.id,
        client_id=shop.client,
        type="order.paid",
        at=spoilt.created_at,
        data={},
        expires_at=spoilt.expires_at,
        version=2,
    )
    with shop.engine.begin() as connection:
        connection.execute(ended)
    before = shop.tables()
    with pytest.raises(sa.exc.IntegrityError):
        expire_now(shop.service, [good.id, spoilt.id])
    assert shop.tables() == before
    # Alone, the good one goes.
    assert expire_now(shop.service, [good.id]) == {}
    assert shop.shelf() == (100, 2)


# -- the sweep's question ------------------------------------------------------------------


def ids(shop: Shop, after: float | None, before: float, page_size: int = 2) -> list[list[str]]:
    return [[order.id for order in page] for page in swept(shop.engine, after, before, page_size)]


def test_waiting_pages_soonest_first_over_equal_deadlines(shop: Shop) -> None:
    placed = [shop.place() for _ in range(7)]
    with shop.engine.begin() as connection:
        connection.execute(sa.update(unpaid_orders).values(expires_at=placed[0].created_at))
    shop.expire_in(-MINUTE_MS, placed[6])
    expected = [placed[6].id, *(order.id for order in placed[:6])]
    for page_size in (1, 2, 3, 7, 8):
        pages = ids(shop, None, 0, page_size)
        assert [order_id for page in pages for order_id in page] == expected
        assert all(len(page) == page_size for page in pages[:-1])
        assert 0 < len(pages[-1]) <= page_size


def test_waiting_looks_within_its_bounds(shop: Shop) -> None:
    overdue, due, soon, late = (shop.place() for _ in range(4))
    paid, cancelled = shop.place(), shop.place()
    shop.pay(paid)
    shop.service.cancel(shop.client, cancelled.id)
    shop.expire_in(-10 * MINUTE_MS, overdue, paid, cancelled)
    shop.expire_in(-MINUTE_MS, due)
    shop.expire_in(MINUTE_MS, soon)
    shop.expire_in(10 * MINUTE_MS, late)
    assert ids(shop, None, -300) == [[overdue.id]]
    assert ids(shop, None, 0) == [[overdue.id, due.id]]
    assert ids(shop, -300, 300) == [[due.id, soon.id]]
    assert ids(shop, 0, 86_400) == [[soon.id, late.id]]
    assert ids(shop, None, 86_400) == [[overdue.id, due.id], [soon.id, late.id]]
    assert ids(shop, 1200, 86_400) == []


def test_waiting_says_how_long_each_order_has(shop: Shop) -> None:
    overdue, soon = shop.place(), shop.place()
    shop.expire_in(-MINUTE_MS, overdue)
    shop.expire_in(MINUTE_MS, soon)
    [[first, second]] = swept(shop.engine, None, 86_400, 10)
    assert -MINUTE_MS - 30_000 < first.delay_ms <= -MINUTE_MS
    assert 30_000 < second.delay_ms <= MINUTE_MS


def test_a_page_may_be_expired_while_the_next_one_waits(shop: Shop) -> None:
    placed = [shop.place() for _ in range(5)]
    shop.expire_in(-MINUTE_MS, *placed)
    for page in swept(shop.engine, None, 0, 2):
        assert expire_now(shop.service, [order.id for order in page]) == {}
    assert ids(shop, None, 0) == []
    assert shop.shelf() == (100, 0)


def test_an_order_without_a_row_is_left_alone(shop: Shop) -> None:
    """Whoever takes rows elsewhere decides what may be done with these orders: nothing, until then."""
    order = shop.place()
    shop.expire_in(-1, order)
    with shop.engine.begin() as connection:
        connection.execute(sa.delete(unpaid_orders))
    before = shop.tables()
    assert expire_now(shop.service, [order.id]) == {}
    cancelled: list[CancelledOrder] = []
    assert expire_now(shop.service, [order.id], cancelled.extend) == {}
    assert cancelled == []
    assert [*swept(shop.engine, None, 0, 9)] == []
    with pytest.raises(OrderNotFound):
        shop.service.cancel(shop.client, order.id)
    deadline = order.created_at + timedelta(hours=1)
    with pytest.raises(OrderNotFound):
        shop.service.extend(shop.client, order.id, expires_at=deadline, versions=None)
    assert shop.tables() == before
    paid = shop.pay(order).payment
    assert (paid.status, paid.reason) == ("refund_due", "already_paid"), "the money is kept"
