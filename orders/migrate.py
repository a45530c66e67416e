"""Runs the migrations that come with this package, wherever it is installed."""

import os
from importlib.resources import files

import click
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from orders.database import parsed_url
from orders.errors import OrderError
from orders.models import SCHEMA_VERSION
from orders.repository import Repository
from orders.schema_check import check_schema, known_revisions
from orders.transient import translated


def config() -> Config:
    """The configuration that a checkout has in alembic.ini, for the database of DATABASE_URL."""
    made = Config()
    folder = str(files(__package__) / "migrations")
    made.set_main_option("script_location", folder.replace("%", "%%"))  # % begins a reference
    made.set_main_option("path_separator", "os")
    made.set_main_option("metadata", "orders.models:metadata")
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
    click.echo(SCHEMA_VERSION)


def _later_revision() -> str:
    """The database's revision if a later version made it, else "".

    Raises SettingsInvalid, StorageUnavailable, and SchemaOutdated when this code does not work on it.
    """
    engine = sa.create_engine(parsed_url(os.environ.get("DATABASE_URL", "")), poolclass=sa.NullPool)
    with translated(), engine.connect() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return ""
        repository = Repository(connection)
        revision = repository.state().revision
        if not revision or revision in known_revisions():
            return ""
        check_schema(repository, revision)
        return revision
