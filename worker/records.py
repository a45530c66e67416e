"""A SQL table as a flow's truth: its sweep, its probe, its handler, and scheduling after a commit.

A record is a row with an id, a time at which it is due, and a condition that says whether it is still
pending. `Records` turns such a table into a flow::

    def release(connection, ids):
        connection.execute(seats.update().where(seats.c.id.in_(ids)).values(status="free"))

    holds = Records(
        engine,
        id=seats.c.id,
        due=seats.c.held_until,
        pending=seats.c.status == "held",
        handle=release,
        queue=DelayQueue(client, "seat-holds"),
    )

    with engine.begin() as connection:
        connection.execute(seats.insert().values(id="A1", held_until=holds.after(600)))
        holds.schedule(connection, "A1")

A record's id, as text, is its task's id. This is the only module of this package that needs SQLAlchemy.
"""

import math
import os
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, Unpack
from uuid import UUID

try:
    import sqlalchemy as sa
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "Records need SQLAlchemy: pip install 'sqlalchemy>=2.1'", name=missing.name
    ) from missing
import structlog
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import QueryableAttribute, Session, scoped_session
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.sql.visitors import replacement_traverse

from .errors import FAILURES, Unavailable, described
from .flow import MAX_SECONDS, DeadLetter, Due, Flow, Limits, Outcome, Retry, Task
from .queue.delay_queue import DelayQueue, Scheduled

log = structlog.get_logger("worker")

#: When to look again at a record that another transaction has locked, in ms.
LOOK_AGAIN_MS = 50
#: How often to rerun a transaction after a conflict with another one.
CONFLICT_RETRIES = 3
#: How long to wait for a server beyond the timeout of the transaction.
GRACE_SECONDS = 0.5

Column = sa.Column[Any] | QueryableAttribute[Any]
#: ``handle(connection, ids)`` handles records in the transaction that has locked them.
HandleRecords = Callable[[sa.Connection, Sequence[Any]], object]


class Scheduler(Protocol):
    """Schedules a task after a delay in ms, such as a `BatchScheduler`, which does so in the background."""

    def schedule(self, task_id: str, *, delay_ms: float) -> object: ...


class Settings(Limits, total=False):
    """The settings of a `Flow` that `Records.flow` takes as well."""

    without_redis: Literal["wait", "handle"]
    threads: int | None
    pool: str | None
    batch_size: int
    sweep_seconds: float
    lookahead_seconds: float


