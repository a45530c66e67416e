"""What is reserved of a SKU can be put right while it is sold."""

import random

import pytest
import sqlalchemy as sa

from orders.errors import OutOfStock, SkuNotFound, StockReserved
from orders.sql.tables import stock_items, stock_repairs
from orders.stock.domain import Repair
from tests.conftest import Shop
from tests.integration.test_orders_statements import waiting
from tests.races import together


def shift(shop: Shop, reserved: int) -> None:
    with shop.engine.begin() as connection:
        connection.execute(
            sa.update(stock_items).values(reserved=stock_items.c.reserved + reserved)
        )


def repairs(shop: Shop) -> list[tuple[int, int, int]]:
    columns = stock_repairs.c["number", "reserved_before", "reserved"]
    with shop.engine.begin() as connection:
        found = connection.execute(sa.select(*columns).order_by(*columns))
        return [tuple(row) for row in found]


def test_what_is_reserved_becomes_what_unpaid_orders_hold(shop: Shop) -> None:
    shop.stock("cup")
    shop.place(tea=3, cup=1)
    shop.pay(shop.place(tea=5))
    assert shop.stock_service.repair("tea") == Repair(3, 3)
    for wrong in (4, -1):
        shift(shop, wrong)
        assert shop.stock_service.repair("tea") == Repair(3 + wrong, 3)
        assert shop.stock_service.repair("cup") == Repair(1 + wrong, 1)
        shop.check(tea=100, cup=100)
    assert repairs(shop) == [(1, 5, 1), (1, 7, 3), (2, 0, 1), (2, 2, 3)]


def test_a_repair_adds_to_what_it_waited_for(shop: Shop) -> None:
    """Orders of that moment are neither in what it saw reserved nor in what it saw held."""
    shop.place(tea=3)
    shift(shop, 10)
    with waiting(shop, lambda: shop.stock_service.repair("tea")) as (other, found):
        other.execute(sa.update(stock_items).values(reserved=stock_items.c.reserved + 2))
    assert found[0] == Repair(15, 5)
    with waiting(shop, lambda: shop.stock_service.repair("tea")) as (other, found):
        other.execute(
            sa.insert(stock_repairs).values(
                sku="tea", number=2, reserved_before=5, reserved=3, at=sa.func.now()
            )
        )
        other.execute(sa.update(stock_items).values(reserved=3))
    assert found[0] == Repair(3, 3), "another one had done it"
    shop.check(tea=100)


def test_repairs_while_orders_come_and_go_conserve_stock(shop: Shop) -> None:
    shop.stock("tea", 50)
    shift(shop, 7)

    def sell(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            try:
                order = shop.place(tea=rng.randint(1, 3))
            except OutOfStock:
                continue
            shop.service.cancel(shop.client, order.id)

    def repair() -> list[Repair]:
        return [shop.stock_service.repair("tea") for _ in range(20)]

    together(lambda: sell(1), lambda: sell(2), repair, repair)
    assert len(repairs(shop)) == 1
    shop.check(tea=50)


def test_more_than_is_on_hand_is_not_reserved(shop: Shop) -> None:
    shop.stock("tea", 5)
    shop.place(tea=3)
    with shop.engine.begin() as connection:
        connection.execute(sa.update(stock_items).values(on_hand=2, reserved=2))
    with pytest.raises(StockReserved, match="They hold 3 of 2"):
        shop.stock_service.repair("tea")
    with pytest.raises(SkuNotFound):
        shop.stock_service.repair("no")
    assert (repairs(shop), shop.shelf()) == ([], (2, 2))
