"""Schedules the tasks of a transaction once it has committed."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import PoolProxiedConnection

from ..errors import FATAL, described
from ..flow import Due
from ..log import Reminder, log

#: Where a database connection keeps its `_Outbox`.
_OUTBOX = "worker.records"
_hooking = threading.Lock()


class OutboxTask(NamedTuple):
    """A task to schedule after a commit."""

    send: Callable[[Sequence[Due]], None]
    task_id: str
    #: On the monotonic clock, in seconds.
    due_at: float


@dataclass
class _Outbox:
    """The tasks to schedule when a transaction commits."""

    entries: list[OutboxTask] = field(default_factory=list)
    #: How many entries there were at each savepoint.
    savepoints: dict[str, int] = field(default_factory=dict)


def _outbox(info: dict[Any, Any]) -> _Outbox:
    outbox: _Outbox = info.setdefault(_OUTBOX, _Outbox())
    return outbox


def add(connection: sa.Connection, entries: Iterable[OutboxTask]) -> None:
    """Send these tasks once the connection's transaction has committed; never after a rollback."""
    hook(connection.dialect)
    _outbox(connection.info).entries += entries


def hook(dialect: Dialect) -> None:
    """Make a dialect send the tasks that a transaction scheduled, once it has committed.

    SQLAlchemy's own event comes before the commit. A task sent then might run before its record is visible,
    and the commit may still fail.
    """
    with _hooking:
        if _OUTBOX in vars(dialect):
            return
        commit, rollback = dialect.do_commit, dialect.do_rollback
        savepoint, rollback_to = dialect.do_savepoint, dialect.do_rollback_to_savepoint
        failure = Reminder()

        def do_commit(connection: PoolProxiedConnection) -> None:
            commit(connection)
            _send(_emptied(connection), failure)

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


def _emptied(connection: PoolProxiedConnection) -> list[OutboxTask]:
    """Take everything out of the outbox of a transaction that ends."""
    try:
        outbox: _Outbox | None = connection.info.pop(_OUTBOX, None)
    except NotImplementedError:
        # The first connection of an engine, which it only inspects, is not in its pool.
        return []
    return outbox.entries if outbox else []


def _send(entries: Sequence[OutboxTask], failure: Reminder) -> None:
    """Schedule the tasks of a committed transaction. Raises nothing, because the commit has succeeded."""
    now = time.monotonic()
    for send in dict.fromkeys(entry.send for entry in entries):
        own = {entry.task_id: entry.due_at for entry in entries if entry.send == send}
        try:
            send([Due(task_id, 1000 * (due_at - now)) for task_id, due_at in own.items()])
        except FATAL:
            raise
        except BaseException as error:  # noqa: BLE001  whatever failed, the sweep restores them
            if failure.is_due():
                log.warning("tasks left to the sweep", tasks=len(own), error=described(error))
