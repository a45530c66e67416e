"""PostgreSQL and SQLite: how to connect, where they differ, and which of their errors pass.

The rest of the service runs the same statements on both.
"""

import json
import select
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import psycopg
import sqlalchemy as sa
from psycopg.types.string import TextLoader
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement, GenericFunction

from orders.config import Settings
from orders.errors import SettingsInvalid, StorageUnavailable

P = ParamSpec("P")
R = TypeVar("R")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# -- connecting ----------------------------------------------------------------------------


def create_engine(settings: Settings) -> sa.Engine:
    """An engine whose every wait is bounded. Opens no connection yet.

    Raises SettingsInvalid when the URL is none.
    """
    try:
        url = sa.make_url(settings.database_url)
    except sa.exc.ArgumentError as error:
        raise SettingsInvalid("DATABASE_URL is not a URL.") from error
    options: dict[str, Any] = {
        # A connection that died while it was idle is found before a request is spent on it.
        "pool_pre_ping": True,
        "pool_recycle": 1800,
        "pool_size": settings.database_pool_size,
        "max_overflow": 0,
        "pool_timeout": 3,
    }
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            url, connect_args={"timeout": settings.lock_timeout_seconds}, **options
        )
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    session = {
        "timezone": "UTC",
        "lock_timeout": _ms(settings.lock_timeout_seconds),
        "statement_timeout": _ms(settings.statement_timeout_seconds),
        # Every statement reads a few rows by an index, in its order. Until a table is analysed, a
        # planner guesses, and may guess that reading and sorting all of it costs less, or that two
        # sets of a thousand rows are so small that each row may be compared with each.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_mergejoin": "off",
        "enable_nestloop": "off",
        # Compiling such a statement takes longer than running it.
        "jit": "off",
    }
    connect_args = {
        "connect_timeout": 3,
        # A peer that vanished is noticed, though no reply will ever come.
        "tcp_user_timeout": _ms(settings.statement_timeout_seconds),
        "keepalives_idle": 5,
        "application_name": "order-timeout",
        "options": " ".join(f"-c {name}={value}" for name, value in session.items()),
    }
    engine = sa.create_engine(url, connect_args=connect_args, **options)
    patience = settings.statement_timeout_seconds + GRACE_SECONDS

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, cargs: Any, cparams: Any) -> Any:
        connection = PatientConnection.connect(*cargs, **cparams)
        connection.patience_seconds = patience
        connection.adapters.register_loader("uuid", TextLoader)  # see `Id`
        return connection

    sa.event.listen(engine, "begin", _begin_postgresql)
    sa.event.listen(engine, "handle_error", _leave_read_only)
    plain_ping = engine.dialect.do_ping

    def ping(connection: Any) -> bool:
        if connection.is_fresh():
            return True
        connection.patience_seconds = PING_SECONDS
        try:
            return plain_ping(connection)
        finally:
            connection.patience_seconds = patience

    engine.dialect.do_ping = ping  # type: ignore[method-assign, assignment]
    return engine


#: How much longer than its statement time-out a server is waited for.
GRACE_SECONDS = 0.5
#: How soon a server must answer before it is given a request to work on.
PING_SECONDS = 1.0
#: How lately it must have answered not to be asked again before the next request.
FRESH_SECONDS = 1.0


