"""How an order ends: paid, cancelled on request, or cancelled by the clock. Once."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from orders.errors import (
    AlreadyPaid,
    AlreadyRefunded,
    OrderNotFound,
    PaymentNotFound,
    ReferenceReused,
    RefundTooLarge,
    WrongCurrency,
)
from orders.order.domain import CancelledOrder, Entry, Order, OrderStatus, Payment
from orders.order.limits import Unpaid
from orders.order.payments import PaymentResult
from orders.order.repository import OrderRepository
from orders.sql.database import reading
from orders.sql.ids import new_id
from orders.sql.statements import Position
from orders.sql.tables import order_events, unpaid_orders
from tests.conftest import Shop
from tests.expiring import expire_now, swept

MINUTE_MS = 60_000


def current(shop: Shop, order: Order) -> Order:
    return shop.service.order(shop.client, order.id)


def money(payment: Payment) -> dict[str, Any]:
    """What an event says of a payment."""
    return {
        "payment_id": payment.id,
        "provider": payment.provider,
        "reference": payment.reference,
        "amount_minor": payment.amount_minor,
        "currency": payment.currency,
    }


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


def test_a_replayed_refund_is_still_due(shop: Shop) -> None:
    order = shop.place()
    shop.service.cancel(shop.client, order.id)
    first = shop.pay(order, "r-1")
    before = shop.tables()
    assert shop.pay(order, "r-1") == (first.payment, True)
    assert first.payment.status == "refund_due"
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
    assert [row[6] for row in shop.tables()["payments"] if row[3] == "late"] == ["refund_due"]


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


def test_a_reference_belongs_to_one_order_and_one_amount(shop: Shop) -> None:
    first, second = shop.place(), shop.place()
    shop.pay(first, "r-1")
    before = shop.tables()
    for order, other in (
        (second, {}),
        (first, {"amount_minor": 251}),
        (first, {"currency": "USD"}),
    ):
        with pytest.raises(ReferenceReused):
            shop.pay(order, "r-1", **other)
    assert shop.tables() == before


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


def due(shop: Shop, reference: str = "late") -> Payment:
    """Money that came after the cancellation."""
    order = shop.place()
    shop.service.cancel(shop.client, order.id)
    return shop.pay(order, reference).payment


def test_a_refund_is_noted_once_with_its_reference_and_an_event(shop: Shop) -> None:
    payment = due(shop)
    refunded = shop.service.refund(shop.client, payment.id, reference="re-1")
    told = refunded.payment
    assert (refunded.replayed, told.status, told.refund_reference) == (False, "refunded", "re-1")
    assert told.refunded_at is not None
    assert told.refunded_at >= payment.created_at
    assert (told.reason, told.refunded_minor) == ("order_cancelled", told.amount_minor)
    *_, event = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    assert (event.type, event.at) == ("payment.refunded", told.refunded_at)
    assert event.data == {**money(payment), **back("re-1", 250, 250)}
    before = shop.tables()
    again = shop.service.refund(shop.client, payment.id, reference="re-1")
    assert again == (told, True)
    with pytest.raises(AlreadyRefunded):
        shop.service.refund(shop.client, payment.id, reference="re-2")
    assert shop.tables() == before


def back(reference: str, amount_minor: int, refunded_minor: int) -> dict[str, Any]:
    """What an event says of a refund, and of the payment's refunds so far."""
    return {
        "refund_reference": reference,
        "refund_amount_minor": amount_minor,
        "refunded_minor": refunded_minor,
    }


def refundable(shop: Shop, kind: str) -> Payment:
    """A payment whose refunds are events of this kind."""
    if kind == "payment.refunded":
        return due(shop)
    shop.stock()
    return shop.pay(shop.place()).payment


@pytest.mark.parametrize("kind", ["order.refunded", "payment.refunded"])
def test_refunds_of_parts_add_up_to_the_payment(shop: Shop, kind: str) -> None:
    payment = refundable(shop, kind)
    refund = partial(shop.service.refund, shop.client, payment.id)
    one = refund(reference="re-1", amount_minor=1, currency="EUR").payment
    assert one == replace(
        payment, refunded_minor=1, refunded_at=one.refunded_at, refund_reference="re-1"
    ), "its status is the same as before"
    order = shop.service.order(shop.client, payment.order_id)
    assert order.refunded_minor == (1 if kind == "order.refunded" else 0)
    shop.service.refund(shop.client, payment.id, reference="re-2", amount_minor=200)
    last = refund(reference="re-3").payment
    assert (last.status, last.refunded_minor, last.reason) == ("refunded", 250, payment.reason)

    [*_, first, second, third] = shop.service.events(
        shop.client, payment.order_id, after_id=0, page_size=9
    )
    assert {event.type for event in (first, second, third)} == {kind}
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


