"""Attempts meet expiry, payment, cancellation and each other: who is told that they may pay is not cancelled."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import sqlalchemy as sa

from devtools.processes import wait_until
from orders.attempts.service import Attempts
from orders.errors import AlreadyPaid, OrderCancelled
from orders.order.domain import Order
from orders.sql.tables import payment_attempts, unpaid_orders
from tests.conftest import Shop
from tests.expiring import expire_now
from tests.integration.test_orders_races import RACES, place_overdue, shop
from tests.races import duels, together

__all__ = ["shop"]


def service(shop: Shop) -> Attempts:
    return Attempts(shop.engine, shop.scheduler, shop.scheduler, 1800)


def opens(shop: Shop, reference: str = "tx") -> Callable[[Order], bool]:
    attempts = service(shop)

    def open_(order: Order) -> bool:
        names = {"provider": "bank", "reference": f"{reference}-{order.id}"}
        try:
            attempts.open(shop.client, order.id, **names, seconds=900)
        except (AlreadyPaid, OrderCancelled):
            return False
        return True

    return open_


def expires(shop: Shop) -> Callable[[Order], bool]:
    return lambda order: not expire_now(shop.service, [order.id])


def overdue(shop: Shop) -> list[Order]:
    shop.stock("tea", on_hand=10 * RACES)
    return place_overdue(shop, [{"tea": 1}] * RACES)


def test_who_may_pay_is_not_cancelled_in_the_same_instant(shop: Shop) -> None:
    placed = overdue(shop)
    opened, expired = duels(opens(shop), expires(shop), placed, step_us=200)
    assert not {order.id for order in opened} & {order.id for order in expired}
    for order in opened:
        assert expire_now(shop.service, [order.id])
    for order in placed:
        expire_now(shop.service, [order.id])
    statuses = shop.statuses()
    assert {statuses[order.id] for order in opened} <= {"unpaid"}
    assert {statuses[order.id] for order in placed if order not in opened} <= {"cancelled"}
    shop.check(tea=10 * RACES)


def test_an_attempt_that_opens_while_another_fails_still_counts(shop: Shop) -> None:
    placed, attempts = overdue(shop), service(shop)
    for order in placed:
        opens(shop, "first")(order)

    def fails(order: Order) -> bool:
        names = {"provider": "bank", "reference": f"first-{order.id}"}
        return attempts.fail(shop.client, order.id, **names)

    duels(fails, opens(shop, "second"), placed, step_us=200)
    for order in placed:
        assert expire_now(shop.service, [order.id])


def test_a_failure_is_not_lost_to_the_attempt_that_opens(shop: Shop) -> None:
    shop.stock("tea", on_hand=1)
    [order] = place_overdue(shop, [{"tea": 1}])
    names = {"provider": "bank", "reference": "tx"}

    def waits() -> bool:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with shop.engine.connect() as connection:
            return bool(connection.scalar(sa.text(waiting)))

    with ThreadPoolExecutor(1) as pool:
        with shop.engine.begin() as connection:
            opening: Any = connection  # is committed once the other one waits for it
            attempts = Attempts(opening, shop.scheduler, shop.scheduler, 1800)
            attempts.open(shop.client, order.id, **names, seconds=900)
            failing = pool.submit(service(shop).fail, shop.client, order.id, **names)
            wait_until(lambda: failing.done() or waits(), "the failure to wait")
        assert failing.result(60)
    [attempt] = service(shop).of_order(order.id, page_size=9)
    assert attempt.outcome == "failed"


def test_all_that_can_end_an_order_meets_an_attempt_at_it(shop: Shop) -> None:
    placed = overdue(shop)[: max(10, RACES // 4)]

    def cancels(order: Order) -> bool:
        try:
            shop.service.cancel(shop.client, order.id)
        except AlreadyPaid:
            return False
        return True

    for order in placed:
        together(
            partial(opens(shop), order),
            partial(expires(shop), order),
            partial(shop.pay, order),
            partial(cancels, order),
        )
        assert len([each for each in shop.events(order) if each in ENDINGS]) == 1
    shop.check(tea=10 * RACES)
    of_ended = payment_attempts.c.order_id.not_in(sa.select(unpaid_orders.c.order_id))
    with shop.engine.connect() as connection:
        open_ = sa.select(payment_attempts.c.id).where(
            of_ended, payment_attempts.c.order_id.in_([order.id for order in placed])
        )
        ids = connection.execute(open_).scalars().all()
    with shop.engine.begin() as connection:
        service(shop).settle(connection, ids, ())
    assert service(shop).open_ones(ids) == []


ENDINGS = ("order.paid", "order.cancelled")