class PatientConnection(psycopg.Connection[Any]):
    """A connection on which no wait is for ever.

    A backend that is frozen cannot end a statement that takes too long, and its kernel goes on
    acknowledging, so neither the server's time-outs nor TCP's ever fire.
    """

    patience_seconds: float | None = None
    #: When it last did, on the monotonic clock.
    answered_at = 0.0

    def is_fresh(self) -> bool:
        """Whether it answered lately, and its server has not hung up since: that can be read."""
        if time.monotonic() - self.answered_at > FRESH_SECONDS:
            return False
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return not poll.poll(0)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Raises OperationalError, the connection closed, when no answer comes in time."""
        try:
            answer = super().wait(gen, interval, timeout or self.patience_seconds)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001  it has no public name
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from error
        self.answered_at = time.monotonic()
        return answer


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # begin for ourselves; see below
    connection.execute("PRAGMA journal_mode = WAL")  # readers and one writer side by side
    connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A deferred transaction that turns into a write fails at once when another writes.
    reads = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _begin_postgresql(connection: sa.Connection) -> None:
    # One statement needs no BEGIN and no COMMIT. The driver is told directly: as an isolation level
    # of SQLAlchemy's it would cost a read as much as its statement.
    driver: Any = connection.connection.driver_connection
    alone = "reading" in connection.get_execution_options()
    if driver.autocommit != alone:
        driver.autocommit = alone


def _leave_read_only(context: sa.engine.ExceptionContext) -> None:
    # A demoted primary keeps its connections, and none of them will ever write again. Treated as a
    # disconnect, the error empties the pool, and new connections may find the new primary.
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction on SQLite; on PostgreSQL each statement is committed by itself.

    Raises StorageUnavailable when the database could not carry it out.
    """
    with _translated(), engine.connect().execution_options(reading=False) as connection:
        yield connection
        connection.commit()


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One look. Raises StorageUnavailable when the database could not answer."""
    with _translated(), engine.connect() as connection:
        yield connection.execution_options(reading=True)


# -- errors that pass ----------------------------------------------------------------------

#: A statement that writes, in a server that does not: a standby, or a primary that was demoted.
READ_ONLY = "25006"
#: Connection lost, resources gone, operator intervention (shutdown, start-up, statement
#: time-out), serialization, deadlock, lock time-out.
_PASSING_SQLSTATES = ("08", "53", "57", "40001", "40P01", "55P03", READ_ONLY)
#: BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN
_PASSING_SQLITE = {5, 6, 8, 10, 13, 14}


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        if passes(error):
            raise StorageUnavailable(str(getattr(error, "orig", error))) from error
        raise


def passes(error: DBAPIError | PoolTimeout) -> bool:
    """Whether the database is at fault and the same statement may succeed later."""
    if isinstance(error, PoolTimeout) or error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF in _PASSING_SQLITE
    state = sqlstate(error)
    if state is None:  # no answer at all: the connection failed
        return isinstance(error, sa.exc.OperationalError)
    return state.startswith(_PASSING_SQLSTATES)


#: Serialization failure, deadlock: PostgreSQL rolled everything back, and asks for another try.
CONFLICTS = ("40001", "40P01")
CONFLICT_RETRIES = 3


def retried(transaction: Callable[P, R]) -> Callable[P, R]:
    """Have a function that is one transaction run again when it lost against another one.

    The lock order of `orders.repository` makes that rare: it takes somebody else's statements,
    or a database whose default isolation is stricter.
    """

    @wraps(transaction)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(CONFLICT_RETRIES):
            try:
                return transaction(*args, **kwargs)
            except StorageUnavailable as error:
                if sqlstate(error.__cause__) not in CONFLICTS:
                    raise
        return transaction(*args, **kwargs)

    return run


def sqlstate(error: BaseException | None) -> str | None:
    """PostgreSQL's code for what went wrong."""
    return getattr(getattr(error, "orig", None), "sqlstate", None)


LOCK_NOT_AVAILABLE = "55P03"


def waited_for(error: DBAPIError, table: str) -> bool:
    """Whether a statement was given up because a row of this table stayed locked."""
    context = getattr(getattr(error.orig, "diag", None), "context", None)
    return sqlstate(error) == LOCK_NOT_AVAILABLE and f'relation "{table}"' in (context or "")


# -- types and expressions -----------------------------------------------------------------