@pytest.mark.parametrize("kind", ["order.refunded", "payment.refunded"])
def test_what_a_failed_refund_was_of_can_be_refunded_again(shop: Shop, kind: str) -> None:
    payment = refundable(shop, kind)
    refund = partial(shop.service.refund, shop.client, payment.id)

    def fail(reference: str, amount: int | None = None) -> PaymentResult:
        entry = Entry(reference, amount, kind="failed")
        return shop.service.enter(shop.client, payment.id, entry, reported=True)

    refund(reference="re-1", amount_minor=100)
    assert refund(reference="re-2").payment.status == "refunded"
    failed = fail("re-2")
    assert failed == (replace(payment, refunded_minor=100), False), "as it was, but for the other"
    before = shop.tables()
    for again in (fail("re-2"), fail("re-2", 150)):
        assert again == (failed.payment, True)
    for wrong in (partial(fail, "re-1", 99), partial(refund, reference="re-2")):
        with pytest.raises(ReferenceReused):
            wrong()
    assert shop.tables() == before
    last = refund(reference="re-3").payment
    assert (last.status, last.refunded_minor) == ("refunded", 250)
    order = shop.service.order(shop.client, payment.order_id)
    assert order.refunded_minor == (250 if kind == "order.refunded" else 0)
    assert fail("re-1").payment == replace(last, status=payment.status, refunded_minor=150), (
        "the latest has not failed"
    )
    events = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    assert [(event.type, event.data) for event in events[-5:]] == [
        (kind, {**money(payment), **back("re-1", 100, 100)}),
        (kind, {**money(payment), **back("re-2", 150, 250)}),
        ("payment.refund_failed", {**money(payment), **back("re-2", 150, 100)}),
        (kind, {**money(payment), **back("re-3", 150, 250)}),
        ("payment.refund_failed", {**money(payment), **back("re-1", 100, 150)}),
    ]


def test_a_refund_that_failed_before_it_was_reported_changes_nothing(shop: Shop) -> None:
    payment, other = due(shop), due(shop, "later")
    entry = Entry("re-1", kind="failed")
    before = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    for replayed in (False, True):
        told = shop.service.enter(shop.client, payment.id, entry, reported=True)
        assert told == (payment, replayed)
    for amount in (None, 100):
        late = Entry("re-1", amount)
        told = shop.service.enter(shop.client, payment.id, late, reported=True)
        assert told == (payment, True)
        with pytest.raises(ReferenceReused):
            shop.service.refund(shop.client, payment.id, reference="re-1", amount_minor=amount)
    after = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    assert after == before
    with pytest.raises(ReferenceReused):
        shop.service.enter(shop.client, other.id, entry)
    with pytest.raises(WrongCurrency):
        shop.service.enter(shop.client, other.id, Entry("re-2", currency="USD", kind="failed"))


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
    shop.service.refund(shop.client, payment.id, reference="re-1", amount_minor=101)
    before = shop.tables()
    with pytest.raises(error):
        shop.service.refund(shop.client, payment.id, **{"reference": "re-2", **refund})
    assert shop.tables() == before


def test_a_dispute_is_kept_as_an_event_and_changes_no_money(shop: Shop) -> None:
    payment = shop.pay(shop.place(), "tx").payment
    kinds = ("opened", "opened", "lost")
    for kind, replayed in zip(kinds, (False, True, False), strict=True):
        entry = Entry("dp-1", 200, kind=kind)
        of = (shop.client, "bank", "tx")
        assert shop.service.enter_by_reference(*of, entry) == (payment, replayed)
    [_, _, *events] = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    facts = {**money(payment), "dispute_reference": "dp-1", "dispute_amount_minor": 200}
    assert [(event.type, event.data) for event in events] == [
        ("payment.disputed", {**facts, "dispute": kind}) for kind in ("opened", "lost")
    ]
    refunded = shop.service.refund(shop.client, payment.id, reference="dp-1", amount_minor=200)
    assert refunded.payment.refunded_minor == 200, "whose money is gone is reported as refunded"


def test_what_another_client_was_paid_is_not_refunded(shop: Shop) -> None:
    for payment_id in (due(shop).id, new_id()):
        with pytest.raises(PaymentNotFound):
            shop.service.refund(shop.other, payment_id, reference="re-1")
        with pytest.raises(PaymentNotFound):
            shop.service.payment(shop.other, payment_id)
    assert shop.tables()["payment_entries"] == []


def test_one_refund_is_for_one_payment(shop: Shop) -> None:
    first, second = due(shop, "late-1"), due(shop, "late-2")
    shop.service.refund(shop.client, first.id, reference="re-1")
    before = shop.tables()
    with pytest.raises(ReferenceReused):
        shop.service.refund(shop.client, second.id, reference="re-1")
    assert shop.tables() == before