class Records:
    """The records of a table that wait for a time, as a flow.

    Works on PostgreSQL and SQLite, whatever the engine's settings. Every wait ends after ``timeout_seconds``,
    except those that the engine's own settings limit: the pool's ``pool_timeout``, the driver's
    ``connect_timeout``, and on SQLite the driver's ``timeout``.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        id: Column,  # noqa: A002  what everybody calls it
        due: Column,
        pending: sa.ColumnElement[bool],
        handle: HandleRecords,
        queue: DelayQueue,
        scheduler: Scheduler | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        """Opens no connection.

        ``id`` is a unique text, integer or UUID column. ``due`` is a timestamp with a time zone; on SQLite it
        is a DateTime, in UTC. ``pending`` is any condition on the row. The sweep needs an index: see `index`.

        ``handle(connection, ids)`` is called in a transaction that has locked these records. They are
        pending, and due by the database's clock. When it returns they must no longer be: make ``pending``
        false, or move ``due`` into the future. It must not end the transaction, which is committed when it
        returns and rolled back when it raises. It may raise `DeadLetter` and other outcomes.

        ``scheduler`` schedules instead of the queue, for instance in the background. ``timeout_seconds`` is
        how long one transaction may take; a longer one counts as an outage.

        Raises TypeError for a column of another type, and ValueError for another database.
        """
        if engine.dialect.name not in _DATABASES or engine.dialect.is_async:
            raise ValueError(
                f"records are in PostgreSQL or SQLite, not in {engine.dialect.name}, and not asyncio's"
            )
        self._engine = engine
        self._id, self._due = _column(id), _column(due)
        self._pending = pending
        self._handle = handle
        self._queue = queue
        self._scheduler = scheduler
        self._timeout_seconds = timeout_seconds
        self._sql = _DATABASES[engine.dialect.name](engine.dialect, self._id, self._due)
        self._statements = _Statements(self._sql, self._id, pending)
        _hook(engine.dialect)

    def index(self, name: str | None = None) -> sa.Index:
        """The index that the sweep reads, on due and id of pending records. It is added to the table's metadata.

        In a migration: ``CREATE INDEX ... ON seats (held_until, id) WHERE status = 'held'``.
        """
        return sa.Index(
            name or f"ix_{self._id.table.name}_{self._due.name}_pending",
            self._due,
            self._id,
            postgresql_where=self._pending,
            sqlite_where=self._pending,
        )

    def flow(self, **settings: Unpack[Settings]) -> Flow:
        """The flow, which has the queue's name. ``settings`` are those of `Flow`, such as ``batch_size``."""
        page_size = settings.get("batch_size", Flow.batch_size)
        # Several workers may get a record at once: the lock on its row decides.
        settings.setdefault("without_redis", "handle")
        return Flow(
            name=self._queue.name,
            handler=self._run,
            sweep=partial(self._sweep, page_size),
            probe=self._probe,
            **settings,
        )

    def after(
        self, seconds: float | sa.ColumnElement[float], *, since: Column | None = None
    ) -> sa.ColumnElement[Any]:
        """A value for the due column: ``seconds`` from now, by the database's clock.

        With ``since``, a column with times, such as the due column itself: ``seconds`` after that time.
        """
        if not isinstance(seconds, sa.ColumnElement):
            seconds = sa.literal(seconds, sa.Double)
        start = None if since is None else _column(since)
        return sa.type_coerce(self._sql.after(seconds, start), self._due.type)

    def schedule(
        self, connection: sa.Connection | Session | scoped_session[Any], *ids: Any
    ) -> None:
        """Schedule these records once the transaction of the connection or session has committed.

        After a rollback, even to a savepoint, nothing is sent. In autocommit mode, too, tasks are sent on
        ``commit()``; without it they are left to the sweep. Call it after writing the records, because it reads
        when they are due. The commit waits for Redis up to the client's timeout, and succeeds in any case:
        tasks that Redis did not take are logged, and the sweep restores them. If a record's task is a dead
        letter, that is logged, too: it is not handled until the letter is requeued or purged.

        Raises TypeError and ValueError for an invalid id.
        """
        if isinstance(connection, Session | scoped_session):
            connection.flush()
            connection = connection.connection(bind_arguments={"clause": self._id.table})
        if None in ids:
            raise TypeError(
                "None is not an id: if the database generates it, flush the record before you schedule it"
            )
        _hook(connection.dialect)
        found = connection.execute(
            self._statements.look, {"ids": [self._sql.parse(self._task_id(each)) for each in ids]}
        )
        read_at = time.monotonic()
        entries = [_Entry(self._send, str(row.key), read_at + row.ms / 1000) for row in found]
        _outbox(connection.info).entries += entries

    def _task_id(self, id_: Any) -> str:
        """The task id of a record's id, which may be of the application's own type."""
        kind = self._id.type
        if isinstance(kind, sa.types.TypeDecorator) and _converts(kind):
            id_ = kind.process_bind_param(id_, self._engine.dialect)
        return str(id_)

    def _send(self, tasks: Sequence[Due]) -> None:
        if self._scheduler is None:
            answers = zip(tasks, self._queue.schedule_many(tasks), strict=True)
            if dead := [task.id for task, answer in answers if answer is Scheduled.DEAD]:
                log.warning(
                    "dead letters stay", queue=self._queue.name, ids=dead[:5], all=len(dead)
                )
            return
        for task in tasks:
            self._scheduler.schedule(task.id, delay_ms=task.delay_ms)

    # -- the flow --------------------------------------------------------------------------

    def _run(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        ids = []
        for task in tasks:
            try:
                ids.append(self._sql.parse(task.id))
            except ValueError as error:
                outcomes[task.id] = DeadLetter(error)
        if ids:
            outcomes |= self._settle(ids)
        return outcomes

    def _settle(self, ids: Sequence[Any]) -> Mapping[str, Outcome]:
        """Run a transaction, and run it again after a conflict with another one."""
        for _ in range(CONFLICT_RETRIES):
            try:
                return self._settle_once(ids)
            except Unavailable as error:
                if _sqlstate(error.__cause__) not in _CONFLICTS:
                    raise
        return self._settle_once(ids)

    def _settle_once(self, ids: Sequence[Any]) -> Mapping[str, Outcome]:
        asked = {str(each) for each in ids}
        with self._transaction(writes=True) as connection:
            locked = connection.execute(self._statements.lock, {"ids": ids}).all()
            if locked:
                self._handle(connection, [row[-1] for row in locked])
            found = connection.execute(self._statements.look, {"ids": ids}).all()
            left = {str(row.key): row.ms for row in found}
            undone = [key for key in (str(row[0]) for row in locked) if left.get(key, 1) <= 0]
            if undone:
                raise RuntimeError(
                    f"handle returned, and {len(undone)} of {len(locked)} records are still pending "
                    f"and due: {', '.join(undone[:5])}"
                )
        # A collation may match a record whose id is spelled differently, and which has no task in this batch.
        return {
            key: Retry(math.ceil(ms) if ms > 0 else LOOK_AGAIN_MS)
            for key, ms in left.items()
            if key in asked
        }

    def _sweep(
        self, page_size: int, after_seconds: float | None, before_seconds: float
    ) -> Iterator[list[Due]]:
        bounds: dict[str, Any] = {"before": before_seconds}
        if after_seconds is not None:
            bounds["after"] = after_seconds
        last: sa.Row[Any] | None = None
        while True:
            if last is not None:
                bounds |= {"last_due": last.due, "last_id": last.key}
            # No transaction is open while a page is processed.
            with self._transaction() as connection:
                statement = self._statements.page(bounds)
                page = connection.execute(statement, {"page_size": page_size, **bounds}).all()
            yield [Due(str(row.key), row.ms) for row in page]
            if len(page) < page_size:
                return
            last = page[-1]

    def _probe(self) -> None:
        with self._transaction() as connection:
            read_only = connection.execute(self._statements.read_only).scalar_one()
            connection.execute(self._statements.nothing)  # raises if there is no such table
        if read_only:
            self._engine.dispose()  # the next connection may find the new primary
            raise Unavailable("The database is read-only.")

    # -- transactions ----------------------------------------------------------------------

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sa.Connection]:
        """One transaction, whatever the engine's isolation level. Raises Unavailable."""
        with self._outages(), self._engine.connect() as connection:
            self._sql.leave_autocommit(connection)
            with (
                self._sql.deadline(connection, self._timeout_seconds + GRACE_SECONDS),
                connection.begin(),
            ):
                self._sql.begin(connection, self._timeout_seconds, writes=writes)
                yield connection

    @contextmanager
    def _outages(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeout) as error:
            if not _is_transient(error):
                raise
            if _sqlstate(error) == _READ_ONLY:
                self._engine.dispose()  # a demoted primary keeps its connections
            raise Unavailable(str(getattr(error, "orig", error))) from error


