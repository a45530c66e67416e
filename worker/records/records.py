"""The records of a table that wait for a time, as a flow: its sweep, its probe and its handler."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack

import sqlalchemy as sa

from ..backoff import LOOK_AGAIN
from ..findings import Checks
from ..flow import (
    CommonSettings,
    DeadLetter,
    Due,
    Failed,
    Flow,
    NoOp,
    NotDue,
    Outcome,
    Probe,
    Retry,
    Task,
)
from ..queue.delay_queue import DelayQueue
from .outages import retried
from .pauses import TablePauses
from .statements import RecordStatements
from .transactions import Transactions

#: A column of a table, or an attribute of a mapped class.
Column = sa.SQLColumnExpression[Any]
#: ``handle(connection, ids)`` handles records in the transaction that has locked them.
HandleRecords = Callable[[sa.Connection, Sequence[Any]], object]
#: ``decide(connection, tasks)`` is one statement that handles what is pending and due among these records. It gets
#: a mapping from record ids to tasks, and returns one from the ids that it left to when to look again, in ms, or
#: to an outcome.
DecideRecords = Callable[[sa.Connection, Mapping[Any, Task]], Mapping[Any, float | Outcome] | None]


class FlowSettings(CommonSettings, total=False):
    """The settings of a `Flow` that `Records.flow` takes as well."""

    without_redis: Literal["wait", "handle"]
    checks: Checks | None
    held: Callable[[], str] | None
    tick: Callable[[], object] | None
    threads: int | None
    batch_size: int
    claims_ahead: bool
    sweep_seconds: float
    lookahead_seconds: float


class Records:
    """The records of a table that wait for a time, as a flow.

    Works on PostgreSQL, whatever the engine's settings. Every wait ends after ``timeout_seconds``, except
    those that the engine's own settings limit: the pool's ``pool_timeout`` and the driver's ``connect_timeout``.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        id: Column,  # noqa: A002  its usual name
        due: Column,
        pending: sa.ColumnElement[bool],
        handle: HandleRecords | None = None,
        decide: DecideRecords | None = None,
        queue: DelayQueue,
        timeout_seconds: float = 10.0,
        pauses: sa.Table | None = None,
    ) -> None:
        """Opens no connection.

        ``id`` is a unique text, integer or UUID column, ``due`` a timestamp with a time zone; neither has a type
        of the application's own.
        ``pending`` is any condition on the row. The sweep needs an index: see `index`.

        ``handle(connection, ids)`` is called in a transaction that has locked these records. They are
        pending, and due by the database's clock. When it returns they must no longer be: make ``pending``
        false, or move ``due`` into the future. It must not end the transaction, which is committed when it
        returns and rolled back when it raises. It may raise `DeadLetter` and other outcomes. Unless the engine sets
        a ``lock_timeout``, PostgreSQL waits 0.25 s for each lock.

        ``decide(connection, tasks)`` takes its place where one statement can do everything: nothing runs before
        it, nothing is locked, and the statement is committed by itself, in one round trip. It must handle only
        what is pending and due by the database's clock, and may be repeated. ``tasks`` maps the records' ids to
        their tasks; the probe passes none, to see whether the statement can be run. It returns what it left: a
        mapping from id to the milliseconds until to look again (0 or less for a record that is locked), or to an
        outcome, such as `NoOp` for one that is not pending. The database's own timeouts apply to it.

        ``timeout_seconds`` is how long one transaction may take: a longer one counts as an outage, unless it was the
        handler that did something else meanwhile, which fails the task. ``pauses`` is a table in the same
        database, such as `pauses_table` makes: with it a pause of the queue holds whatever happens to Redis.

        Raises TypeError for a column of another type, and ValueError for another database, or unless there is
        either ``handle`` or ``decide``.
        """
        self._engine = engine
        self._id, self._due = _column(id), _column(due)
        self._pending = pending
        #: Schedule a record on it once it is committed. What Redis never heard of, the sweep finds.
        self.queue = queue
        self._transactions = Transactions(engine, timeout_seconds)
        self._pauses = None if pauses is None else TablePauses(engine, pauses, queue.name)
        self._statements = RecordStatements(self._id, self._due, pending)
        self._handle_batch: Callable[[Mapping[Any, Task]], dict[str, Outcome]]
        if handle is not None and decide is None:
            self._handle_batch = partial(self._locked, handle)
        elif decide is not None and handle is None:
            self._handle_batch = partial(self._decided, decide)
        else:
            raise ValueError("records need either handle or decide")

    def index(self, name: str | None = None) -> sa.Index:
        """The index that the sweep reads, on due and id of pending records. It is added to the table's metadata.

        In a migration: ``CREATE INDEX ... ON seats (held_until, id) WHERE status = 'held'``.
        """
        return sa.Index(
            name or f"ix_{self._id.table.name}_{self._due.name}_pending",
            self._due,
            self._id,
            postgresql_where=self._pending,
        )

    def flow(self, *, probe: Probe | None = None, **settings: Unpack[FlowSettings]) -> Flow:
        """The flow, which has the queue's name. ``settings`` are those of `Flow`, such as ``batch_size``.

        ``probe`` is called before the records' own, which handles a batch without records: it needs the same rights,
        and a server that takes writes.
        """
        page_size = settings.get("batch_size", Flow.batch_size)
        # Several workers may get a record at once: the lock on its row decides.
        settings.setdefault("without_redis", "handle")
        return Flow(
            name=self.queue.name,
            handler=self._handle_tasks,
            sweep=partial(self._sweep, page_size),
            probe=partial(self._probe, probe),
            pauses=self._pauses,
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
        return sa.type_coerce(self._statements.after(seconds, start), self._due.type)

    # -- the flow --------------------------------------------------------------------------

    def _handle_tasks(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        batch: dict[Any, Task] = {}
        for task in tasks:
            try:
                batch[self._statements.parse(task.id)] = task
            except ValueError as error:
                outcomes[task.id] = DeadLetter(error)
        if batch:
            outcomes |= self._handle_batch(batch)
        return outcomes

    @retried
    def _decided(self, decide: DecideRecords, batch: Mapping[Any, Task]) -> dict[str, Outcome]:
        """Run the application's one statement."""
        with self._transactions.autocommit() as connection:
            left = decide(connection, batch)
        if left is not None and not isinstance(left, Mapping):
            wrong = TypeError(f"decide returned a {type(left).__name__}, not a mapping")
            return {task.id: Failed(wrong) for task in batch.values()}
        return {str(id_): _outcome(when, batch.get(id_)) for id_, when in (left or {}).items()}

    @retried
    def _locked(self, handle: HandleRecords, batch: Mapping[Any, Task]) -> dict[str, Outcome]:
        """Lock the records that are pending and due, have them handled, and look at what is left."""
        ids = [*batch]
        asked = {str(id_): task for id_, task in batch.items()}
        with self._transactions.begin() as connection:
            locked = connection.execute(self._statements.lock, {"ids": ids}).all()
            if locked:
                handle(connection, [row[0] for row in locked])
            found = connection.execute(self._statements.look, {"ids": ids}).all()
            handled = [str(row[0]) for row in locked]
            left = {str(row.key): row.ms for row in found}
            undone = [key for key in handled if left.get(key, 1) <= 0]
            if undone:
                raise RuntimeError(
                    f"handle returned, and {len(undone)} of {len(locked)} records are still pending "
                    f"and due: {', '.join(undone[:5])}"
                )
        # A collation may match a record whose id is spelled differently, and which has no task in this batch.
        looks = {key: _look_again(ms, asked[key]) for key, ms in left.items() if key in asked}
        return {**dict.fromkeys(asked.keys() - handled, NoOp()), **looks}

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
            with self._transactions.begin(by_index=True) as connection:
                statement = self._statements.page(frozenset(bounds))
                page = connection.execute(statement, {"page_size": page_size, **bounds}).all()
            yield [Due(str(key), ms) for key, _, ms in page]
            if len(page) < page_size:
                return
            last = page[-1]

    def _probe(self, before: Probe | None) -> None:
        if before is not None:
            before()
        self._handle_batch({})


def _outcome(left: Any, task: Task | None) -> Outcome:
    """What becomes of a record that the application's statement left."""
    if isinstance(left, Outcome):
        return left
    try:
        return _look_again(left, task)
    except (TypeError, ValueError, OverflowError):
        return Failed(
            TypeError(f"decide returned {left!r}, which is neither milliseconds nor an outcome")
        )


def _look_again(ms: float, task: Task | None) -> Retry:
    """When to look at a record again. One that is due was locked by another transaction."""
    if ms <= 0:
        return Retry(1000 * LOOK_AGAIN(task.attempt if task else 1))
    return NotDue(math.ceil(ms))  # raises for NaN


def _column(column: Column) -> sa.Column[Any]:
    """The column of the table. Raises TypeError for anything else."""
    found: Any = getattr(column, "__clause_element__", lambda: column)()
    if not isinstance(found, sa.Column) or not isinstance(found.table, sa.Table):
        raise TypeError(f"{column} is not a column of a table")
    return found.table.c[found.key]
