"""Connections: what the service's do differently, and what nobody else notices of that."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from devtools.postgres import Postgres
from devtools.processes import wait_until
from orders.clients.domain import parted
from orders.clients.service import SQL, Clients
from orders.db.base import metadata
from orders.db.database import LightCursor, plain_engine, reading
from orders.db.errors import waited_for
from orders.db.files import Statement
from orders.db.migrate import migrate
from orders.db.schema import check_ready, schema_version
from orders.db.tables import stock_items
from orders.errors import StorageUnavailable, StorageUnfit
from tests.kit.databases import connected, empty_database
from tests.kit.features import findings
from tests.kit.shop import Shop, opened


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


#: What a database may prefer, at the worst.
PREFERRED = {
    "datestyle": "German",
    "timezone": "Asia/Tokyo",
    "client_encoding": "LATIN1",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "intervalstyle": "iso_8601",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "default_transaction_isolation": "serializable",
    "synchronous_commit": "off",
    "lock_timeout": "1",
}


def test_all_is_alike_whatever_the_database_prefers(database_url: str) -> None:
    """Schema, results, isolation, and what a commit means."""
    name = sa.make_url(database_url).database
    with connected(database_url) as connection:
        for setting, value in PREFERRED.items():
            connection.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())
    done = CliRunner(env={"DATABASE_URL": database_url}).invoke(migrate)
    assert done.exit_code == 0, done.output
    with opened(database_url) as shop:
        check_ready(shop.engine)
        shop.stock()
        reference = "\u738b\u5c0f\u660e\\'"
        placed = shop.service.place(shop.new(client_reference=reference)).order
        assert shop.service.order(shop.client, placed.id).client_reference == reference
        assert placed.expires_at - placed.created_at == timedelta(seconds=1800)
        assert {each.level for each in findings(shop.engine).values()} <= {"ok"}
        with reading(shop.engine) as connection:
            assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
            assert connection.scalar(sa.text("SHOW synchronous_commit")) == "on"


def test_a_session_that_cannot_read_a_time_is_not_ready(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler, where the database's own settings hold."""
    monkeypatch.setenv("PGDATESTYLE", "German")
    with opened(migrated_url, database_pooler=True) as shop:
        with pytest.raises(StorageUnfit, match="It cannot be read"):
            check_ready(shop.engine)
        found = findings(shop.engine, session={"datestyle": "ISO"})
        wrong = {each.check for each in found.values() if each.level != "ok"}
        assert wrong == found.keys() & {"sql.settings", "sql.fit"}


def test_times_are_in_utc_behind_a_pooler_too(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    with opened(migrated_url, database_pooler=True) as shop:
        shop.stock()
        assert shop.place().expires_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("said", ["in the URL", "in the environment", "by a service"])
def test_libpqs_parameters_hold_for_migrations_and_service_alike(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
) -> None:
    with connected(database_url) as connection:
        connection.execute("CREATE SCHEMA one; CREATE SCHEMA two")
    for name in ("one", "two"):
        if said == "in the URL":
            path = f"later_{name},{name}"
            url = f"{database_url}?options=-csearch_path%3D{path}&application_name=shop"
        elif said == "by a service":
            url = database_url if name == "one" else f"{database_url}?"
            (tmp_path / "services").write_text(
                f"[{name}]\noptions=-c search_path={name}\napplication_name=shop\n"
            )
            monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
            monkeypatch.setenv("PGSERVICE", name)
        else:
            url = database_url if name == "one" else f"{database_url}?"
            monkeypatch.setenv("PGOPTIONS", f"-c search_path={name}")
            monkeypatch.setenv("PGAPPNAME", "shop")
        done = CliRunner(env={"DATABASE_URL": url}).invoke(migrate)
        assert done.exit_code == 0, done.output
        with connected(database_url) as connection:  # which may go before the one with the tables
            connection.execute(f"CREATE SCHEMA later_{name}".encode())
        with opened(url) as shop:
            shop.stock()
            shop.place()
            assert len(shop.statuses()) == 1
            check_ready(shop.engine)
            assert {each.level for each in findings(shop.engine).values()} <= {"ok"}
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
                f"CREATE TABLE alembic_version AS SELECT '{schema_version()}'::text AS version_num".encode()
            )
        with opened(url) as shop:
            with pytest.raises(StorageUnfit, match=refusal):
                check_ready(shop.engine)
            if found := findings(shop.engine):
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
