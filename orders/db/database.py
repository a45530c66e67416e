"""How to connect to PostgreSQL, and what a transaction is."""

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import Conninfo, TransactionStatus
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import JsonDumper
from psycopg.types.string import TextLoader

from orders.config import DATABASE_URLS, Settings
from orders.db.errors import READ_ONLY, translated
from orders.errors import SettingsInvalid


def parsed_url(text: str) -> sa.URL:
    """Raises SettingsInvalid for anything but a URL of PostgreSQL, through psycopg. The message
    leaves out the URL, which has a password.
    """
    if not text.strip():
        raise SettingsInvalid(f"DATABASE_URL is not set: {DATABASE_URLS}")
    try:
        url = sa.make_url(text.strip())
        kind = url.get_backend_name(), url.get_driver_name()
    except (sa.exc.ArgumentError, ValueError) as error:
        raise SettingsInvalid(f"DATABASE_URL is malformed: {DATABASE_URLS}") from error
    if kind != ("postgresql", "psycopg"):
        raise SettingsInvalid(
            f"DATABASE_URL names an unsupported database or driver: {DATABASE_URLS}"
        )
    if "service" in url.query:  # libpq reads its options too late to add ours
        raise SettingsInvalid(f"DATABASE_URL names a service: set PGSERVICE. {DATABASE_URLS}")
    return url


#: Text is read and written in one encoding, whatever the server, the environment or the URL prefers.
AS_UTF8: dict[str, Any] = {"client_encoding": "utf8"}


def plain_engine(url: str) -> sa.Engine:
    """An engine without the service's settings, for migrations. Raises SettingsInvalid for an invalid URL."""
    return sa.create_engine(parsed_url(url), poolclass=sa.NullPool, connect_args=AS_UTF8)


def session_settings(settings: Settings) -> dict[str, str]:
    """What each session sets, in PostgreSQL's names and units; behind a pooler its role must have them."""
    timeout = str(_ms(settings.statement_timeout_seconds))
    return {
        # How results are to be read.
        "timezone": "UTC",
        "datestyle": "ISO",
        "extra_float_digits": "1",
        # What is answered with 201 survives a crash of the server.
        "synchronous_commit": "on",
        # Rows that a policy hides are an error: the service would take them for absent.
        "row_security": "off",
        # A statement that waited for a lock sees what its holder changed, whatever the database's default.
        "default_transaction_isolation": "read committed",
        "lock_timeout": str(_ms(settings.lock_timeout_seconds)),
        "statement_timeout": timeout,
        # Ends a transaction whose client froze, and with it the locks.
        "idle_in_transaction_session_timeout": timeout,
        # Every statement reads a few rows by an index, in its order. Until a table is analysed, a
        # planner guesses, and may guess that reading and sorting all of it costs less, or that two
        # sets of a thousand rows are small enough to compare every pair.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_mergejoin": "off",
        "enable_nestloop": "off",
        # Compiling such a statement takes longer than running it.
        "jit": "off",
        # Nor do plans depend on parameters: a connection plans a statement once.
        "plan_cache_mode": "force_generic_plan",
    }


def create_engine(settings: Settings) -> sa.Engine:
    """An engine whose every wait is bounded. Opens no connection yet.

    Raises SettingsInvalid for an invalid URL.
    """
    url = parsed_url(settings.database_url)
    options: dict[str, Any] = {
        # A connection that died while it was idle is found before a request is spent on it.
        "pool_pre_ping": True,
        "pool_recycle": 1800,
        # Each connection prepares its own statements: the one that was used last has most of them.
        "pool_use_lifo": True,
        "pool_size": settings.database_pool_size,
        "max_overflow": 0,
        "pool_timeout": 3,
        # Errors are logged, and the log must contain no bodies and no secrets.
        "hide_parameters": True,
        # PostgreSQL's own, so that the driver need not translate each statement.
        "paramstyle": "numeric_dollar",
    }
    connect_args = {
        "connect_timeout": 3,
        # Detects a peer that has vanished, from which no reply will ever come.
        "tcp_user_timeout": _ms(settings.statement_timeout_seconds),
        "keepalives_idle": 5,
        "fallback_application_name": "order-timeout",
    }
    # What the URL says goes first, as it does for libpq's own programs.
    connect_args = {name: each for name, each in connect_args.items() if name not in url.query}
    connect_args |= AS_UTF8
    if settings.database_pooler:
        # Its backends are handed on after each transaction, with what one has prepared and another has not.
        connect_args["prepare_threshold"] = None
    else:
        # What libpq would read from the environment, or from the service that it names.
        [default] = (each.val for each in Conninfo.get_defaults() if each.keyword == b"options")
        given = url.query.get("options", (default or b"").decode())
        own = (
            f"-c {name}=" + value.replace(" ", "\\ ")
            for name, value in session_settings(settings).items()
        )
        connect_args["options"] = " ".join([*([given] if isinstance(given, str) else given), *own])
    engine = sa.create_engine(url, connect_args=connect_args, **options)
    patience = settings.statement_timeout_seconds + GRACE_SECONDS

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, cargs: Any, cparams: Any) -> Any:
        connection = PatientConnection.connect(*cargs, **cparams)
        connection.patience_seconds = patience
        connection.cursor_factory = LightCursor
        connection.adapters.register_loader("uuid", TextLoader)  # see `orders.db.base.Id`
        connection.adapters.register_dumper(dict, JsonDumper)
        if settings.database_pooler:
            connection.adapters.register_loader("timestamptz", UtcLoader)
        return connection

    # On the dialect, because an engine with listeners checks for every kind of event in each call.
    sa.event.listen(engine.dialect, "handle_error", _leave_read_only)
    engine.dialect.do_begin = _begin  # type: ignore[method-assign, assignment]
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


