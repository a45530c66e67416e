"""Whether this code works on a database's schema: its own revision, or one of a later version that only added to it."""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import sqlalchemy as sa

from orders.errors import SchemaOutdated, StorageReadOnly, StorageUnfit
from orders.log import log
from orders.sql.database import writing
from orders.sql.errors import GRANT, MIGRATE, first_line
from orders.sql.expressions import read_only
from orders.sql.sequences import SEQUENCE
from orders.sql.statements import Statements
from orders.sql.tables import SCHEMA_VERSION, metadata


class State(NamedTuple):
    """What the readiness check reads from the database."""

    revision: str
    read_only: bool


# The revision that migrations brought the database to, and whether it refuses to write.
GET_STATE = sa.select(
    sa.column("version_num", sa.String).label("revision"), read_only().label("read_only")
).select_from(sa.table("alembic_version"))
GET_ENCODING = sa.text("SHOW server_encoding")
# A moment, which this session has to be able to read, and which rights its user lacks on what.
GET_MISSING_RIGHTS = sa.text(
    "SELECT statement_timestamp(), string_agg(DISTINCT verb, ', ') AS verbs, string_agg(DISTINCT name, ', ') AS names"
    " FROM (SELECT verb, name FROM unnest(CAST(:tables AS text[])) name,"
    " unnest(CAST('{SELECT,INSERT,UPDATE,DELETE}' AS text[])) verb WHERE NOT has_table_privilege(name, verb)"
    " UNION ALL SELECT verb, CAST(:sequence AS text) FROM unnest(CAST('{SELECT,USAGE}' AS text[])) verb"
    " WHERE NOT has_sequence_privilege(CAST(:sequence AS text), verb)) AS missing"
)


# A query whose rows do not fit into so little memory: they go to a temporary file, for which a full
# disk has no room. Nothing is kept, and the catalog does not change.
WITH_LITTLE_MEMORY = sa.text("SET LOCAL work_mem = '64kB'")
SPILL = sa.text("SELECT count(*) FROM generate_series(1, 10000)")


class Schema(Statements):
    """What the database says of its schema."""

    def state(self) -> State:
        """The schema's revision, "" when there is none, and whether the database is read-only.

        If there are several, as after a migration of your own that branches off, it is this code's
        if that is among them.
        """
        rows = self.run(GET_STATE).all()
        if not rows:
            return State("", read_only=False)
        revisions = [row.revision for row in rows]
        newest = SCHEMA_VERSION if SCHEMA_VERSION in revisions else max(revisions)
        return State(newest, rows[0].read_only)

    def try_disk(self) -> None:
        """Write to the server's disk. Raises what its driver raises when that is full."""
        self.run(WITH_LITTLE_MEMORY)
        self.run(SPILL)

    def check_fit(self) -> None:
        """Raises StorageUnfit, unless the database can keep any text, and its user may do what the service does."""
        check_encoding(self.connection)
        look = self.run(GET_MISSING_RIGHTS, tables=[*metadata.tables], sequence=SEQUENCE)
        try:
            missing = look.one()
        except NotImplementedError as error:  # the driver's, for a DateStyle
            raise StorageUnfit(f"It cannot be read: {error}.") from error
        if missing.verbs:
            raise StorageUnfit(f"Its user lacks {missing.verbs} on {missing.names}: {GRANT}.")

    def misfits(self) -> list[str]:
        """What keeps this code from working on the tables: columns that they lack, or that it does not fill.

        Read from the database's catalog, in a few statements of SQLAlchemy's.
        """
        tables = metadata.sorted_tables
        names = [table.name for table in tables]
        look = sa.inspect(self.connection).get_multi_columns(filter_names=names)
        there = {
            f"{table}.{column['name']}": column
            for (_, table), columns in look.items()
            for column in columns
        }
        ours = {f"{table}.{column.name}" for table in tables for column in table.c}
        lacking = [f"{name} is missing" for name in sorted(ours - there.keys())]
        return lacking + [
            f"{name} must be given"
            for name, column in sorted(there.items())
            if name not in ours
            and not (column["nullable"] or column["default"])
            and not (column.get("identity") or column.get("computed"))
        ]


def check_encoding(connection: sa.Connection) -> None:
    """Raises StorageUnfit, unless the database can keep any text."""
    encoding = connection.execute(GET_ENCODING).scalar_one()
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


def check_schema(schema: Schema, revision: str) -> None:
    """Raises SchemaOutdated, unless this code works on the schema of this revision.

    A revision that this code does not know belongs to a later version. It is accepted if the tables
    have every column of the models, and require no other. Only then is the catalog read.
    """
    if revision == SCHEMA_VERSION:
        return
    if not revision or revision in known_revisions():
        raise SchemaOutdated(f"It has {revision or 'none'}, not {SCHEMA_VERSION}: {MIGRATE}.")
    if misfits := schema.misfits():
        listed = ", ".join(misfits[:5]) + (", ..." if len(misfits) > 5 else "")  # noqa: PLR2004
        raise SchemaOutdated(f"It has {revision}, of a later version: {listed}. Upgrade the code.")


@cache
def warn_if_later(revision: str) -> None:
    """Log, once in a process, that the schema of this revision belongs to a later version."""
    if revision != SCHEMA_VERSION:
        log.warning("schema of a later version", revision=revision, known=SCHEMA_VERSION)


def check_ready(engine: sa.Engine) -> None:
    """Raises StorageUnavailable; StorageReadOnly, SchemaOutdated or StorageUnfit when the database answers."""
    try:
        with writing(engine) as connection:
            schema = Schema(connection)
            state = schema.state()
            schema.try_disk()
            check_schema(schema, state.revision)
            warn_if_later(state.revision)
            schema.check_fit()
    except sa.exc.DBAPIError as error:
        raise StorageUnfit(f"It cannot be read: {first_line(error)}.") from error
    if state.read_only:
        engine.dispose()  # the next connection may find the new primary
        raise StorageReadOnly
