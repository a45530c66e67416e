"""What a client may hold without paying: exact within a process, and no burden on others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.errors import OrderError, OutOfStock
from orders.features.limits import service as limits
from orders.features.limits.errors import TooManyHeldPieces, TooManyUnpaidOrders
from orders.features.limits.service import UnpaidLimits
from orders.hooks import Hooks
from orders.order.domain import Order, Timeouts
from orders.order.service import OrderService
from tests.kit.races import together
from tests.kit.shop import RecordingScheduler, Shop, opened


@contextmanager
def limited(url: str, max_orders: int = 0, max_pieces: int = 0) -> Iterator[Shop]:
    """A shop with limits, in which nobody is too busy for anybody."""
    with opened(url, lock_timeout_seconds=60, statement_timeout_seconds=60) as shop:
        yield another_process(shop, max_orders, max_pieces)


def another_process(shop: Shop, max_orders: int = 0, max_pieces: int = 0) -> Shop:
    """The same shop as another process serves it, with an account of its own."""
    return within(UnpaidLimits(shop.engine, max_orders, max_pieces), shop)


def within(limits: UnpaidLimits, shop: Shop) -> Shop:
    scheduler, timeouts, hooks = RecordingScheduler(), Timeouts(1800, 1, 86_400), Hooks()
    hooks.around_placing.append(limits.placing)
    service = OrderService(shop.engine, scheduler, timeouts, hooks)
    return replace(shop, service=service, scheduler=scheduler)


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count is used until there is no room left by it."""
    monkeypatch.setattr(limits, "COUNT_SECONDS", 3600)
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 60)


def test_orders_beyond_the_limit_wait_until_others_end(migrated_url: str) -> None:
    with limited(migrated_url, max_orders=3) as shop:
        shop.stock()
        first, second, _ = (shop.place() for _ in range(3))
        with pytest.raises(TooManyUnpaidOrders) as refused:
            shop.place()
        assert refused.value.facts == {"limit": 3}
        shop.place(shop.other)  # whose limit is their own
        shop.pay(first)
        shop.place()
        with pytest.raises(TooManyUnpaidOrders):
            shop.place()
        shop.service.cancel(shop.client, second.id)
        shop.place()
        with pytest.raises(TooManyUnpaidOrders):
            shop.place()
        shop.check(tea=100)


def test_pieces_beyond_the_limit_are_refused(migrated_url: str) -> None:
    with limited(migrated_url, max_pieces=10) as shop:
        shop.stock("tea")
        shop.stock("cup")
        order = shop.place(tea=3, cup=4)
        with pytest.raises(TooManyHeldPieces) as refused:
            shop.place(tea=4)
        assert refused.value.facts == {"limit": 10}
        shop.place(tea=2, cup=1)
        shop.service.cancel(shop.client, order.id)
        with pytest.raises(TooManyHeldPieces):
            shop.place(tea=8)
        shop.place(tea=7)


def test_what_was_not_placed_leaves_its_room(migrated_url: str) -> None:
    with limited(migrated_url, max_orders=2) as shop:
        shop.stock("tea", 100)
        shop.stock("gift", 100, 0)
        for _ in range(3):
            with pytest.raises(OutOfStock):
                shop.place(tea=101)
            shop.place(gift=1)  # free, and so paid at once
        order = shop.place(key="same")
        for _ in range(3):
            assert shop.place(key="same") == order
        shop.place()
        with pytest.raises(TooManyUnpaidOrders):
            shop.place()


@pytest.mark.parametrize(("max_orders", "counts"), [(0, 0), (50, 1)])
def test_a_client_is_counted_once_while_there_is_room(
    migrated_url: str, max_orders: int, counts: int
) -> None:
    with limited(migrated_url, max_orders) as shop:
        shop.stock()
        statements = seen(shop.engine)
        for _ in range(20):
            shop.place()
        assert sum("count(*) AS orders" in statement for statement in statements) == counts


def seen(engine: sa.Engine) -> list[str]:
    """Every statement from now on."""
    statements: list[str] = []

    def note(_connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    return statements


def placed_or_refused(shop: Shop, **quantities: int) -> Order | OrderError:
    try:
        return shop.basket(quantities or {"tea": 1})
    except (TooManyUnpaidOrders, TooManyHeldPieces, OutOfStock) as error:
        return error


@pytest.mark.parametrize("limits", [{"max_orders": 37}, {"max_pieces": 2 * 37 + 1}])
def test_many_threads_place_exactly_what_the_limit_allows(
    migrated_url: str, limits: dict[str, int]
) -> None:
    """Some of what they ask for is not in stock, and whoever is refused is refused rightly."""
    with limited(migrated_url, **limits) as shop:
        shop.stock("tea")
        shop.stock("cup", 5)
        for _ in range(10):
            shop.place(tea=2)
        fresh = another_process(shop, **limits)

        def buy(number: int) -> list[Order | OrderError]:
            sku = "cup" if number % 4 == 0 else "tea"
            return [placed_or_refused(fresh, **{sku: 2}) for _ in range(5)]

        answers = [
            answer
            for answers in together(*(lambda n=n: buy(n) for n in range(12)))
            for answer in answers
        ]
        assert sum(isinstance(answer, Order) for answer in answers) == 27
        unpaid = fresh.service.orders(shop.client, page_size=100, status="unpaid")
        assert len(unpaid) == 37
        shop.check(tea=100, cup=5)


def test_two_processes_exceed_a_limit_only_between_counts(migrated_url: str) -> None:
    with limited(migrated_url, max_orders=10) as shop:
        shop.stock()
        other = another_process(shop, max_orders=10)
        shop.place()
        other.place()  # each has counted now, and there is room for nine or eight more
        placed = [isinstance(placed_or_refused(each), Order) for each in [shop, other] * 12]
        assert 10 <= 2 + sum(placed) <= 10 + 9
        for each in (shop, other):
            with pytest.raises(TooManyUnpaidOrders):
                each.place()


def test_a_create_that_hangs_keeps_nobody_else_waiting(shop: Shop) -> None:
    held = UnpaidLimits(shop.engine, max_orders=10)
    shop = within(held, shop)
    shop.place()
    hanging, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=held.placing, args=(shop.new(), hang))
    thread.start()
    assert hanging.wait(60)
    try:
        for _ in range(8):
            shop.place()
        # The tenth place may be taken or not: that is told as soon as it is known.
        waiter: list[Order | OrderError] = []
        last = threading.Thread(target=lambda: waiter.append(placed_or_refused(shop)))
        last.start()
        changed = held._accounts[shop.client].changed
        wait_until(lambda: changed._waiters or waiter, "the last one to wait")  # type: ignore[attr-defined]
        assert waiter == []
    finally:
        go_on.set()
    thread.join()
    last.join()
    assert isinstance(waiter[0], Order)
    with pytest.raises(TooManyUnpaidOrders):
        shop.place()
