"""Each operation is one statement, and decides by what it has locked.

On PostgreSQL a statement sees what was committed when it began. A row that another transaction has
locked is waited for, and comes as that one left it: the conditions are compared again, and what is
computed from it is computed again. These tests hold the other transaction open for so long.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.db.tables import order_events, orders, stock_items, unpaid_orders
from orders.errors import AlreadyPaid, KeyReused, OutOfStock
from orders.http.schemas.orders import OrderOut
from orders.order.domain import Order
from orders.order.payments import PaymentResult
from orders.order.service import Placed
from tests.kit.expiring import expire_now
from tests.kit.races import blocked, waiting
from tests.kit.shop import Shop

OPERATIONS = ["place", "extend", "pay", "cancel", "expire"]


def operation(shop: Shop, name: str) -> Callable[[], object]:
    """Something that this operation can do, prepared."""
    order = shop.place()
    shop.expire_in(-1, order)
    return {
        "place": lambda: replay(shop, "new"),
        "extend": lambda: shop.service.extend(
            shop.client, order.id, expires_at=order.created_at + timedelta(hours=1), versions=None
        ),
        "pay": lambda: shop.pay(order),
        "cancel": lambda: shop.service.cancel(shop.client, order.id),
        "expire": lambda: expire_now(shop.service, [order.id]),
    }[name]


def replay(shop: Shop, key: str, **quantities: int) -> Placed:
    return shop.service.place(shop.new(key, quantities=quantities or {"tea": 1}))


# -- one statement -------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_one_statement_in_autocommit(shop: Shop, name: str) -> None:
    run = operation(shop, name)
    seen: list[tuple[bool, bool]] = []

    def note(connection: sa.Connection, cursor: Any, *_: Any) -> None:
        driver: Any = connection.connection.driver_connection
        seen.append((driver.autocommit, isinstance(cursor, psycopg.RawCursor)))

    sa.event.listen(shop.engine, "before_cursor_execute", note)
    run()
    assert seen == [(True, True)], "which the driver sends as it is, however long"


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_client_that_freezes_in_a_statement_holds_no_lock(shop: Shop, name: str) -> None:
    run = operation(shop, name)
    sent, thaw = threading.Event(), threading.Event()

    def freeze(connection: sa.Connection, *_: Any) -> None:
        driver: Any = connection.connection.driver_connection

        def wait(gen: Any, *_: Any) -> Any:
            del driver.wait
            next(gen)  # sends the statement, and would wait for its result
            sent.set()
            assert thaw.wait(60)
            driver.close()
            raise psycopg.OperationalError("thawed, and too late")

        driver.wait = wait

    with ThreadPoolExecutor(1) as pool:
        sa.event.listen(shop.engine, "before_cursor_execute", freeze, once=True)
        frozen = pool.submit(run)
        try:
            assert sent.wait(60)
            wait_until(lambda: ended(shop), "the statement to end without its client")
            with shop.engine.begin() as other:
                for table in (orders, unpaid_orders, stock_items):
                    other.execute(sa.select(table).with_for_update(nowait=True))
        finally:
            thaw.set()
        assert frozen.exception() is not None
    shop.check(tea=100)


def ended(shop: Shop) -> bool:
    """Whether there is an event more than the first order's."""
    with shop.engine.connect() as connection:
        count = connection.scalar(sa.select(sa.func.count()).select_from(order_events))
    return bool(count != 1)


# -- decided by what is locked -------------------------------------------------------------


def test_an_order_has_the_stock_and_price_it_waited_for(shop: Shop) -> None:
    shop.stock("tea", 100, 250)
    with waiting(shop, lambda: shop.place(tea=10)) as (other, found):
        other.execute(sa.update(stock_items).values(reserved=90, price_minor=300))
    assert found[0].total_minor == 3000
    assert found[0].created_at >= found[1], "its time was to begin with its stock"
    with waiting(shop, lambda: shop.place(tea=1)) as (other, found):
        other.execute(sa.update(stock_items).values(on_hand=101, reserved=101))
    assert isinstance(found[0], OutOfStock)
    assert found[0].facts == {"sku": "tea", "available": 0}


def test_a_twin_that_finds_no_stock_replays_the_order(shop: Shop) -> None:
    shop.stock("tea", 1)
    with waiting(shop, lambda: replay(shop, "one")) as (other, found):
        order = shop.inside(other).place(shop.new("one")).order
    assert found[0] == Placed(order, replayed=True)
    assert shop.shelf() == (1, 1)


def test_a_replay_waits_for_no_stock(shop: Shop) -> None:
    placed = replay(shop, "one")
    with shop.engine.begin() as other:
        other.execute(sa.select(stock_items).with_for_update())
        assert replay(shop, "one") == Placed(placed.order, replayed=True)


