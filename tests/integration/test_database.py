"""Connections: what the service's do differently, and what nobody else notices of that."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from devtools.postgres import Postgres
from devtools.processes import wait_until
from orders.clients.domain import parted
from orders.clients.service import SQL, Clients
from orders.errors import StorageUnavailable, StorageUnfit
from orders.sql.database import LightCursor, plain_engine, reading
from orders.sql.errors import waited_for
from orders.sql.files import Statement
from orders.sql.migrate import migrate
from orders.sql.tables import SCHEMA_VERSION, metadata, stock_items
from orders.watch.doctor import Doctor
from tests.conftest import Shop, connected, empty_database, opened


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


@pytest.mark.parametrize(
    "setting",
    [
        "datestyle TO 'German'",
        "timezone TO 'Asia/Tokyo'",
        "client_encoding TO 'LATIN1'",
        "extra_float_digits TO -15",
    ],
)
def test_results_are_read_alike_whatever_the_database_prefers(
    migrated_url: str, setting: str
) -> None:
    with connected(migrated_url) as connection:
        change = f"ALTER DATABASE %I SET {setting}".replace("'", "''")
        connection.execute(
            f"DO $$ BEGIN EXECUTE format('{change}', current_database()); END $$".encode()
        )
    with opened(migrated_url) as shop:
        shop.service.check_ready()
        shop.stock()
        reference = "\u738b\u5c0f\u660e"
        placed = shop.service.place(shop.new(client_reference=reference)).order
        assert shop.service.order(shop.client, placed.id).client_reference == reference
        assert placed.expires_at - placed.created_at == timedelta(seconds=1800)
        assert {each.level for each in Doctor(shop.engine).examine()} == {"ok"}


def test_a_session_that_cannot_read_a_time_is_not_ready(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler, where the database's own settings hold."""
    monkeypatch.setenv("PGDATESTYLE", "German")
    with opened(migrated_url, database_pooler=True) as shop:
        with pytest.raises(StorageUnfit, match="It cannot be read"):
            shop.service.check_ready()
        found = Doctor(shop.engine, session={"datestyle": "ISO"}).examine()
        assert {each.check for each in found if each.level != "ok"} == {"sql.settings", "sql.fit"}


@pytest.mark.parametrize("said", ["in the URL", "in the environment"])
def test_libpqs_parameters_hold_for_migrations_and_service_alike(
    database_url: str, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    with connected(database_url) as connection:
        connection.execute("CREATE SCHEMA one; CREATE SCHEMA two")
    for name in ("one", "two"):
        if said == "in the URL":
            url = f"{database_url}?options=-csearch_path%3D{name}&application_name=shop"
        else:
            url = database_url if name == "one" else f"{database_url}?"
            monkeypatch.setenv("PGOPTIONS", f"-c search_path={name}")
            monkeypatch.setenv("PGAPPNAME", "shop")
        done = CliRunner(env={"DATABASE_URL": url}).invoke(migrate)
        assert done.exit_code == 0, done.output
        with opened(url) as shop:
            shop.stock()
            shop.place()
            assert len(shop.statuses()) == 1
            shop.service.check_ready()
            assert {each.level for each in Doctor(shop.engine).examine()} == {"ok"}
            with reading(shop.engine) as other:
                assert other.scalar(sa.text("SHOW application_name")) == "shop"
                assert other.scalar(sa.text("SHOW timezone")) == "UTC"
    with connected(database_url) as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'orders'")
        assert {name for (name,) in found} == {"one", "two"}


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_any_text_is_refused(postgres: Postgres, encoding: str) -> None:
    options = f"ENCODING '{encoding}' TEMPLATE template0"
    refusal = f"Its encoding is {encoding}: create one with ENCODING 'UTF8'"
    with empty_database(postgres, options) as url:
        done = CliRunner(env={"DATABASE_URL": url}).invoke(migrate)
        assert (done.exit_code, done.output.count("\n")) == (1, 1)
        assert refusal in done.output
        engine = plain_engine(url)
        metadata.create_all(engine)
        with connected(url) as connection:
            connection.execute(
                f"CREATE TABLE alembic_version AS SELECT '{SCHEMA_VERSION}'::text AS version_num".encode()
            )
        with opened(url) as shop:
            with pytest.raises(StorageUnfit, match=refusal):
                shop.service.check_ready()
            found = {each.check: each for each in Doctor(shop.engine).examine()}
            assert refusal in found["sql.fit"].advice


def test_a_locked_table_is_named_in_any_language() -> None:
    german = "beim Sperren von Tupel (0,1) in Relation »orders«"
    diag = SimpleNamespace(context=german)
    original: Any = SimpleNamespace(sqlstate="55P03", diag=diag)
    error = sa.exc.OperationalError("", {}, original)
    assert waited_for(error, "orders")
    assert not waited_for(error, "order")
    diag.context = german.replace("orders", "unpaid_orders")
    assert not waited_for(error, "orders")


def test_the_isolation_is_the_services_own_not_the_databases(migrated_url: str) -> None:
    with connected(migrated_url) as connection:
        connection.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = "
            "serializable', current_database()); END $$"
        )
    with opened(migrated_url) as shop, reading(shop.engine) as connection:
        assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
