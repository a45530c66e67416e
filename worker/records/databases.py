"""What differs between PostgreSQL and SQLite: times, lists of ids, and how a transaction begins."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect

from .ids import IdArray, id_type, plain_type
from .watchdog import IDLE, Watch, Watchdog, transaction_status

_WATCHDOG = Watchdog()

#: How long a statement waits for one lock at most. A locked row holds up its batch until the record at fault is
#: found, which takes one such wait for each halving.
LOCK_MS = 250
_MS = "CAST(:ms AS text)"
#: Sets timeouts for a transaction, in ms, where the engine's connections have none.
_BOUNDED = ", ".join(
    f"set_config('{name}', CASE current_setting('{name}') WHEN '0' THEN {ms}"
    f" ELSE current_setting('{name}') END, true)"
    for name, ms in {
        "lock_timeout": f"CAST(LEAST(CAST({_MS} AS integer), {LOCK_MS}) AS text)",
        "statement_timeout": _MS,
        "idle_in_transaction_session_timeout": _MS,
    }.items()
)
#: Makes the planner read a page by index, in the index's order. For a table that was never analysed it
#: guesses, and may guess that reading and sorting the whole table costs less.
_BY_INDEX = ", ".join(
    f"set_config('{name}', 'off', true)" for name in ("enable_seqscan", "enable_bitmapscan", "jit")
)
_BEGIN_WRITING = sa.text(f"SELECT {_BOUNDED}")
#: Due times are read as text.
_AS_ISO = "set_config('DateStyle', 'ISO', true)"
#: Whether the session's own settings do all that; a list is evaluated from the left.
_IS_SET = (
    "'0' NOT IN (current_setting('lock_timeout'), current_setting('statement_timeout'))"
    " AND 'on' NOT IN (current_setting('enable_seqscan'), current_setting('enable_bitmapscan'),"
    " current_setting('jit')) AND current_setting('DateStyle') LIKE 'ISO%'"
)
_BEGIN_READING = sa.text(f"SELECT {_IS_SET}, {_BOUNDED}, {_BY_INDEX}, {_AS_ISO}")


class PostgreSQL:
    def __init__(self, dialect: Dialect, id_: sa.Column[Any], due: sa.Column[Any]) -> None:
        own_type, due_type = plain_type(id_, dialect), plain_type(due, dialect)
        if not isinstance(due_type, sa.DateTime) or not due_type.timezone:
            raise TypeError(f"{due} must be TIMESTAMP(timezone=True), not {due_type!r}")
        if isinstance(own_type, sa.CHAR):
            raise TypeError(
                f"{id_} must be Text or Uuid, not {own_type!r}, which pads what it stores"
            )
        item, self.parse = id_type(id_, own_type)
        self._ids = IdArray(item)
        self.id, self.due = sa.type_coerce(id_, own_type), sa.type_coerce(due, due_type)
        self.now = sa.func.statement_timestamp(type_=due_type)
        # Read as text, because Python has no times before the year 1, such as -infinity. Those are overdue.
        self.due_as_text = sa.cast(self.due, sa.Text)
        self.last_due = sa.cast(sa.bindparam("last_due", type_=sa.Text), due_type)
        self.is_time = sa.true()
        earliest = sa.literal_column("timestamptz '0001-01-01 00:00:00Z'", due_type)
        since = sa.func.greatest(self.due, earliest, type_=due_type) - self.now
        #: Milliseconds from now until a record is due.
        self.ms = sa.cast(sa.extract("epoch", since) * 1000, sa.Double)
        self.read_only = sa.func.current_setting("transaction_read_only") == "on"

    def after(
        self, seconds: sa.ColumnElement[float], since: sa.Column[Any] | None = None
    ) -> sa.ColumnElement[Any]:
        """A time ``seconds`` from now, or after another."""
        start = self.now if since is None else sa.type_coerce(since, self.now.type)
        return start + seconds * sa.literal_column("interval '1 second'", sa.Interval)

    def among(self, ids: str) -> sa.ColumnElement[bool]:
        """Whether the id is in the list that is passed as the parameter ``ids``."""
        # The subselect is evaluated once. A cast parameter is not a constant: as a filter it would be
        # parsed again for every row, and without statistics a planner may well choose to filter.
        array = postgresql.ARRAY(self._ids.item)
        given = sa.cast(sa.bindparam(ids, type_=self._ids), array)
        values = sa.func.array(sa.select(sa.func.unnest(given)).scalar_subquery())
        return self.id == sa.any_(sa.type_coerce(values, array))

    @contextmanager
    def writing(self, connection: sa.Connection, timeout_seconds: float) -> Iterator[None]:
        """A transaction whose every wait is limited."""
        _leave_autocommit(connection)
        with connection.begin():
            connection.execute(_BEGIN_WRITING, {"ms": _in_ms(timeout_seconds)})
            yield

    @contextmanager
    def reading(self, connection: sa.Connection, timeout_seconds: float) -> Iterator[None]:
        """Reads by index, and every wait is limited. A session whose own settings see to that needs no transaction."""
        if connection.info.get(_IS_SET):
            with self.autocommit(connection, timeout_seconds):
                yield
            return
        _leave_autocommit(connection)
        with connection.begin():
            is_idle = _is_idle(_driver(connection))
            is_set = connection.execute(
                _BEGIN_READING, {"ms": _in_ms(timeout_seconds)}
            ).scalar_one()
            connection.info[_IS_SET] = is_idle and is_set
            yield

    @contextmanager
    def autocommit(self, connection: sa.Connection, _timeout_seconds: float) -> Iterator[None]:
        """Commit each statement by itself until the block ends.

        The driver is told, not SQLAlchemy, which would take as long as a small statement, and which an engine
        with its own way to begin a transaction would undo.
        """
        driver = _driver(connection)
        with connection.begin():
            driver.commit()  # what a listener of the engine's has begun
            before, driver.autocommit = driver.autocommit, True
            try:
                yield
            finally:
                if not getattr(driver, "closed", False):
                    driver.autocommit = before

    def deadline(self, connection: sa.Connection, seconds: float) -> AbstractContextManager[Watch]:
        """Close the connection to a server that takes longer."""
        return _WATCHDOG.watching(_driver(connection), seconds)


#: How SQLAlchemy writes a DateTime on SQLite, whose clock has milliseconds.
_SQLITE_TIME = "%Y-%m-%d %H:%M:%f000"


class SQLite:
    def __init__(self, dialect: Dialect, id_: sa.Column[Any], due: sa.Column[Any]) -> None:
        own_type, due_type = plain_type(id_, dialect), plain_type(due, dialect)
        if not isinstance(due_type, sa.DateTime):
            raise TypeError(f"{due} must be a DateTime, not {due_type!r}")
        _, self.parse = id_type(id_, own_type)
        if isinstance(own_type, sa.Uuid) and own_type.as_uuid:
            text = self.parse
            self.parse = lambda task_id: UUID(text(task_id))
        self._table = id_.table
        self.id, self.due = sa.type_coerce(id_, own_type), sa.type_coerce(due, sa.String())
        self.now = sa.func.strftime(_SQLITE_TIME, "now", type_=sa.String())
        self.due_as_text = self.due
        self.last_due = sa.bindparam("last_due", type_=sa.String())
        days = sa.func.julianday(self.due) - sa.func.julianday("now")
        # Whole, as SQLite's times are. Days are doubles: unrounded, the difference is off by some hundredths.
        self.ms = sa.type_coerce(sa.func.round(days * 86_400_000), sa.Double)
        #: Whether it is a time at all: SQLite stores any value in any column.
        self.is_time = self.ms.is_not(None)
        self.read_only = sa.false()  # not known before a write fails

    def after(
        self, seconds: sa.ColumnElement[float], since: sa.Column[Any] | None = None
    ) -> sa.ColumnElement[Any]:
        start = "now" if since is None else sa.type_coerce(since, sa.String())
        shift = sa.func.printf("%+.3f seconds", seconds)
        return sa.func.strftime(_SQLITE_TIME, start, shift, type_=sa.String())

    def among(self, ids: str) -> sa.ColumnElement[bool]:
        return self.id.in_(sa.bindparam(ids, type_=self.id.type, expanding=True))

    @contextmanager
    def writing(self, connection: sa.Connection, timeout_seconds: float) -> Iterator[None]:
        """Take the write lock first: a transaction that begins with a read fails at once if another one writes."""
        with self.reading(connection, timeout_seconds):
            if _driver(connection).in_transaction:  # begun by a listener of the engine's
                connection.execute(sa.delete(self._table).where(sa.false()))
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def reading(self, connection: sa.Connection, _timeout_seconds: float) -> Iterator[None]:
        """A transaction."""
        if getattr(_driver(connection), "autocommit", None) is True:
            raise ValueError("with autocommit=True, SQLite's driver commits nothing: leave it out")
        with connection.begin():
            yield

    @contextmanager
    def autocommit(self, connection: sa.Connection, _timeout_seconds: float) -> Iterator[None]:
        """Commit each statement by itself until the block ends.

        The driver is told, not SQLAlchemy, which would leave the connection with another isolation level than
        a listener of the engine's had given it.
        """
        driver = _driver(connection)
        with connection.begin():
            driver.commit()  # what such a listener has begun
            before, driver.isolation_level = driver.isolation_level, None
            try:
                yield
            finally:
                driver.isolation_level = before

    def deadline(self, _connection: sa.Connection, _seconds: float) -> AbstractContextManager[None]:
        """SQLite waits for nothing but its lock, which the driver's own ``timeout`` limits."""
        return nullcontext()


DATABASES: dict[str, type[PostgreSQL | SQLite]] = {
    "postgresql": PostgreSQL,
    "sqlite": SQLite,
}


def database_of(engine: sa.Engine, id_: sa.Column[Any], due: sa.Column[Any]) -> PostgreSQL | SQLite:
    """The database of these columns. Raises ValueError for another."""
    if engine.dialect.name not in DATABASES or engine.dialect.is_async:
        raise ValueError(
            f"records are in PostgreSQL or SQLite, not in {engine.dialect.name}, and not asyncio's"
        )
    return DATABASES[engine.dialect.name](engine.dialect, id_, due)


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


def _in_ms(seconds: float) -> str:
    return str(round(1000 * seconds))


def _leave_autocommit(connection: sa.Connection) -> None:
    """Make the next transaction a real one, whatever the engine's isolation level."""
    if connection.dialect.detect_autocommit_setting(_driver(connection)):
        connection.execution_options(isolation_level="READ COMMITTED")


def _is_idle(driver: Any) -> bool:
    """Whether no listener of the engine's has begun a transaction. Not every driver can tell."""
    return transaction_status(driver) == IDLE