def test_payments_are_listed_by_status_and_by_order_oldest_first(shop: Shop) -> None:
    dues = [due(shop, f"late-{n}") for n in range(5)]
    shop.service.refund(shop.client, dues[1].id, reference="re")

    def pages(**which: Any) -> list[list[str]]:
        found: list[list[str]] = []
        after = None
        while True:
            page = shop.service.payments(shop.client, page_size=2, after=after, **which)
            found.append([payment.reference for payment in page])
            if len(page) < 2:
                return found
            after = Position(page[-1].created_at, page[-1].id)

    assert pages(status="refund_due") == [["late-0", "late-2"], ["late-3", "late-4"], []]
    assert pages(status="refunded") == [["late-1"]]
    assert pages(status="applied") == [[]]
    assert shop.service.payments(shop.other, status="refund_due", page_size=9) == []
    order_id = dues[0].order_id
    [only] = shop.service.payments_of_order(shop.client, order_id, page_size=9)
    assert only == dues[0]
    with pytest.raises(OrderNotFound):
        shop.service.payments_of_order(shop.other, order_id, page_size=9)
    assert shop.service.payments_of_order(shop.client, shop.place().id, page_size=9) == []


# -- cancelling on request -----------------------------------------------------------------


def test_a_cancellation_gives_the_stock_back(shop: Shop) -> None:
    shop.stock("tea", 10)
    order = shop.place(tea=3)
    cancelled = shop.service.cancel(shop.client, order.id)
    assert (cancelled.status, cancelled.cancel_reason, cancelled.version) == (
        "cancelled",
        "requested",
        2,
    )
    assert cancelled == current(shop, order)
    assert shop.shelf("tea") == (10, 0)
    [_, event] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)
    assert (event.type, event.data) == ("order.cancelled", {"reason": "requested"})
    assert shop.scheduler.cancelled == [order.id]


def test_cancelling_again_changes_nothing(shop: Shop) -> None:
    shop.stock("tea", 10)
    order = shop.place(tea=3)
    shop.place(tea=5)
    first = shop.service.cancel(shop.client, order.id)
    before = shop.tables()
    assert shop.service.cancel(shop.client, order.id) == first
    assert shop.tables() == before


def test_a_paid_order_is_not_cancelled(shop: Shop) -> None:
    order = shop.place()
    shop.pay(order)
    before = shop.tables()
    with pytest.raises(AlreadyPaid):
        shop.service.cancel(shop.client, order.id)
    assert shop.tables() == before


def test_an_order_that_does_not_exist_is_not_found(shop: Shop) -> None:
    with pytest.raises(OrderNotFound):
        shop.service.cancel(shop.client, new_id())
    with pytest.raises(OrderNotFound):
        shop.service.order(shop.client, new_id())
    with pytest.raises(OrderNotFound):
        shop.service.events(shop.client, new_id(), after_id=0, page_size=1)


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
    assert expire_now(shop.service, ids[::-1]) == {}
    assert shop.tables() == before
    assert shop.shelf() == (100, 50)


def test_expiring_nothing_changes_nothing(shop: Shop) -> None:
    before = shop.tables()
    assert expire_now(shop.service, []) == {}
    assert expire_now(shop.service, [new_id()]) == {}
    assert shop.tables() == before


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
    with reading(shop.engine) as connection:
        repository = OrderRepository(connection)
        assert repository.cancel(order.id, shop.client) is None
        deadline = order.created_at + timedelta(hours=1)
        bounds: Any = {"expires_at": deadline, "bounds_ms": (1, 86_400_000), "kept_ms": 0}
        assert repository.extend(order.id, shop.client, versions="*", **bounds) is None
        assert repository.unpaid(shop.client, 9) == Unpaid(0, 0)
        assert repository.oldest_overdue_ms() == 0
    assert shop.tables() == before
    paid = shop.pay(order).payment
    assert (paid.status, paid.reason) == ("refund_due", "already_paid"), "the money is kept"


def test_the_sweeps_question_is_answered_by_its_index(shop: Shop) -> None:
    asked: list[Any] = []

    def listen(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    sa.event.listen(shop.engine, "before_cursor_execute", listen)
    ids(shop, None, 0)
    ids(shop, -300, 300)
    sa.event.remove(shop.engine, "before_cursor_execute", listen)
    questions = [question for question in asked if "FROM unpaid_orders" in question[0]]
    assert len(questions) == 2
    with shop.engine.begin() as connection:
        for statement, parameters in questions:
            plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).all()
            assert "ix_unpaid_orders_expires" in repr(plan)
            assert "sort" not in repr(plan).lower()
