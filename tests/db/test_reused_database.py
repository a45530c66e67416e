"""The database that tests share: each finds it empty, and as the migrations made it."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from orders.db.base import metadata
from tests.kit.databases import ReusedDatabase
from tests.kit.length import quick_first
from tests.kit.shop import opened


@pytest.fixture
def database(reused_database: ReusedDatabase) -> Iterator[ReusedDatabase]:
    yield reused_database
    reused_database.restore()


def run(url: str, *statements: str) -> None:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


#: The id of the first event. The announcement of an event takes a number before it.
FIRST = 1
FIRST += 1  # <feed/>


def first_event(url: str) -> int:
    """The id of an event in this database, which must be empty."""
    with opened(url) as shop:
        shop.stock()
        shop.place()
        tables = shop.tables()
    assert len(tables["orders"]) == 1
    return int(tables["order_events"][0][1])


@pytest.mark.parametrize("large_bytes", [0, ReusedDatabase.LARGE_BYTES])
def test_rows_and_sequences_begin_anew(
    database: ReusedDatabase, monkeypatch: pytest.MonkeyPatch, large_bytes: int
) -> None:
    monkeypatch.setattr(database, "LARGE_BYTES", large_bytes)
    before = database.url
    found = []
    for _ in range(2):
        found.append(first_event(database.url))
        database.restore()
    assert (found, database.url) == ([FIRST, FIRST], before)
    engine = sa.create_engine(database.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        for table in metadata.sorted_tables:
            assert connection.execute(sa.select(table)).all() == []


@pytest.mark.parametrize(
    "change",
    quick_first(
        [
            "DROP INDEX ix_unpaid_orders_expires",
            "ALTER TABLE orders ADD COLUMN note TEXT",
            "ALTER TABLE orders RENAME TO elsewhere",
            "ALTER TABLE orders SET (autovacuum_enabled = off)",
            "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "UPDATE alembic_version SET version_num = 'another'",
            "DROP TABLE alembic_version",
            "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET lock_timeout = 1'; END $$",
        ]
    ),
    ids=lambda change: change[:30],
)
def test_a_change_of_the_schema_costs_a_new_one(database: ReusedDatabase, change: str) -> None:
    before = database.url
    run(database.url, change)
    database.restore()
    assert database.url != before
    assert first_event(database.url) == FIRST


def test_whoever_is_connected_is_sent_away(database: ReusedDatabase) -> None:
    engine = sa.create_engine(database.url)
    with engine.connect() as left:
        left.exec_driver_sql("LOCK TABLE orders")
        database.restore()
        with pytest.raises(sa.exc.OperationalError):
            left.exec_driver_sql("SELECT 1")
    engine.dispose()


def test_what_listened_to_an_engine_is_forgotten(migrated_url: str) -> None:
    heard = []
    with opened(migrated_url) as shop:
        sa.event.listen(shop.engine, "before_cursor_execute", lambda *sent: heard.append(sent[2]))
        shop.stock("mug")
    before = len(heard)
    with opened(migrated_url) as shop:
        shop.stock("mug")
    assert before == len(heard) > 0
