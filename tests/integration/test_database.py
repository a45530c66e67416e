"""Connections: what the service's do differently, and what nobody else notices of that."""

import pytest
import sqlalchemy as sa

from orders.sql.database import LightCursor, reading
from orders.sql.tables import stock_items
from tests.conftest import Shop

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@on_postgresql
def test_a_transaction_is_one_on_a_connection_that_the_service_used(shop: Shop) -> None:
    """The service commits each statement by itself; its pool's connections go on to others."""
    shop.stock()
    before = shop.shelf()
    with shop.engine.connect() as connection:
        connection.execute(sa.update(stock_items).values(on_hand=stock_items.c.on_hand + 1))
        connection.rollback()
    assert shop.shelf() == before


@on_postgresql
@pytest.mark.parametrize("query", ["SELECT 1 AS one, 'a' AS text", "SELECT", "SET jit = off"])
def test_columns_are_described_by_the_names_and_types_that_the_driver_says(
    shop: Shop, query: str
) -> None:
    with reading(shop.engine) as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        light = LightCursor(driver).execute(query.encode())
        described = [(column[0], column[1]) for column in light.description or ()]
        plainly = super(LightCursor, light).description or ()
        assert described == [(column.name, column.type_code) for column in plainly]
