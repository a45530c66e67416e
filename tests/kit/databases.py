"""Databases for tests, empty or with the schema."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from devtools.postgres import Postgres
from devtools.processes import ROOT
from orders.db.base import metadata

DURABLE = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


def missing(server: str, error: Exception) -> None:
    """Skip the test, or fail it where CI is set."""
    say = pytest.fail if os.environ.get("CI") else pytest.skip
    say(f"{server} does not start: {error}")


@contextmanager
def empty_database(postgres: Postgres, options: str = "") -> Iterator[str]:
    """The URL of a new database, deleted afterwards; ``options`` are those of CREATE DATABASE."""
    name = f"test_{uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name} {options}")
    yield postgres.url(name)
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


DISCONNECT_OTHERS = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection to the database at a URL of SQLAlchemy's, in autocommit."""
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True, prepare_threshold=None)


def upgrade(url: str) -> None:
    """Run the migrations."""
    config = Config(ROOT / "alembic.ini")
    config.attributes["engine"] = sa.create_engine(url, poolclass=sa.NullPool)
    command.upgrade(config, "head")


#: What a change of the schema or of the database's settings changes, and a TRUNCATE does not.
SHAPE = """
SELECT (SELECT (count(*), max(xmin::text::bigint)) FROM pg_attribute),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_constraint),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_index),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_proc),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_trigger),
    (SELECT (count(*), max(xmin::text::bigint)) FROM pg_type),
    (SELECT array_agg(reloptions ORDER BY oid) FROM pg_class WHERE reloptions IS NOT NULL),
    (SELECT array_agg(setconfig) FROM pg_db_role_setting),
    (SELECT array_agg(version_num) FROM alembic_version)
"""


class SchemaChanged(Exception):
    """A test changed the schema or the settings of its database."""


class ReusedDatabase:
    """A database with the schema, emptied after each test: 10 ms instead of a second for a new one.

    A test that changes the schema or the database's settings costs a new one.
    """

    #: Above this size of a table, TRUNCATE; below it, DELETE takes a twentieth of the time.
    LARGE_BYTES = 64 * 1024

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._template = f"template_{uuid4().hex}"
        postgres.execute(f"CREATE DATABASE {self._template}")
        upgrade(postgres.url(self._template))
        self._create()

    def restore(self) -> None:
        """Disconnect whoever is left, and empty it."""
        try:
            self._empty()
        except (SchemaChanged, psycopg.Error):
            self.close()
            self._postgres.execute(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")
            self._create()

    def close(self) -> None:
        self._connection.close()

    def _create(self) -> None:
        self._name = f"test_{uuid4().hex}"
        self._postgres.execute(f"CREATE DATABASE {self._name} TEMPLATE {self._template}")
        self.url = self._postgres.url(self._name)
        # Kept: a new one takes longer to learn what tables there are than to empty them.
        self._connection = connected(self.url)
        self._shape = self._connection.execute(SHAPE).fetchone()

    def _empty(self) -> None:
        filled = (
            "SELECT relname, pg_relation_size(oid) FROM pg_class "
            "WHERE relname = ANY(%s) AND pg_relation_size(oid) > 0"
        )
        execute = self._connection.execute
        execute(DISCONNECT_OTHERS)
        if execute(SHAPE).fetchone() != self._shape:
            raise SchemaChanged
        sizes = dict(execute(filled, ([*metadata.tables],)).fetchall())
        if max(sizes.values(), default=0) > self.LARGE_BYTES:
            statements = [f"TRUNCATE {', '.join(sizes)} RESTART IDENTITY CASCADE"]
        else:  # without foreign keys, in any order
            statements = ["SET session_replication_role = replica"]
            statements += [str(metadata.tables[name].delete()) for name in sizes]
            statements += ["SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"]
        execute("; ".join(statements).encode())
