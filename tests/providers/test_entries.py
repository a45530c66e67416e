"""What a provider reports about payments: refunds that failed, and disputes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.db.tables import orders
from orders.errors import ReferenceReused, RefundTooLarge, WrongCurrency
from orders.order.payments import PaymentResult
from tests.kit.races import blocked, waiting
from tests.kit.shop import Shop, back, due, money, refundable
from tests.providers.provider import report


@pytest.mark.parametrize("kind", ["order.refunded", "payment.refunded"])
def test_what_a_failed_refund_was_of_can_be_refunded_again(shop: Shop, kind: str) -> None:
    payment = refundable(shop, kind)

    def refund(**entry: Any) -> PaymentResult:
        return shop.service.refund(shop.client, payment.id, **entry)

    def fail(reference: str, amount: int | None = None) -> PaymentResult:
        return report(shop, payment, "failed", reference, amount_minor=amount)

    first = refund(reference="re-1", amount_minor=100).payment
    assert refund(reference="re-2").payment.status == "refunded"
    failed = fail("re-2")
    assert failed == (first, False), "as it was before"
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
    before = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    for replayed in (False, True):
        assert report(shop, payment, "failed", "re-1") == (payment, replayed)
    for amount in (None, 100):
        assert report(shop, payment, "refund", "re-1", amount_minor=amount) == (payment, True)
        with pytest.raises(ReferenceReused):
            shop.service.refund(shop.client, payment.id, "re-1", amount)
    after = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    assert after == before
    with pytest.raises(ReferenceReused):
        report(shop, other, "failed", "re-1")
    with pytest.raises(WrongCurrency):
        report(shop, other, "failed", "re-2", currency="USD")


def test_a_dispute_is_kept_as_an_event_and_changes_no_money(shop: Shop) -> None:
    shop.stock()
    payment = shop.pay(shop.place(), "tx").payment
    kinds = ("opened", "opened", "lost")
    for kind, replayed in zip(kinds, (False, True, False), strict=True):
        assert report(shop, payment, kind, "dp-1", amount_minor=200) == (payment, replayed)
    [_, _, *events] = shop.service.events(shop.client, payment.order_id, after_id=0, page_size=9)
    facts = {**money(payment), "dispute_reference": "dp-1", "dispute_amount_minor": 200}
    assert [(event.type, event.data) for event in events] == [
        ("payment.disputed", {**facts, "dispute": kind}) for kind in ("opened", "lost")
    ]
    with pytest.raises(WrongCurrency):
        report(shop, payment, "won", "dp-1", amount_minor=200, currency="USD")
    with pytest.raises(RefundTooLarge):
        report(shop, payment, "won", "dp-1", amount_minor=251)
    refunded = shop.service.refund(shop.client, payment.id, "dp-1", 200)
    assert refunded.payment.refunded_minor == 200, "whose money is gone is reported as refunded"


@pytest.mark.parametrize("kinds", [("refund", "refund"), ("opened", "won")])
def test_one_reference_is_for_one_of_two_payments(shop: Shop, kinds: tuple[str, str]) -> None:
    shop.stock()
    payments = [shop.pay(shop.place()).payment for _ in range(2)]

    def enter(side: int) -> bool:
        try:
            report(shop, payments[side], kinds[side], "re-1", amount_minor=1)
        except ReferenceReused:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        with shop.engine.begin() as connection:
            connection.execute(sa.select(orders).with_for_update())
            running = [pool.submit(enter, side) for side in (0, 1)]
            wait_until(lambda: blocked(shop, len(running)), "both to have begun")
        assert sorted(each.result() for each in running) == [False, True]


def test_refunds_that_fail_at_once_leave_none(shop: Shop) -> None:
    shop.stock()
    payment = shop.pay(shop.place()).payment
    for name in "ab":
        shop.service.refund(shop.client, payment.id, name, 100)
    with ThreadPoolExecutor(3) as pool:
        with shop.engine.begin() as connection:
            connection.execute(sa.select(orders).with_for_update())
            running = [pool.submit(report, shop, payment, "failed", name) for name in "abc"]
            wait_until(lambda: blocked(shop, len(running)), "all to have begun")
        for failing in running:
            failing.result()
    assert shop.service.payment(shop.client, payment.id) == payment, "none stands"


def test_a_refund_that_fails_while_it_is_recorded_leaves_nothing_refunded(shop: Shop) -> None:
    shop.stock()
    payment = shop.pay(shop.place()).payment
    fail = partial(report, shop, payment, "failed", "re")
    with waiting(shop, fail) as (other, found):
        shop.inside(other).refund(shop.client, payment.id, "re")
    assert found[0] == PaymentResult(payment, replayed=False)
