"""Keeps pauses in a table, so that they hold whatever happens to Redis."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from ..errors import Unavailable
from ..pauses import Pause
from .transactions import Transactions

#: How long one look may take.
TIMEOUT_SECONDS = 2.0


def pauses_table(metadata: sa.MetaData, name: str = "queue_pauses") -> sa.Table:
    """A table for the pauses of any number of queues, to be created or migrated with the application's own::

    pauses = pauses_table(metadata)
    Records(engine, ..., pauses=pauses)
    """
    return sa.Table(
        name,
        metadata,
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("paused_by", sa.Text, nullable=False),
        sa.Column("paused_at", sa.TIMESTAMP(timezone=True), nullable=False),
    )


@contextmanager
def _unknown() -> Iterator[None]:
    """Raises Unavailable for whatever the database answers instead, such as that a right is missing."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise Unavailable(str(error.orig).partition("\n")[0]) from error


class TablePauses:
    """The pause of one queue, in a table like `pauses_table`'s. Each method raises Unavailable.

    `Records` have one already; this is for a flow whose sweep is written by hand::

        Flow(name="mails", ..., pauses=TablePauses(engine, pauses, "mails"))
    """

    def __init__(self, engine: sa.Engine, table: sa.Table, queue: str) -> None:
        """Opens no connection. Raises ValueError for another database than PostgreSQL."""
        columns = table.c
        self._transactions = Transactions(engine, TIMEOUT_SECONDS)
        row = {"queue": queue, "paused_at": sa.func.current_timestamp()}
        inserted = insert(table).values(row)
        self._begin = inserted.on_conflict_do_update(
            index_elements=[columns.queue],
            set_={name: inserted.excluded[name] for name in ("reason", "paused_by", "paused_at")},
        )
        own = columns.queue == queue
        # A time as a number is read alike in every session.
        seconds = sa.extract("epoch", columns.paused_at).label("seconds")
        self._find = sa.select(columns.reason, columns.paused_by, seconds).where(own)
        self._end = sa.delete(table).where(own)

    def find(self) -> Pause | None:
        """The pause; None if the queue is not paused."""
        with _unknown(), self._transactions.autocommit() as connection:
            row = connection.execute(self._find).one_or_none()
        if row is None:
            return None
        at = datetime.fromtimestamp(float(row.seconds), UTC)
        return Pause(row.reason, row.paused_by, at)

    def begin(self, reason: str, by: str) -> None:
        """Pause, or change the reason."""
        with _unknown(), self._transactions.begin() as connection:
            connection.execute(self._begin, {"reason": reason, "paused_by": by})

    def end(self) -> None:
        """End the pause, if there is one."""
        with _unknown(), self._transactions.begin() as connection:
            connection.execute(self._end)
