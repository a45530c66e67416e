"""Freezing, thawing, paying, extending and expiring at the same time, in any order."""

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

from orders.errors import AlreadyPaid, OrderCancelled
from orders.freezes.domain import Scope
from orders.freezes.service import Freezes
from orders.order.domain import Order, OrderStatus
from orders.order.extensions import Extensions
from orders.sql.database import autocommit
from tests.conftest import Shop
from tests.expiring import expire_now
from tests.integration.test_orders_races import RACES, place_overdue
from tests.races import together

SCOPE = Scope(sku="tea")


class Race:
    """What meets over one order."""

    def __init__(self, shop: Shop, order: Order) -> None:
        self._shop, self._order = shop, order
        self._freezes = Freezes(shop.engine)
        self.actions: list[Callable[[], None]] = [
            *(self.freeze, self.thaw, self.pay, self.extend, self.expire, self.expire)
        ]

    def freeze(self) -> None:
        self._freezes.open(SCOPE, reason="r", by="b", seconds=60)

    def thaw(self) -> None:
        for each in self._freezes.holding():
            self._freezes.thaw(each.id, by="b")
            self._give_back(each.id)

    def pay(self) -> None:
        assert self._shop.pay(self._order).payment.reason in (None, "order_cancelled")

    def extend(self) -> None:
        with suppress(AlreadyPaid, OrderCancelled):
            self._shop.service.extend(
                self._shop.client,
                self._order.id,
                expires_at=self._order.created_at + timedelta(hours=1),
                versions=None,
            )

    def expire(self) -> None:
        expire_now(self._shop.service, [self._order.id])

    def _order_now(self) -> Order:
        return self._shop.service.order(self._shop.client, self._order.id)

    def _give_back(self, freeze_id: str) -> None:
        extensions = Extensions(self._shop.engine, self._shop.scheduler)
        with autocommit(self._shop.engine) as connection:
            while (batch := extensions.give_back(connection, freeze_id)) and not batch.done:
                pass

    def check(self) -> None:
        """Whatever is left got all its time back, and nothing holds it any more."""
        self.thaw()
        assert self._freezes.holding() == []
        after = self._order_now()
        if after.status is OrderStatus.UNPAID:
            opened = self._freezes.page(page_size=100)
            due = [each.deadline for each in opened if each.opened_at >= self._order.created_at]
            events = self._shop.events(self._order)
            if due:
                assert after.expires_at >= max(due)
                assert events.count("order.extended") == after.version - 1
            self._shop.service.cancel(self._shop.client, self._order.id)


def test_whatever_meets_a_freeze(shop: Shop) -> None:
    shop.stock(on_hand=10**6)
    rng = random.Random(28)
    for order in (place_overdue(shop, [{"tea": 1}])[0] for _ in range(RACES)):
        race = Race(shop, order)
        some = rng.sample(race.actions, rng.randint(2, len(race.actions)))
        rng.shuffle(some)
        together(*some)
        race.check()
    shop.check(tea=10**6)


def test_no_expiry_that_begins_in_a_freeze_cancels(shop: Shop) -> None:
    shop.stock(on_hand=10**6)
    freezes = Freezes(shop.engine)
    for order in (place_overdue(shop, [{"tea": 1}])[0] for _ in range(RACES)):
        freeze = freezes.open(SCOPE, reason="r", by="b", seconds=60).freeze
        race = Race(shop, order)
        expire = partial(expire_now, shop.service, [order.id])
        together(race.thaw, expire, expire, race.extend)
        after = shop.service.order(shop.client, order.id)
        assert after.status is OrderStatus.UNPAID
        assert after.expires_at >= freezes.get(freeze.id).deadline
        shop.service.cancel(shop.client, order.id)
    shop.check(tea=10**6)