def watching(settings: Settings) -> Settings:
    """For metrics and the operators' page: one connection, so that they take none from requests, and a second at most."""
    seconds = min(1.0, settings.statement_timeout_seconds)
    # Shorter, or a lock would be taken for a slow statement.
    lock_seconds = min(seconds / 2, settings.lock_timeout_seconds)
    return replace(
        settings,
        database_pool_size=1,
        statement_timeout_seconds=seconds,
        lock_timeout_seconds=lock_seconds,
    )


#: How long to wait for a server beyond its statement timeout.
GRACE_SECONDS = 0.5
#: How soon a server must answer the ping that may precede a request.
PING_SECONDS = 1.0
#: A connection on which the server has answered this recently needs no ping.
FRESH_SECONDS = 1.0


class PatientConnection(psycopg.Connection[Any]):
    """A connection on which every wait ends.

    A backend that is frozen cannot end a statement that takes too long, and its kernel goes on
    acknowledging, so neither the server's timeouts nor TCP's ever fire.
    """

    patience_seconds: float | None = None
    #: Whether each statement is a transaction of its own.
    alone = False
    #: When it last answered, on the monotonic clock.
    answered_at = 0.0

    def is_fresh(self) -> bool:
        """Whether its server answered recently and has not hung up since, which would make it readable."""
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

    def commit(self) -> None:
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            super().commit()

    def rollback(self) -> None:
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            super().rollback()


class LightCursor(psycopg.RawCursor[Any]):
    """A cursor that describes columns only by what SQLAlchemy reads: their names and types.

    It sends statements as they are, with PostgreSQL's own parameters (``$1``): psycopg would parse any
    statement above 4,096 characters again on every call.
    """

    @property
    def description(self) -> Any:
        result = self.pgresult
        if result is None or not result.nfields:
            return None
        return [
            ((result.fname(n) or b"").decode(), result.ftype(n), None, None, None, None, None)
            for n in range(result.nfields)
        ]


class UtcLoader(TimestamptzLoader):
    """Reads times in UTC, whatever the session's time zone is."""

    def load(self, data: Any) -> datetime:
        return super().load(data).astimezone(UTC)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _begin(connection: Any) -> None:
    # One statement needs no BEGIN and no COMMIT. Set on the driver: as an isolation level of
    # SQLAlchemy, it would cost a read as much as its statement.
    driver: PatientConnection = connection.driver_connection
    if driver.autocommit != driver.alone:
        driver.autocommit = driver.alone


def _leave_read_only(context: sa.engine.ExceptionContext) -> None:
    # A demoted primary keeps its connections, and none of them will ever write again. Treated as a
    # disconnect, the error empties the pool, and new connections may find the new primary.
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


#: An engine; or a connection, whose transaction is its owner's.
Bind = sa.Engine | sa.Connection


@contextmanager
def writing(bind: Bind) -> Iterator[sa.Connection]:
    """One transaction. Raises StorageUnavailable if the database could not carry it out."""
    if isinstance(bind, sa.Connection):
        yield bind
        return
    with translated(), bind.begin() as connection:
        yield connection


@contextmanager
def autocommit(bind: Bind) -> Iterator[sa.Connection]:
    """A connection on which each statement is committed by itself, without a BEGIN and a COMMIT.

    For a single statement, to save its round trips. Raises StorageUnavailable if the database could
    not carry it out.
    """
    if isinstance(bind, sa.Connection):
        yield bind
        return
    with translated(), bind.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.alone = True
        try:
            yield connection
        finally:
            driver.alone = False


#: Reading needs no transaction: each statement sees what is committed when it begins.
reading = autocommit
