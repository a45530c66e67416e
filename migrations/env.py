"""Runs migrations against the environment's DATABASE_URL."""

import os
import time

import sqlalchemy as sa
from alembic import context

from orders.models import metadata

#: Any number, the same for every migrator of this service.
LOCK = 7_281_500
#: On PostgreSQL the table's key serves.
SQLITE_ONLY = "ix_order_events_order"


def run() -> None:
    """Migrate; on PostgreSQL in a transaction, so that what fails changes nothing.

    A migration may end the transaction to do what cannot be done in one, such as building an index
    concurrently; running it again must then finish the work.
    """
    engine = context.config.attributes.get("engine") or sa.create_engine(_database_url())
    on_sqlite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        if not on_sqlite:
            _wait_for_other_migrators(connection)
        context.configure(
            connection=connection,
            target_metadata=metadata,
            compare_server_default=False,
            include_object=lambda _, name, *__: name != SQLITE_ONLY or on_sqlite,
            render_as_batch=on_sqlite,
        )
        with context.begin_transaction():
            context.run_migrations()


def _wait_for_other_migrators(connection: sa.Connection) -> None:
    # By asking again: a statement that waits has a snapshot, and a concurrent build of an index
    # waits for all older snapshots. The lock ends with the connection.
    while not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(LOCK))):
        connection.commit()
        time.sleep(0.2)
    connection.commit()


def _database_url() -> str:
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        raise SystemExit("alembic: DATABASE_URL is not set")
    return url


if context.is_offline_mode():
    raise SystemExit("alembic: offline mode is not supported; it could not see what is there")
run()
