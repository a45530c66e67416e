"""Runs the migrations that come with this package, wherever it is installed."""

import os
from importlib.resources import files

import click
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from orders.db.database import plain_engine
from orders.db.errors import translated
from orders.db.schema import check_schema, known_revisions, read_state, schema_version
from orders.errors import OrderError


def config() -> Config:
    """The configuration that a checkout has in alembic.ini, for the database of DATABASE_URL."""
    made = Config()
    folder = str(files("orders") / "migrations")
    made.set_main_option("script_location", folder.replace("%", "%%"))  # % begins a reference
    made.set_main_option("path_separator", "os")
    return made


@click.command("migrate")
def migrate() -> None:
    """Bring the database of DATABASE_URL to this version's schema.

    Run it before a new version starts. Run twice, even at once, it migrates only once. The schema
    of a later version is left as it is if this version works on it.
    """
    try:
        before = _later_revision()
    except OrderError as error:
        raise click.ClickException(str(error)) from error
    if before:
        click.echo(f"{before}, of a later version: nothing to do")
        return
    command.upgrade(config(), "head")
    click.echo(schema_version())


def _later_revision() -> str:
    """The database's revision if a later version made it, else "".

    Raises SettingsInvalid, StorageUnavailable, StorageUnfit, and SchemaOutdated when this code does not
    work on it.
    """
    engine = plain_engine(os.environ.get("DATABASE_URL", ""))
    with translated(), engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return ""
        revision = read_state(connection).revision
        if not revision or revision in known_revisions():
            return ""
        check_schema(connection, revision)
        return revision
