"""Connections: what the service's do differently, and what nobody else notices of that."""

import pytest
import sqlalchemy as sa

from devtools.processes import wait_until
from orders.clients.domain import parted
from orders.clients.service import SQL, Clients
from orders.errors import StorageUnavailable
from orders.sql.database import LightCursor, reading
from orders.sql.files import Statement
from orders.sql.tables import stock_items
from tests.conftest import Shop, connected, opened


def test_a_connection_of_the_service_can_roll_back(shop: Shop) -> None:
    """The service commits each statement by itself; its pool's connections go on to others."""
    before = shop.shelf()
    with shop.engine.connect() as connection:
        connection.execute(sa.update(stock_items).values(on_hand=stock_items.c.on_hand + 1))
        connection.rollback()
    assert shop.shelf() == before


def refuse(shop: Shop, table: str) -> None:
    """Have every insert into a table fail."""
    function = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
    with shop.engine.begin() as connection:
        connection.execute(sa.text(f"{function} $$ BEGIN RAISE EXCEPTION 'no'; END $$"))
        event = f"BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
        connection.execute(sa.text(f"CREATE TRIGGER refuse {event}"))


def test_a_second_statement_that_fails_undoes_the_first(shop: Shop) -> None:
    refuse(shop, "api_keys")
    before = shop.tables()
    with pytest.raises(sa.exc.DBAPIError, match="no"):
        Clients(shop.engine).create_key("new", ["orders"])
    assert shop.tables() == before


def test_a_rotation_that_fails_leaves_the_old_key_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(shop.engine)
    key_id, _ = parted(clients.create_key("new", ["orders"]))
    before = shop.tables()
    failing = Statement("SELECT 1 / (:ms::int * 0), :id::uuid")
    monkeypatch.setitem(SQL.statements, "expire_key", failing)
    with pytest.raises(sa.exc.DBAPIError, match="division by zero"):
        clients.rotate(key_id)
    assert shop.tables() == before


def test_a_frozen_client_keeps_no_lock(migrated_url: str) -> None:
    with opened(migrated_url, statement_timeout_seconds=0.2, lock_timeout_seconds=0.2) as shop:
        shop.stock()
        frozen = shop.engine.connect()
        frozen.execute(sa.update(stock_items).values(price_minor=1))
        wait_until(lambda: placed(shop), "its lock to be gone", ignoring=StorageUnavailable)
        frozen.invalidate()
        frozen.close()


def placed(shop: Shop) -> bool:
    return shop.place().total_minor == 250


@pytest.mark.parametrize("query", ["SELECT 1 AS one, 'a' AS text", "SELECT", "SET jit = off"])
def test_columns_have_the_drivers_names_and_types(shop: Shop, query: str) -> None:
    with reading(shop.engine) as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        light = LightCursor(driver).execute(query.encode())
        described = [(column[0], column[1]) for column in light.description or ()]
        plainly = super(LightCursor, light).description or ()
        assert described == [(column.name, column.type_code) for column in plainly]


def test_the_isolation_is_the_services_own_not_the_databases(migrated_url: str) -> None:
    with connected(migrated_url) as connection:
        connection.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = "
            "serializable', current_database()); END $$"
        )
    with opened(migrated_url) as shop, reading(shop.engine) as connection:
        assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
