"""Runs migrations against the environment's DATABASE_URL."""

import os

import sqlalchemy as sa
from alembic import context

from orders.models import metadata


def run() -> None:
    """Migrate; on PostgreSQL in one transaction, so that what fails changes nothing."""
    engine = context.config.attributes.get("engine") or sa.create_engine(_database_url())
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            compare_server_default=False,
            render_as_batch=connection.dialect.name == "sqlite",
        )
        with context.begin_transaction():
            context.run_migrations()


def _database_url() -> str:
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        raise SystemExit("alembic: DATABASE_URL is not set")
    return url


if context.is_offline_mode():
    raise SystemExit("alembic: offline mode is not supported; it could not see what is there")
run()
