"""Schedules the tasks of a transaction once it has committed."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.pool import PoolProxiedConnection

from ..errors import described, fatal
from ..flow import Due
from ..log import Reminder, log

#: Where a database connection keeps the tasks to schedule when its transaction commits.
_OUTBOX = "worker.records"
_hooking = threading.Lock()


class OutboxTask(NamedTuple):
    """A task to schedule after a commit."""

    send: Callable[[Sequence[Due]], None]
    task_id: str
    #: On the monotonic clock, in seconds.
    due_at: float


def add(connection: sa.Connection, entries: Iterable[OutboxTask]) -> None:
    """Send these tasks once the connection's transaction has committed; never after a rollback."""
    hook(connection.dialect)
    connection.info.setdefault(_OUTBOX, []).extend(entries)


def hook(dialect: Dialect) -> None:
    """Make a dialect send the tasks that a transaction scheduled, once it has committed.

    SQLAlchemy's own event comes before the commit. A task sent then might run before its record is visible,
    and the commit may still fail.
    """
    with _hooking:
        if _OUTBOX in vars(dialect):
            return
        commit, rollback = dialect.do_commit, dialect.do_rollback
        failure = Reminder()

        def do_commit(connection: PoolProxiedConnection) -> None:
            commit(connection)
            _send(_emptied(connection), failure)

        def do_rollback(connection: PoolProxiedConnection) -> None:
            _emptied(connection)
            rollback(connection)

        vars(dialect).update({_OUTBOX: True, "do_commit": do_commit, "do_rollback": do_rollback})


def _emptied(connection: PoolProxiedConnection) -> list[OutboxTask]:
    """Take everything out of the outbox of a transaction that ends."""
    try:
        entries: list[OutboxTask] = connection.info.pop(_OUTBOX, [])
    except NotImplementedError:
        # The first connection of an engine, which it only inspects, is not in its pool.
        return []
    return entries


def _send(entries: Sequence[OutboxTask], failure: Reminder) -> None:
    """Schedule the tasks of a committed transaction. Raises nothing, because the commit has succeeded."""
    now = time.monotonic()
    for send in dict.fromkeys(entry.send for entry in entries):
        own = {entry.task_id: entry.due_at for entry in entries if entry.send == send}
        try:
            send([Due(task_id, 1000 * (due_at - now)) for task_id, due_at in own.items()])
        except fatal():
            raise
        except BaseException as error:  # noqa: BLE001  whatever failed, the sweep restores them
            if failure.is_due():
                log.warning("tasks left to the sweep", tasks=len(own), error=described(error))
