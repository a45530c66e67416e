"""Who comes first is open; that only one does is not. Every thread's error fails its test."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.db.tables import stock_items, unpaid_orders
from orders.errors import RefundTooLarge, StorageUnavailable
from orders.order.domain import Order
from orders.order.rows import SQL
from orders.order.service import Placed
from tests.kit.expiring import expire_now
from tests.kit.length import rounds
from tests.kit.races import blocked, together
from tests.kit.shop import Shop, opened
from worker.records.outages import sqlstate


@pytest.fixture
def shop(migrated_url: str) -> Iterator[Shop]:
    """A shop that waits its turn for as long as it takes: a circle would be found in a second."""
    with opened(migrated_url, lock_timeout_seconds=60, statement_timeout_seconds=60) as made:
        yield made


def place_overdue(shop: Shop, baskets: list[dict[str, int]]) -> list[Order]:
    """Orders whose deadline is past already, in few transactions: each order locks a number until its commit."""
    placed: list[Order] = []
    while part := baskets[len(placed) :][:1000]:
        with shop.engine.begin() as connection:
            service = shop.inside(connection, timeout_seconds=-60)
            placed += [service.place(shop.new(quantities=basket)).order for basket in part]
    return placed


#: How often twins meet.
RACES = rounds(40, 300)


def test_twins_make_one_order_and_share_its_answer(shop: Shop) -> None:
    """The last of the stock is for them, so the loser finds it gone or its key taken."""
    for n in range(RACES):
        shop.stock(f"sku-{n}", 1)

    def place(n: int) -> Placed:
        return shop.service.place(shop.new(f"key-{n}", quantities={f"sku-{n}": 1}))

    barrier = threading.Barrier(2, timeout=60)

    def one() -> list[Placed]:
        return [place(n) for n in range(RACES) if barrier.wait() >= 0]

    for answers in zip(*together(one, one), strict=True):
        assert sorted(answer.replayed for answer in answers) == [False, True]
        assert answers[0].order == answers[1].order
    assert len(shop.tables()["orders"]) == RACES
    shop.check(**{f"sku-{n}": 1 for n in range(RACES)})


@pytest.mark.parametrize("late", [False, True], ids=["paid", "due back"])
def test_refunds_at_once_never_exceed_the_payment(shop: Shop, late: bool) -> None:  # noqa: FBT001
    """Of each three that claim 100 of 250, two are recorded; the same one twice is one."""
    shop.stock("tea", 100)
    placed = place_overdue(shop, [{"tea": 1}] * 20)
    payments = []
    for order in placed:
        if late:
            shop.service.cancel(shop.client, order.id)
        payments.append(shop.pay(order, f"tx {order.id}").payment)

    def refund(name: str) -> list[str]:
        answers = []
        for payment in payments:
            try:
                done = shop.service.refund(shop.client, payment.id, f"{name} {payment.id}", 100)
                answers.append("replayed" if done.replayed else "recorded")
            except RefundTooLarge:
                answers.append("refused")
        return answers

    a, twin, b, c = together(*[partial(refund, name) for name in ("a", "a", "b", "c")])
    for each in zip(a, twin, b, c, strict=True):
        new = [answer for answer in each if answer == "recorded"]
        assert (len(new), each.count("refused") in (1, 2)) == (2, True)
        assert each[0] != each[1] or each[:2] == ("refused", "refused")
    for payment in payments:
        after = shop.service.payment(shop.client, payment.id)
        assert (after.refunded_minor, after.status) == (200, payment.status)
        events = [each for each in shop.events(placed[0]) if each.endswith(".refunded")]
        assert events == 2 * ["payment.refunded" if late else "order.refunded"]
    with pytest.raises(RefundTooLarge):
        shop.service.refund(shop.client, payments[0].id, "d", 51)
    shop.check(tea=100)


def test_overlapping_batches_do_not_deadlock(shop: Shop) -> None:
    rng = random.Random(20_240_229)
    skus = [f"sku-{n}" for n in range(6)]
    for sku in skus:
        shop.stock(sku, 10_000)
    placed = place_overdue(
        shop,
        [
            {sku: rng.randint(1, 3) for sku in rng.sample(skus, rng.randint(1, 5))}
            for _ in range(600)
        ],
    )
    ids = [order.id for order in placed]

    def expire(*, backwards: bool, offset: int) -> None:
        batches = [ids[n : n + 10] for n in range(offset, len(ids), 5)]
        for batch in batches[::-1] if backwards else batches:
            expire_now(shop.service, batch[::-1] if backwards else batch)

    def pay(share: list[Order]) -> None:
        for order in share:
            shop.pay(order)

    shuffled = rng.sample(placed, len(placed))

    def place(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(40):
            shop.basket(dict.fromkeys(own.sample(skus, 5), 1))

    together(
        lambda: expire(backwards=False, offset=0),
        lambda: expire(backwards=True, offset=0),
        lambda: expire(backwards=False, offset=150),
        lambda: pay(shuffled[::3]),
        lambda: pay(shuffled[::-5]),
        lambda: place(1),
        lambda: place(2),
    )
    expire_now(shop.service, ids)
    counts = [str(order.status) for order in shop.service.orders(shop.client, page_size=1000)]
    assert counts.count("unpaid") == 80
    assert counts.count("paid") > 0
    assert counts.count("cancelled") > 0
    shop.check(**dict.fromkeys(skus, 10_000))


# -- one lock order ------------------------------------------------------------------------


@contextmanager
def holding(engine: sa.Engine, sku: str) -> Iterator[sa.Connection]:
    with engine.begin() as connection:
        connection.execute(sa.select(stock_items).filter_by(sku=sku).with_for_update())
        yield connection


def test_everybody_locks_stock_in_the_same_order(shop: Shop) -> None:
    shop.stock("a")
    shop.stock("B")
    paid, cancelled, expired = (shop.place(a=1, B=1) for _ in range(3))
    shop.expire_in(-1, expired)
    operations: dict[str, Callable[[], Any]] = {
        "place": lambda: shop.place(a=1, B=1),
        "pay": lambda: shop.pay(paid),
        "cancel": lambda: shop.service.cancel(shop.client, cancelled.id),
        "expire": lambda: expire_now(shop.service, [expired.id]),
    }
    taken: dict[str, bool] = {}
    for name, operation in operations.items():
        with ThreadPoolExecutor(1) as pool, holding(shop.engine, "B"):
            running = pool.submit(operation)
            wait_until(lambda: blocked(shop), f"{name} to wait for B")
            try:
                with shop.engine.begin() as connection:
                    free = sa.select(stock_items).filter_by(sku="a").with_for_update(nowait=True)
                    connection.execute(free)
                taken[name] = False
            except sa.exc.OperationalError:
                taken[name] = True
        running.result()
    # Whoever waits for B has not locked a yet: capitals come first, as in Python.
    assert taken == dict.fromkeys(operations, False)


def test_the_order_of_locks_is_the_same_in_every_locale() -> None:
    """Python sorts by code point; text in a database sorts as its locale does."""
    for statement in (SQL.pay, SQL.cancel, SQL.expire):
        assert 'ORDER BY sku COLLATE "C" ON CONFLICT' in " ".join(statement.text.split())
    assert 'ORDER BY stock_items.sku COLLATE "C" FOR' in " ".join(SQL.place.text.split())


# -- conflicts -----------------------------------------------------------------------------


@contextmanager
def conflicts(engine: sa.Engine) -> Iterator[list[str | None]]:
    """The SQLSTATE of every error meanwhile."""
    states: list[str | None] = []

    def note(context: sa.engine.ExceptionContext) -> None:
        states.append(sqlstate(context.sqlalchemy_exception))

    sa.event.listen(engine, "handle_error", note)
    yield states
    sa.event.remove(engine, "handle_error", note)


def test_a_transaction_that_a_deadlock_ended_is_run_again(shop: Shop) -> None:
    shop.stock("a")
    shop.stock("b")
    # PostgreSQL ends whoever has waited for a second first. That is the order, unless the machine
    # is so busy that the stranger asks too late.
    lost: list[str] = []
    while "order" not in lost:
        lost.append(deadlock(shop))
        assert len(lost) < 20
        assert (shop.shelf("a"), shop.shelf("b")) == ((100, len(lost)), (100, len(lost)))


def deadlock(shop: Shop) -> str:
    """Let a stranger lock an order's stock in the wrong order; return who was ended for it."""
    ended = "order"
    with conflicts(shop.engine) as states, ThreadPoolExecutor(1) as pool:
        try:
            with holding(shop.engine, "b") as stranger:
                placing = pool.submit(shop.place, a=1, b=1)
                wait_until(lambda: blocked(shop), "the order to wait for b")
                stranger.execute(sa.select(stock_items).filter_by(sku="a").with_for_update())
        except sa.exc.OperationalError:
            ended = "stranger"
        order = placing.result()
    # Run again, it may take a before the stranger, who was waiting for it, does: one more deadlock.
    assert {*states} == {"40P01"}
    assert shop.events(order) == ["order.created"]
    return ended