def _column(column: Column) -> sa.Column[Any]:
    """The table's column, given as such or as an attribute of a mapped class."""
    found: Any = column.__clause_element__() if isinstance(column, QueryableAttribute) else column
    if not isinstance(found, sa.Column) or not isinstance(found.table, sa.Table):
        raise TypeError(f"{column} is not a column of a table")
    return found.table.c[found.key]


# -- statements ----------------------------------------------------------------------------


class _Statements:
    """Every statement on the user's table. None of their plans depends on statistics."""

    def __init__(
        self, sql: "_PostgreSQL | _SQLite", id_: sa.Column[Any], pending: sa.ColumnElement[bool]
    ) -> None:
        self._sql = sql
        ids = sql.among("ids")
        # Opaque, so that the partial index does not qualify: without statistics a planner would rather scan
        # that index than look up the ids.
        opaque = sa.case((pending, sa.literal_column("1")), else_=sa.literal_column("0")) == (
            sa.literal_column("1")
        )
        #: Lock the records that are pending and due, among some ids and in id order. Records that another
        #: transaction has locked are skipped. The last column is the id with the type of the user's column.
        self.lock = (
            sa.select(sql.id, *([id_] if sql.id.type is not id_.type else []))
            .where(ids, opaque, sql.due <= sql.now)
            .order_by(sql.id)
            .with_for_update(key_share=True, skip_locked=True, of=id_.table)
        )
        #: Find the records that are pending, among some ids, and in how many ms each is due. Records whose due
        #: time cannot be scheduled, such as NULL and infinity, count as not pending.
        self.look = sa.select(sql.id.label("key"), sql.ms.label("ms")).where(
            ids,
            opaque,
            sql.is_time,
            sql.due <= sql.after(sa.literal(float(MAX_SECONDS), sa.Double)),
        )
        #: Whether this server takes no writes.
        self.read_only = sa.select(sql.read_only)
        self.nothing = sa.select(sql.id, sql.due).where(sa.false())
        # With literals, because only then does a planner see that the partial index qualifies.
        self._pending: sa.ColumnElement[bool] = replacement_traverse(pending, {}, _literal)

    def page(self, bounds: Collection[str]) -> sa.Select[Any]:
        """Select pending records in order of due time and id, within the bounds that are named."""
        sql = self._sql
        before = sql.after(sa.bindparam("before", type_=sa.Double))
        page = (
            sa.select(sql.id.label("key"), sql.due_as_text.label("due"), sql.ms.label("ms"))
            .where(self._pending, sql.is_time, sql.due <= before)
            .order_by(sql.due, sql.id)
            .limit(sa.bindparam("page_size", type_=sa.Integer, literal_execute=True))
        )
        if "after" in bounds:  # a null bound would hide the index
            page = page.where(sql.due > sql.after(sa.bindparam("after", type_=sa.Double)))
        if "last_id" in bounds:
            last_id = sa.bindparam("last_id", type_=sql.id.type)
            page = page.where(sa.tuple_(sql.due, sql.id) > sa.tuple_(sql.last_due, last_id))
        return page


