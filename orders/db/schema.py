"""Whether this code works on a database's schema: its own revision, or one of a later version that only added to it."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import sqlalchemy as sa

from orders.db.base import SEQUENCES, TRIGGERS, metadata
from orders.db.database import writing
from orders.db.errors import GRANT, MIGRATE, first_line
from orders.db.files import Room
from orders.errors import SchemaOutdated, StorageReadOnly, StorageUnfit
from orders.log import log

SQL = Room(__package__)


class State(NamedTuple):
    """What the readiness check reads from the database."""

    revision: str
    read_only: bool


def read_state(connection: sa.Connection) -> State:
    """The schema's revision, "" when there is none, and whether the database is read-only.

    If there are several, as after a migration of your own that branches off, it is this code's
    if that is among them.
    """
    found, newest = SQL.get_state(connection).one(), schema_version()
    revisions: list[str] = found.revisions or [""]
    return State(newest if newest in revisions else max(revisions), found.read_only)


def try_disk(connection: sa.Connection) -> None:
    """Write to the server's disk. Raises what its driver raises when that is full."""
    SQL.set_little_memory(connection)
    SQL.spill(connection)


def check_fit(connection: sa.Connection) -> None:
    """Raises StorageUnfit, unless the database can keep any text, its user may do what the service does, and
    every trigger is there.
    """
    check_encoding(connection)
    look = SQL.get_missing(
        connection, tables=[*metadata.tables], sequences=SEQUENCES, triggers=TRIGGERS
    )
    try:
        missing = look.one()
    except NotImplementedError as error:  # the driver's, for a DateStyle
        raise StorageUnfit(f"It cannot be read: {error}.") from error
    if missing.verbs:
        raise StorageUnfit(f"Its user lacks {missing.verbs} on {missing.names}: {GRANT}.")
    if missing.triggers:
        raise StorageUnfit(
            f"Triggers are missing, disabled, or off by session_replication_role: {missing.triggers}."
        )


def _misfits(connection: sa.Connection) -> Iterator[str]:
    """What keeps this code from working on the tables: columns that they lack, or that it does not fill.

    Read from the database's catalog, in a few statements of SQLAlchemy's.
    """
    look = sa.inspect(connection).get_multi_columns(filter_names=[*metadata.tables])
    for table in metadata.sorted_tables:
        there = {each["name"]: each for each in look.get((None, table.name), ())}
        yield from (f"{each} is missing" for each in table.c if each.name not in there)
        for name, each in there.items():
            is_filled = name in table.c or each["nullable"] or each["default"]
            if not (is_filled or each.get("identity") or each.get("computed")):
                yield f"{table.name}.{name} must be given"


def check_encoding(connection: sa.Connection) -> None:
    """Raises StorageUnfit, unless the database can keep any text."""
    encoding = SQL.get_encoding(connection).scalar_one()
    if encoding != "UTF8":
        raise StorageUnfit(
            f"Its encoding is {encoding}: create one with ENCODING 'UTF8' TEMPLATE template0."
        )


@cache
def known_revisions() -> frozenset[str]:
    """The revisions that this code has migrations for; each file has its revision's name."""
    folder = files("orders") / "migrations" / "versions"
    return frozenset(
        file.name.removesuffix(".py") for file in folder.iterdir() if file.name.endswith(".py")
    )


def schema_version() -> str:
    """The newest of them: what this code was written for."""
    return max(known_revisions())


def check_schema(connection: sa.Connection, revision: str) -> None:
    """Raises SchemaOutdated, unless this code works on the schema of this revision.

    A revision that this code does not know belongs to a later version. It is accepted if the tables
    have every column of the models, and require no other. Only then is the catalog read.
    """
    if revision == schema_version():
        return
    if not revision or revision in known_revisions():
        raise SchemaOutdated(f"It has {revision or 'none'}, not {schema_version()}: {MIGRATE}.")
    if misfits := [*_misfits(connection)]:
        listed = ", ".join(misfits[:5]) + (", ..." if len(misfits) > 5 else "")  # noqa: PLR2004
        raise SchemaOutdated(f"It has {revision}, of a later version: {listed}. Upgrade the code.")


@cache
def warn_if_later(revision: str) -> None:
    """Log, once in a process, that the schema of this revision belongs to a later version."""
    if revision != schema_version():
        log.warning("schema of a later version", revision=revision, known=schema_version())


def check_ready(engine: sa.Engine) -> None:
    """Raises StorageUnavailable; StorageReadOnly, SchemaOutdated or StorageUnfit when the database answers."""
    try:
        with writing(engine) as connection:
            state = read_state(connection)
            try_disk(connection)
            check_schema(connection, state.revision)
            warn_if_later(state.revision)
            check_fit(connection)
    except sa.exc.DBAPIError as error:
        raise StorageUnfit(f"It cannot be read: {first_line(error)}.") from error
    if state.read_only:
        engine.dispose()  # the next connection may find the new primary
        raise StorageReadOnly