class Instant(sa.types.TypeDecorator[datetime]):
    """A moment in whole milliseconds: timestamptz, and on SQLite ms since the epoch."""

    impl = sa.TIMESTAMP(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        return sa.BigInteger() if dialect.name == "sqlite" else sa.TIMESTAMP(timezone=True)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "sqlite":
            return value
        return epoch_ms(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return cast("datetime | None", value)  # aware, and in UTC by the session's time zone
        return EPOCH + timedelta(milliseconds=value)


class Id(sa.types.TypeDecorator[str]):
    """A UUID, which Python has as text: uuid, and on SQLite the text."""

    impl = sa.CHAR(36)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "sqlite":
            return sa.CHAR(36)
        return postgresql.UUID(as_uuid=False)


class IdList(sa.types.TypeDecorator[Sequence[str]]):
    """Many ids in one parameter, so that a batch of any size is one and the same statement.

    As text: a driver's arrays are checked for what needs quotes, an element at a time.
    """

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> Any:
        if dialect.name == "sqlite":
            return json.dumps(value)
        return f"{{{','.join(value or ())}}}"


class each_id(GenericFunction[str]):  # noqa: N801  reads as SQL does
    """``each_id(parameter)``: each id of an `IdList`."""

    inherit_cache = True


class json_each_text(GenericFunction[Any]):  # noqa: N801
    """``json_each_text(mapping)``: each ``key`` and ``value``."""

    inherit_cache = True


class json_build_object(GenericFunction[Any]):  # noqa: N801
    """``json_build_object(name, value, ...)``"""

    type = sa.JSON()
    inherit_cache = True


ON_SQLITE = {
    "each_id": "json_each",
    "json_each_text": "json_each",
    "json_build_object": "json_object",
}


@compiles(each_id)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return f"unnest(CAST({compiler.process(element.clauses, **kw)} AS uuid[]))"


@compiles(each_id, "sqlite")
@compiles(json_each_text, "sqlite")
@compiles(json_build_object, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{ON_SQLITE[element.name]}({compiler.process(element.clauses, **kw)})"


def ids(parameter: str) -> sa.Select[Any]:
    """The ids that come as an `IdList`."""
    each = each_id(sa.bindparam(parameter, type_=IdList()))
    return sa.select(each.table_valued(sa.column("value", Id), name="value").c.value)


class one_of(FunctionElement[bool]):  # noqa: N801  reads as SQL does
    """``one_of(column, query)``: the query finds it. So its rows are looked up in an index."""

    type = sa.Boolean()
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[str], query: Any) -> None:
        super().__init__(column, query.correlate(None).scalar_subquery())

    def self_group(self, against: Any = None) -> "one_of":  # noqa: ARG002
        return self  # a condition as it is: "IN (...) = 1" would keep SQLite from its index


@compiles(one_of)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    column, query = (compiler.process(clause, **kw) for clause in element.clauses)
    # The query is evaluated once. A cast parameter is not a constant: as a filter it would be
    # parsed again for every row, and without statistics a planner may well filter.
    return f"{column} = ANY (ARRAY{query})"


@compiles(one_of, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    column, query = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} IN {query}"


class now(FunctionElement[datetime]):  # noqa: N801  reads as SQL does
    """The database's clock when the statement began, rounded down to milliseconds."""

    type = Instant()
    inherit_cache = True


@compiles(now)
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "date_trunc('milliseconds', statement_timestamp())"


@compiles(now, "sqlite")
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    # All 'now' of one statement are the same moment.
    seconds, millis = "strftime('%s', 'now')", "substr(strftime('%f', 'now'), 4)"
    return f"(CAST({seconds} AS INTEGER) * 1000 + CAST({millis} AS INTEGER))"


class clock(FunctionElement[datetime]):  # noqa: N801  reads as SQL does
    """The database's clock at this very moment, after all that the statement waited for."""

    type = Instant()
    inherit_cache = True


@compiles(clock)
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "date_trunc('milliseconds', clock_timestamp())"


@compiles(clock, "sqlite")
def _(_element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(now(), **kw)


class read_only(FunctionElement[bool]):  # noqa: N801  reads as SQL does
    """Whether this server refuses to write."""

    type = sa.Boolean()
    inherit_cache = True


@compiles(read_only)
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "(current_setting('transaction_read_only') = 'on')"


@compiles(read_only, "sqlite")
def _(_element: Any, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "0"  # there is no server; a write says it


class later(FunctionElement[datetime]):  # noqa: N801  reads as SQL does
    """``later(moment, ms)``: that many milliseconds after the moment; a column, or a parameter's name."""

    type = Instant()
    inherit_cache = True

    def __init__(self, moment: sa.ColumnElement[datetime], ms: str | sa.ColumnElement[int]) -> None:
        super().__init__(
            moment, sa.bindparam(ms, type_=sa.BigInteger()) if isinstance(ms, str) else ms
        )


@compiles(later)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, ms = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} + {ms} * interval '1 millisecond')"


@compiles(later, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, ms = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} + {ms})"


class ms_until(FunctionElement[int]):  # noqa: N801  reads as SQL does
    """``ms_until(moment)``: milliseconds from now to the moment; negative when it is past."""

    type = sa.BigInteger()
    inherit_cache = True

    def __init__(self, moment: sa.ColumnElement[datetime]) -> None:
        super().__init__(moment, now())


@compiles(ms_until)
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, present = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"CAST(extract(epoch FROM {moment} - {present}) * 1000 AS bigint)"


@compiles(ms_until, "sqlite")
def _(element: Any, compiler: SQLCompiler, **kw: Any) -> str:
    moment, present = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} - {present})"


def epoch_ms(moment: datetime) -> int:
    """Whole milliseconds since the epoch."""
    return (moment - EPOCH) // timedelta(milliseconds=1)