def _literal(element: Any, **_kw: Any) -> Any:
    return element.render_literal_execute() if isinstance(element, sa.BindParameter) else None


# -- PostgreSQL and SQLite -----------------------------------------------------------------

#: Sets timeouts for a transaction, in ms, where the engine's connections have none.
_BOUNDED = ", ".join(
    f"set_config('{name}', CASE current_setting('{name}') WHEN '0' THEN CAST(:ms AS text)"
    f" ELSE current_setting('{name}') END, true)"
    for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
)
#: Makes the planner read a page by index, in the index's order. For a table that was never analysed it
#: guesses, and may guess that reading and sorting the whole table costs less.
_BY_INDEX = ", ".join(
    f"set_config('{name}', 'off', true)" for name in ("enable_seqscan", "enable_bitmapscan", "jit")
)
_BEGIN_WRITING = sa.text(f"SELECT {_BOUNDED}")
#: Due times are read as text.
_AS_ISO = "set_config('DateStyle', 'ISO', true)"
_BEGIN_READING = sa.text(f"SELECT {_BOUNDED}, {_BY_INDEX}, {_AS_ISO}")


class _PostgreSQL:
    def __init__(self, dialect: Dialect, id_: sa.Column[Any], due: sa.Column[Any]) -> None:
        id_type, due_type = _plain_type(id_, dialect), _plain_type(due, dialect)
        if not isinstance(due_type, sa.DateTime) or not due_type.timezone:
            raise TypeError(f"{due} must be TIMESTAMP(timezone=True), not {due_type!r}")
        if isinstance(id_type, sa.CHAR):
            raise TypeError(
                f"{id_} must be Text or Uuid, not {id_type!r}, which pads what it stores"
            )
        item, self.parse = _id_type(id_, id_type)
        self._ids = _IdList(item)
        self.id, self.due = sa.type_coerce(id_, id_type), sa.type_coerce(due, due_type)
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

    def begin(self, connection: sa.Connection, timeout_seconds: float, *, writes: bool) -> None:
        """Limit every wait of a transaction."""
        settings = _BEGIN_WRITING if writes else _BEGIN_READING
        connection.execute(settings, {"ms": str(round(1000 * timeout_seconds))})

    def leave_autocommit(self, connection: sa.Connection) -> None:
        """Make the next transaction a real one, whatever the engine's isolation level."""
        if connection.dialect.detect_autocommit_setting(_driver(connection)):
            connection.execution_options(isolation_level="READ COMMITTED")

    @contextmanager
    def deadline(self, connection: sa.Connection, seconds: float) -> Iterator[None]:
        """Close the connection to a server that takes longer.

        A frozen server cannot end a statement, but its kernel keeps acknowledging packets, so neither the
        server's timeouts nor those of TCP ever fire.
        """
        driver = _driver(connection)
        if not hasattr(driver, "fileno"):
            yield
            return
        with socket.socket(fileno=os.dup(driver.fileno())) as line:

            def hang_up() -> None:
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

            timer = threading.Timer(seconds, hang_up)
            timer.daemon = True
            timer.start()
            try:
                yield
            finally:
                timer.cancel()


