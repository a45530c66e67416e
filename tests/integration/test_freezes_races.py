"""Freezing, thawing, paying, extending and expiring at the same time, in any order."""

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import combinations

import pytest

from orders.errors import AlreadyPaid, OrderCancelled
from orders.freezes.giving_back import GivingBack
from orders.freezes.service import Freezes
from orders.order.domain import Order, OrderStatus
from orders.sql.database import autocommit
from tests.conftest import RecordingScheduler, Shop
from tests.expiring import expire_now
from tests.integration.test_orders_races import RACES, place_overdue
from tests.length import quick_first
from tests.races import together


class Race:
    """What meets over one order."""

    def __init__(self, shop: Shop) -> None:
        self._shop, [self._order] = shop, place_overdue(shop, [{"tea": 1}])
        self._freezes = Freezes(shop.engine)
        self._opened: list[str] = []
        self.actions: list[Callable[[], None]] = [
            *(self.freeze, self.thaw, self.pay, self.extend, self.expire, self.expire)
        ]

    def freeze(self) -> None:
        opened = self._freezes.open("customer", reason="r", by="b", seconds=60)
        self._opened.append(opened.freeze.id)

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
        giving_back = GivingBack(self._shop.scheduler, RecordingScheduler())
        with autocommit(self._shop.engine) as connection:
            while (batch := giving_back.batch(connection, freeze_id)) and not batch.done:
                pass

    def check(self) -> Order:
        """It has ended once at most; or it got all its time back, and nothing holds it any more."""
        self.thaw()
        assert self._freezes.holding() == []
        after = self._order_now()
        events = self._shop.events(self._order)
        ends = [each for each in events if each in ("order.paid", "order.cancelled")]
        assert ends == ([] if after.status is OrderStatus.UNPAID else [f"order.{after.status}"])
        assert events.count("order.extended") == after.version - len(ends) - 1
        if after.status is OrderStatus.UNPAID:
            due = [self._freezes.get(each).deadline for each in self._opened]
            assert after.expires_at >= max(due, default=after.expires_at)
            self._shop.service.cancel(self._shop.client, self._order.id)
        return after


def test_whatever_meets_a_freeze(shop: Shop) -> None:
    shop.stock(on_hand=10**6)
    rng = random.Random(28)
    for _ in range(RACES):
        race = Race(shop)
        some = rng.sample(race.actions, rng.randint(2, len(race.actions)))
        rng.shuffle(some)
        together(*some)
        race.check()
    shop.check(tea=10**6)


PAIRS = combinations(("freeze", "expire", "thaw", "pay", "extend"), 2)


@pytest.mark.parametrize(("one", "other"), quick_first(PAIRS))
def test_two_that_meet_while_a_freeze_opens_or_ends(shop: Shop, one: str, other: str) -> None:
    """Unless it opens just then, an earlier statement has opened it: nobody is cancelled."""
    shop.stock(on_hand=10**6)
    ends = set()
    for _ in range(RACES):
        race = Race(shop)
        if "freeze" not in (one, other):
            race.freeze()
        together(getattr(race, one), getattr(race, other))
        ends.add(race.check().status)
    shop.check(tea=10**6)
    if "freeze" not in (one, other):
        assert OrderStatus.CANCELLED not in ends


def test_no_expiry_that_begins_in_a_freeze_cancels(shop: Shop) -> None:
    shop.stock(on_hand=10**6)
    for _ in range(RACES):
        race = Race(shop)
        race.freeze()
        together(race.thaw, race.expire, race.expire, race.extend)
        assert race.check().status is OrderStatus.UNPAID
    shop.check(tea=10**6)