def test_a_payment_that_waited_for_a_cancellation_is_due_back(shop: Shop) -> None:
    order = shop.place()
    with waiting(shop, lambda: shop.pay(order)) as (other, found):
        assert shop.inside(other).cancel(shop.client, order.id)
    assert found[0].payment.reason == "order_cancelled"
    assert shop.events(order) == ["order.created", "order.cancelled", "payment.refund_due"]
    assert shop.shelf() == (100, 0)


def pay(connection: sa.Connection, shop: Shop, order: Order, reference: str) -> Any:
    return (
        shop.inside(connection)
        .pay(
            shop.client,
            order.id,
            provider="bank",
            reference=reference,
            amount_minor=order.total_minor,
            currency=order.currency,
        )
        .payment
    )


def test_what_waited_for_a_payment_finds_the_order_paid(shop: Shop) -> None:
    order = shop.place()
    with waiting(shop, lambda: shop.pay(order, "r-2")) as (other, found):
        pay(other, shop, order, "r-1")
    assert (found[0].payment.reason, found[0].replayed) == ("already_paid", False)

    good = shop.place()
    with waiting(shop, lambda: shop.pay(good, "r-5")) as (other, found):
        pay(other, shop, replace(good, total_minor=1), "too little")
    assert found[0].payment.status == "applied"
    assert found[0].payment.created_at >= found[1], "it is dated when the order is locked"

    same = shop.place()
    with waiting(shop, lambda: shop.pay(same, "r-3")) as (other, found):
        payment = pay(other, shop, same, "r-3")
    assert found[0] == PaymentResult(payment, replayed=True)

    kept = shop.place()
    with waiting(shop, lambda: shop.service.cancel(shop.client, kept.id)) as (other, found):
        pay(other, shop, kept, "r-4")
    assert isinstance(found[0], AlreadyPaid)
    assert shop.shelf() == (96, 0)


def test_who_waited_for_an_ending_does_not_end_it_again(shop: Shop) -> None:
    """A second DELETE finds no row once it has the lock, and the next look sees the ending."""
    order = shop.place()
    with waiting(shop, lambda: shop.service.cancel(shop.client, order.id)) as (other, found):
        first = shop.inside(other).cancel(shop.client, order.id)
    assert found[0] == first
    assert shop.events(order) == ["order.created", "order.cancelled"]
    shop.check(tea=100)


def stopped(
    shop: Shop, first: Callable[[], Any], second: Callable[[], Any], *, waits: bool
) -> tuple[Any, Any]:
    """What comes of both, the second one sent when the first has its order and waits for stock."""
    with ThreadPoolExecutor(2) as pool:
        with shop.engine.begin() as stranger:
            stranger.execute(sa.select(stock_items).with_for_update())
            earlier = pool.submit(first)
            wait_until(lambda: blocked(shop), "the first to have its order")
            later = pool.submit(second)
            if waits:
                wait_until(lambda: blocked(shop, 2), "the second to wait")
            else:
                later.result(timeout=60)
        return earlier.result(), later.result()


def test_a_payment_between_a_batchs_lock_and_its_end_waits(shop: Shop) -> None:
    order = shop.place()
    shop.expire_in(-1, order)
    left, paid = stopped(
        shop, lambda: expire_now(shop.service, [order.id]), lambda: shop.pay(order), waits=True
    )
    assert (left, paid.payment.reason) == ({}, "order_cancelled")
    assert shop.events(order) == ["order.created", "order.cancelled", "payment.refund_due"]
    shop.check(tea=100)


def test_a_batch_skips_what_is_being_paid(shop: Shop) -> None:
    order = shop.place()
    shop.expire_in(-1, order)
    paid, left = stopped(
        shop, lambda: shop.pay(order), lambda: expire_now(shop.service, [order.id]), waits=False
    )
    assert (paid.payment.status, [*left]) == ("applied", [order.id])
    assert left[order.id] <= 0
    assert shop.events(order) == ["order.created", "order.paid"]
    shop.check(tea=100)


@pytest.mark.parametrize("end", ["paid", "cancelled"])
def test_late_events_of_one_order_are_in_commit_order(shop: Shop, end: str) -> None:
    """Each waits for the one before it to commit: readers of a page of events miss none."""
    order = shop.place()
    if end == "paid":
        shop.pay(order)
    else:
        shop.service.cancel(shop.client, order.id)
    with waiting(shop, lambda: shop.pay(order, "r-2")) as (other, found):
        first = pay(other, shop, order, "r-1")
    second = found[0].payment
    with waiting(shop, lambda: shop.pay(order, "r-3")) as (other, _):
        shop.inside(other).refund(shop.client, first.id, "re-1")
    refund = partial(shop.service.refund, shop.client, second.id, "re-2")
    with waiting(shop, refund) as (other, found):
        pay(other, shop, order, "r-4")
    told: list[Any] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)[2:]
    assert [(event.type, event.data["reference"]) for event in told] == [
        ("payment.refund_due", "r-1"),
        ("payment.refund_due", "r-2"),
        ("payment.refunded", "r-1"),
        ("payment.refund_due", "r-3"),
        ("payment.refund_due", "r-4"),
        ("payment.refunded", "r-2"),
    ]
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert told[-1].at >= found[1], "a refund too is dated when the order is locked"