class _IdList(sa.types.TypeDecorator[Sequence[Any]]):
    """An array that is sent as text, because drivers check the items of an array one at a time."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, item: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def process_bind_param(self, value: Sequence[Any] | None, _dialect: Dialect) -> str:
        items = [str(each) for each in value or ()]
        if isinstance(self.item, sa.Text):
            items = [f'"{each.translate(_ESCAPED)}"' for each in items]
        return f"{{{','.join(items)}}}"


_ESCAPED = str.maketrans({'"': r"\"", "\\": r"\\"})

#: How SQLAlchemy writes a DateTime on SQLite, whose clock has milliseconds.
_SQLITE_TIME = "%Y-%m-%d %H:%M:%f000"


class _SQLite:
    def __init__(self, dialect: Dialect, id_: sa.Column[Any], due: sa.Column[Any]) -> None:
        id_type, due_type = _plain_type(id_, dialect), _plain_type(due, dialect)
        if not isinstance(due_type, sa.DateTime):
            raise TypeError(f"{due} must be a DateTime, not {due_type!r}")
        _, self.parse = _id_type(id_, id_type)
        if isinstance(id_type, sa.Uuid) and id_type.as_uuid:
            text = self.parse
            self.parse = lambda task_id: UUID(text(task_id))
        self._table = id_.table
        self.id, self.due = sa.type_coerce(id_, id_type), sa.type_coerce(due, sa.String())
        self.now = sa.func.strftime(_SQLITE_TIME, "now", type_=sa.String())
        self.due_as_text = self.due
        self.last_due = sa.bindparam("last_due", type_=sa.String())
        days = sa.func.julianday(self.due) - sa.func.julianday("now")
        self.ms = sa.type_coerce(days * 86_400_000, sa.Double)
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

    def begin(self, connection: sa.Connection, _timeout_seconds: float, *, writes: bool) -> None:
        """Take the write lock first: a transaction that begins with a read fails at once if another one writes."""
        driver = _driver(connection)
        if getattr(driver, "autocommit", None) is True:
            raise ValueError("with autocommit=True, SQLite's driver commits nothing: leave it out")
        if not writes:
            return
        if driver.in_transaction:  # begun by a listener of the engine's
            connection.execute(sa.delete(self._table).where(sa.false()))
        else:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def leave_autocommit(self, connection: sa.Connection) -> None:
        """Nothing to do: `begin` starts a real transaction."""

    def deadline(self, _connection: sa.Connection, _seconds: float) -> AbstractContextManager[None]:
        """SQLite waits for nothing but its lock, which the driver's own ``timeout`` limits."""
        return nullcontext()


_DATABASES: dict[str, type[_PostgreSQL | _SQLite]] = {
    "postgresql": _PostgreSQL,
    "sqlite": _SQLite,
}


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


def _plain_type(column: sa.Column[Any], dialect: Dialect) -> sa.types.TypeEngine[Any]:
    """A column's type in this database, without the conversions of an application's own type."""
    kind = column.type
    return kind.load_dialect_impl(dialect) if isinstance(kind, sa.types.TypeDecorator) else kind


def _converts(kind: sa.types.TypeDecorator[Any]) -> bool:
    return type(kind).process_bind_param is not sa.types.TypeDecorator.process_bind_param


def _id_type(
    column: sa.Column[Any], kind: sa.types.TypeEngine[Any]
) -> tuple[sa.types.TypeEngine[Any], Callable[[str], Any]]:
    """The type of the ids in a list, and a function that parses a task id or raises ValueError.

    A record has exactly one task id, so another spelling of the same id is refused.
    """
    if isinstance(kind, sa.Uuid):
        return postgresql.UUID(as_uuid=False), _uuid
    if isinstance(kind, sa.Integer):
        return sa.BigInteger(), _int64
    if isinstance(kind, sa.String) and not isinstance(kind, sa.Enum):
        return sa.Text(), _plain_text
    raise TypeError(f"{column} must be text, an integer or a UUID, not {kind!r}")


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _uuid(text: str) -> str:
    if not _UUID.fullmatch(text):
        raise ValueError("its id is not a UUID in its usual form")
    return text


def _int64(text: str) -> int:
    number = int(text)
    if str(number) != text or not -(2**63) <= number < 2**63:
        raise ValueError("its id is not a 64-bit integer in its usual form")
    return number


def _plain_text(text: str) -> str:
    text.encode()  # raises for surrogates, which stand for bytes that are not UTF-8
    if "\0" in text:
        raise ValueError("its id contains NUL")
    return text