def test_a_transaction_that_could_not_be_serialized_is_run_again(shop: Shop) -> None:
    shop.stock()
    order = shop.place()
    strict(shop.engine)
    with conflicts(shop.engine) as states, ThreadPoolExecutor(1) as pool:
        with shop.engine.begin() as stranger:
            stranger.execute(sa.update(unpaid_orders).values(version=unpaid_orders.c.version + 1))
            cancelling = pool.submit(shop.service.cancel, shop.client, order.id)
            wait_until(lambda: blocked(shop), "the cancellation to wait")
        assert cancelling.result().version == 3
    assert states == ["40001"]
    shop.check(tea=100)


def test_a_conflict_that_goes_on_is_an_outage(shop: Shop) -> None:
    shop.stock()
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE SQLSTATE '40001'; END $$;"
            "CREATE TRIGGER lose BEFORE INSERT ON orders EXECUTE FUNCTION lose()"
        )
    with conflicts(shop.engine) as states, pytest.raises(StorageUnavailable):
        shop.place()
    assert states == ["40001"] * 4
    assert shop.shelf() == (100, 0)


def strict(engine: sa.Engine) -> None:
    """Make transactions of new connections repeatable reads, as the service's own setting would not."""
    engine.dispose()

    @sa.event.listens_for(engine, "connect")
    def set_isolation(connection: Any, _: object) -> None:
        connection.execute("SET default_transaction_isolation = 'repeatable read'")
        connection.commit()
