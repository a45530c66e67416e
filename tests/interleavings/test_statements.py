"""Each two of the orders' operations on one order, stepped at their locks, in every order.

However they meet, what comes of it is what would have come of one after the other.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.errors import OrderError
from orders.freezes.domain import Scope
from orders.freezes.service import Freezes
from orders.order.extensions import Extensions
from orders.sql.database import autocommit
from orders.sql.tables import order_events, payments, stock_items, unpaid_orders
from tests.conftest import Shop
from tests.expiring import expire_now
from tests.length import quick_first


class Scene:
    """An overdue order for one of a SKU's two pieces."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.sku = uuid4().hex
        shop.stock(self.sku, on_hand=2)
        self.order = shop.basket({self.sku: 1})
        shop.expire_in(-1, self.order)
        #: Set when the order was skipped, because it is locked.
        self.skipped = threading.Event()

    def pay(self) -> str:
        paid = self.shop.pay(self.order, reference=f"first of {self.sku}")
        return f"{paid.payment.status} {paid.payment.reason}"

    def pay_again(self) -> str:
        return str(self.shop.pay(self.order, reference=f"second of {self.sku}").payment.status)

    def pay_too_little(self) -> str:
        return str(self.shop.pay(self.order, amount_minor=1).payment.reason)

    def cancel(self) -> str:
        return str(self.shop.service.cancel(self.shop.client, self.order.id).status)

    def expire(self) -> None:
        """Like the worker, which looks again at an order that was locked."""
        until = time.monotonic() + 60
        while any(ms <= 0 for ms in expire_now(self.shop.service, [self.order.id]).values()):
            self.skipped.set()
            assert time.monotonic() < until

    def extend(self) -> str:
        later = datetime.now(UTC) + timedelta(minutes=5)
        changes: Any = {"expires_at": later, "versions": None}
        return str(self.shop.service.extend(self.shop.client, self.order.id, **changes).version)

    def describe(self) -> str:
        changes = {"client_reference": "new"}
        args: Any = (self.shop.client, self.order.id, changes)
        return str(self.shop.service.describe(*args, versions=None).client_reference)

    def place_two(self) -> str:
        return str(self.shop.basket({self.sku: 2}).status)

    def place_one(self) -> str:
        return str(self.shop.basket({self.sku: 1}).status)

    def replace(self) -> str:
        new = self.shop.new(quantities={self.sku: 2}, replaces=self.order.id)
        return str(self.shop.service.place(new).order.status)

    def freeze(self) -> None:
        """Freeze, thaw and give back: the deadline moves."""
        freezes, scope = Freezes(self.shop.engine), Scope(sku=self.sku)
        opened = freezes.open(
            scope, reason="a test", by="a test", seconds=60, give_back_seconds=60
        ).freeze
        freeze_id = freezes.thaw(opened.id, by="a test").id
        extensions = Extensions(self.shop.engine, self.shop.scheduler)
        until = time.monotonic() + 60
        with autocommit(self.shop.engine) as connection:
            while (batch := extensions.give_back(connection, freeze_id)) and not batch.done:
                self.skipped.set()
                assert time.monotonic() < until

    def outcome(self) -> tuple[Any, ...]:
        """What became of the order, its money and its stock."""
        order = self.shop.service.order(self.shop.client, self.order.id)
        with self.shop.engine.begin() as connection:
            stock = connection.execute(
                sa.select(stock_items.c.on_hand, stock_items.c.reserved).filter_by(sku=self.sku)
            ).one()
            paid = connection.execute(
                sa.select(payments.c.reference, payments.c.status, payments.c.reason)
                .filter_by(order_id=self.order.id)
                .order_by(payments.c.reference)
            )
            at = connection.scalars(
                sa.select(order_events.c.at)
                .filter_by(order_id=self.order.id)
                .order_by(order_events.c.id)
            ).all()
            kept = [(row.status, row.reason) for row in paid]
        assert [*at] == sorted(at), "the events of an order run backwards in time"
        events = (*self.shop.events(self.order),)
        return order.status, order.version, order.client_reference, *stock, *kept, events


Operation = Callable[[Scene], Any]
OPERATIONS: dict[str, Operation] = {
    each.__name__: each
    for each in (
        *(Scene.pay, Scene.expire, Scene.cancel, Scene.extend, Scene.place_two),
        *(Scene.replace, Scene.freeze),
        *(Scene.pay_again, Scene.pay_too_little, Scene.describe, Scene.place_one),
    )
}
#: What another session has locked when both come.
GATES = {
    "the unpaid row": lambda scene: sa.select(unpaid_orders).filter_by(order_id=scene.order.id),
    "the stock": lambda scene: sa.select(stock_items).filter_by(sku=scene.sku),
}


def run(scene: Scene, name: str) -> str:
    try:
        return str(OPERATIONS[name](scene))
    except OrderError as error:
        return type(error).__name__


@contextmanager
def locked(scene: Scene, gate: str) -> Iterator[None]:
    with scene.shop.engine.connect() as connection, connection.begin():
        connection.execute(GATES[gate](scene).with_for_update())
        yield


def waiting(scene: Scene) -> int:
    """How many sessions wait for a lock."""
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with scene.shop.engine.connect() as connection:
        return int(connection.scalar(count) or 0)


def met(shop: Shop, first: str, second: str, gate: str) -> tuple[Any, ...]:
    """Both begin while the gate is closed, one after the other, and go on when it opens."""
    scene = Scene(shop)

    def is_stuck(running: Future[str], before: int) -> bool:
        return running.done() or scene.skipped.is_set() or waiting(scene) > before

    with ThreadPoolExecutor(2) as pool:
        with locked(scene, gate):
            one = pool.submit(run, scene, first)
            wait_until(lambda: is_stuck(one, 0), f"{first} to wait")
            before = waiting(scene)
            scene.skipped.clear()
            two = pool.submit(run, scene, second)
            wait_until(lambda: is_stuck(two, before), f"{second} to wait")
        results = one.result(60), two.result(60)
    return (*results, scene.outcome())


def in_turn(shop: Shop, first: str, second: str) -> tuple[Any, ...]:
    scene = Scene(shop)
    results = run(scene, first), run(scene, second)
    return (*results, scene.outcome())


PAIRS = [*product(OPERATIONS, repeat=2)]


@pytest.mark.parametrize("gate", quick_first(GATES))
def test_two_operations_do_what_they_would_in_turn(shop: Shop, gate: str) -> None:
    in_turn_once = cache(lambda first, second: in_turn(shop, first, second))
    for first, second in PAIRS:
        one, other, outcome = in_turn_once(second, first)
        expected = [in_turn_once(first, second), (other, one, outcome)]
        assert met(shop, first, second, gate) in expected, f"{first}, {second}"
