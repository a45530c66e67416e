"""Runs migrations against the environment's DATABASE_URL."""

import os
import time

import sqlalchemy as sa
from alembic import context

from orders.db import tables  # noqa: F401  whose tables belong to the metadata
from orders.db.base import metadata
from orders.db.database import plain_engine
from orders.db.errors import LOCK_NOT_AVAILABLE, NO_RIGHT, first_line, sqlstate, translated
from orders.db.schema import check_encoding
from orders.errors import OrderError, StorageUnavailable, StorageUnfit
from orders.feature import features
from worker.records.outages import is_transient

#: Any number, the same for every migrator of this service.
LOCK = 7_281_500
#: How long a migration waits for a table that is in use, while everybody else waits behind it; how long it
#: then lets them pass; and how often it tries.
LOCK_TIMEOUT_MS, PAUSE_SECONDS, TRIES = "2000", 1.0, 60
#: The user lacks a right, or the schema that the tables are to be in.
NOT_ALLOWED = (NO_RIGHT, "3F000")
WHO = sa.text("SELECT quote_ident(current_user), quote_ident(current_schema())")
#: Alembic cannot compare it; see `orders.db.tables`.
NOT_COMPARED = "ix_stock_items_sku"


def run() -> None:
    """Migrate in a transaction, so that what fails changes nothing.

    A migration may end the transaction to do what cannot be done in one, such as building an index
    concurrently; running it again must then finish the work. For that it sets lock_timeout to 0: such
    a build waits for old snapshots, and nobody waits behind it.
    """
    engine = context.config.attributes.get("engine") or plain_engine(
        os.environ.get("DATABASE_URL", "")
    )
    with translated():
        connected = engine.connect()
    with connected as connection:
        check_encoding(connection)
        features()  # whose tables belong to the metadata
        _wait_for_other_migrators(connection)
        _wait_briefly_for_tables(connection)
        context.configure(
            connection=connection,
            target_metadata=metadata,
            compare_server_default=False,
            include_object=lambda _, name, *__: name != NOT_COMPARED,
        )
        _migrate(connection)
    if "engine" not in context.config.attributes:
        engine.dispose()


def _migrate(connection: sa.Connection) -> None:
    """Run the migrations; again and again while a table they need is in use."""
    for tries_left in range(TRIES, 0, -1):
        try:
            with context.begin_transaction():
                context.run_migrations()
        except sa.exc.DBAPIError as error:
            if sqlstate(error) in NOT_ALLOWED:
                raise StorageUnfit(f"{first_line(error)}: {_remedy(connection)}") from error
            if not is_transient(error):
                raise
            if sqlstate(error) != LOCK_NOT_AVAILABLE or tries_left == 1:
                raise StorageUnavailable(first_line(error)) from error
            connection.rollback()
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _wait_briefly_for_tables(connection: sa.Connection) -> None:
    # Everybody who then wants to read the table waits behind whoever waits to alter it.
    milliseconds = int(context.config.get_main_option("lock_timeout_ms", LOCK_TIMEOUT_MS))
    connection.execute(sa.text(f"SET lock_timeout = {milliseconds}"))
    # A role's own limit would end the same long statement each time.
    connection.execute(sa.text("SET statement_timeout = 0"))
    connection.commit()


def _wait_for_other_migrators(connection: sa.Connection) -> None:
    # By polling: a statement that waits has a snapshot, and a concurrent build of an index waits
    # for all older snapshots. The lock ends with the connection.
    while not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(LOCK))):
        connection.commit()
        time.sleep(0.2)
    connection.commit()


def _remedy(connection: sa.Connection) -> str:
    """What a user who may not migrate can do about it."""
    connection.rollback()
    user, schema = connection.execute(WHO).one()
    grant = f"GRANT CREATE ON SCHEMA {schema} TO {user};" if schema else "create its schema"
    return f"{grant} or migrate as the owner of the tables"


if context.is_offline_mode():
    raise SystemExit("alembic: offline mode is not supported: it cannot see what the database has")
try:
    run()
except OrderError as error:
    raise SystemExit(f"alembic: {error}") from error