# -- errors --------------------------------------------------------------------------------

#: A write on a server that takes none: a standby, or a primary that was demoted.
_READ_ONLY = "25006"
#: Serialization failure and deadlock: PostgreSQL rolled everything back, and a retry may succeed.
_CONFLICTS = ("40001", "40P01")
#: Connection lost, insufficient resources, operator intervention (shutdown, start-up, statement timeout), idle
#: in transaction, lock timeout.
_TRANSIENT_SQLSTATES = ("08", "53", "57", "25P03", "55P03", _READ_ONLY, *_CONFLICTS)
#: BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN
_TRANSIENT_SQLITE = {5, 6, 8, 10, 13, 14}


def _is_transient(error: DBAPIError | PoolTimeout) -> bool:
    """Whether the database is at fault and the same statement may succeed later."""
    if isinstance(error, PoolTimeout) or error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _TRANSIENT_SQLITE
    state = _sqlstate(error)
    if state is None:  # no answer at all, so the connection failed
        return isinstance(error, sa.exc.OperationalError)
    return state.startswith(_TRANSIENT_SQLSTATES)


def _sqlstate(error: BaseException | None) -> str | None:
    """PostgreSQL's error code, if there is one."""
    original = getattr(error, "orig", None)
    return getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)


# -- after a commit ------------------------------------------------------------------------

#: Where a database connection keeps its `_Outbox`.
_OUTBOX = "worker.records"
_hooking = threading.Lock()


class _Entry(NamedTuple):
    send: Callable[[Sequence[Due]], None]
    task_id: str
    #: On the monotonic clock, in seconds.
    due_at: float


@dataclass
class _Outbox:
    """The tasks to schedule when a transaction commits."""

    entries: list[_Entry] = field(default_factory=list)
    #: How many entries there were at each savepoint.
    savepoints: dict[str, int] = field(default_factory=dict)


def _outbox(info: dict[Any, Any]) -> _Outbox:
    outbox: _Outbox = info.setdefault(_OUTBOX, _Outbox())
    return outbox


def _hook(dialect: Dialect) -> None:
    """Make a dialect send the tasks that a transaction scheduled, once it has committed.

    SQLAlchemy's own event comes before the commit. A task sent then might run before its record is visible,
    and the commit may still fail.
    """
    with _hooking:
        if _OUTBOX in vars(dialect):
            return
        commit, rollback = dialect.do_commit, dialect.do_rollback
        savepoint, rollback_to = dialect.do_savepoint, dialect.do_rollback_to_savepoint

        def do_commit(connection: PoolProxiedConnection) -> None:
            commit(connection)
            _send(_emptied(connection))

        def do_rollback(connection: PoolProxiedConnection) -> None:
            _emptied(connection)
            rollback(connection)

        def do_savepoint(connection: sa.Connection, name: str) -> None:
            outbox = _outbox(connection.info)
            outbox.savepoints[name] = len(outbox.entries)
            savepoint(connection, name)

        def do_rollback_to_savepoint(connection: sa.Connection, name: str) -> None:
            outbox = _outbox(connection.info)
            del outbox.entries[outbox.savepoints.get(name, 0) :]
            rollback_to(connection, name)

        hooks = (do_commit, do_rollback, do_savepoint, do_rollback_to_savepoint)
        vars(dialect).update({_OUTBOX: True, **{hook.__name__: hook for hook in hooks}})


def _emptied(connection: PoolProxiedConnection) -> list[_Entry]:
    """Take everything out of the outbox of a transaction that ends."""
    try:
        outbox: _Outbox | None = connection.info.pop(_OUTBOX, None)
    except NotImplementedError:
        # The first connection of an engine, which it only inspects, is not in its pool.
        return []
    return outbox.entries if outbox else []


def _send(entries: Sequence[_Entry]) -> None:
    """Schedule the tasks of a committed transaction. Raises nothing, because the commit has succeeded."""
    now = time.monotonic()
    for send in dict.fromkeys(entry.send for entry in entries):
        own = {entry.task_id: entry.due_at for entry in entries if entry.send == send}
        try:
            send([Due(task_id, 1000 * (due_at - now)) for task_id, due_at in own.items()])
        except FAILURES as error:  # whatever failed, the sweep restores them
            log.warning("tasks left to the sweep", tasks=len(own), error=described(error))