@pytest.mark.parametrize("name", ["cancel", "expire"])
def test_an_ending_is_dated_when_its_order_is_locked(shop: Shop, name: str) -> None:
    """Not when its statement began: an order's events do not run backwards in time."""
    run = operation(shop, name)
    [order] = shop.service.orders(shop.client, page_size=9)
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;"
            "CREATE TRIGGER wait BEFORE DELETE ON unpaid_orders EXECUTE FUNCTION wait()"
        )
    with ThreadPoolExecutor(1) as pool:
        with shop.engine.begin() as other:
            other.execute(sa.text("SELECT pg_advisory_xact_lock(1)"))
            task = pool.submit(run)
            wait_until(lambda: blocked(shop), "the statement to wait before it locks anything")
            pay(other, shop, replace(order, total_minor=1), "too little")
        task.result()
    [_, due, last] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)
    assert (due.type, last.type) == ("payment.refund_due", "order.cancelled")
    assert last.at >= due.at


def test_a_twin_does_not_wait_for_the_order_that_is_paid(shop: Shop) -> None:
    """It has the stock that the payer waits for: a payment locks nothing that a key's index has."""
    for sku in ("a", "b", "c"):
        shop.stock(sku)
    lock = sa.select(stock_items).with_for_update()
    with ThreadPoolExecutor(2) as pool, shop.engine.begin() as payer:
        with shop.engine.begin() as stranger:
            stranger.execute(lock.filter_by(sku="b"))
            twin = pool.submit(replay, shop, "one", a=1, b=1)  # has a, and waits for b
            wait_until(lambda: blocked(shop), "the twin to wait")
            order = replay(shop, "one", c=1).order
            pay(payer, shop, order, "r-1")
            paying = pool.submit(payer.execute, lock.filter_by(sku="a"))
            wait_until(lambda: blocked(shop, 2), "the payer to wait")
        assert twin.result() == Placed(order, replayed=True), "before the payment is committed"
        paying.result()
    assert (shop.shelf("a"), shop.shelf("b"), shop.shelf("c")) == ((100, 0), (100, 0), (99, 0))


# -- what a replay and a reference rest on -------------------------------------------------


def test_a_replay_needs_no_event(shop: Shop) -> None:
    placed = replay(shop, "one")
    [created] = shop.service.events(shop.client, placed.order.id, after_id=0, page_size=9)
    assert OrderOut.model_validate(created.data) == OrderOut.model_validate(placed.order)
    shop.expire_in(-1, placed.order)
    assert expire_now(shop.service, [placed.order.id]) == {}
    [created, _] = shop.service.events(shop.client, placed.order.id, after_id=0, page_size=9)
    assert OrderOut.model_validate(created.data) == OrderOut.model_validate(placed.order)
    with shop.engine.begin() as connection:
        connection.execute(sa.delete(order_events))
    assert replay(shop, "one") == Placed(placed.order, replayed=True)


def test_another_versions_fingerprint_is_compared_by_items(shop: Shop) -> None:
    order = replay(shop, "one", tea=2).order
    same = shop.new("one", fingerprint="3:x", quantities={"tea": 2})
    again = shop.service.place(same)
    assert again == Placed(order, replayed=True)
    with pytest.raises(KeyReused):
        shop.service.place(replace(same, quantities={"tea": 1}))


def test_a_reference_belongs_to_one_customer(shop: Shop) -> None:
    theirs, mine = shop.place(shop.other), shop.place()
    payment: dict[str, Any] = {"provider": "bank", "reference": "pi_42", "currency": "EUR"}
    cent = shop.service.pay(shop.other, theirs.id, amount_minor=1, **payment)
    assert cent.payment.reason == "wrong_amount"
    paid = shop.service.pay(shop.client, mine.id, amount_minor=mine.total_minor, **payment)
    assert (paid.payment.status, paid.replayed) == ("applied", False)


def test_nobody_waits_for_another_customers_payment(shop: Shop) -> None:
    shop.stock("cup")
    theirs, mine = shop.place(shop.other, cup=1), shop.place()
    with shop.engine.begin() as other:
        row: Any = {
            "provider": "bank",
            "reference": "pi_42",
            "amount_minor": 250,
            "currency": "EUR",
        }
        assert shop.inside(other).pay(shop.other, theirs.id, **row)
        assert shop.pay(mine, "pi_42").payment.status == "applied"
