"""Transactions in which every wait ends."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import sqlalchemy as sa

from ..errors import Unavailable
from .databases import PostgreSQL, SQLite
from .outages import IDLE_IN_TRANSACTION, sqlstate, unavailable

#: How long to wait for a server beyond the timeout of the transaction.
GRACE_SECONDS = 0.5


class Transactions:
    """Transactions of an engine, whatever its isolation level. They raise Unavailable, and TimeoutError if the block
    itself took longer than the timeout, not the database.
    """

    def __init__(self, engine: sa.Engine, sql: PostgreSQL | SQLite, timeout_seconds: float) -> None:
        self._engine = engine
        self._sql = sql
        self._timeout_seconds = timeout_seconds

    def write(self) -> AbstractContextManager[sa.Connection]:
        """One transaction."""
        return self._within(self._sql.writing)

    def read(self) -> AbstractContextManager[sa.Connection]:
        """For statements that read pages by index, and need not see the same state."""
        return self._within(self._sql.reading)

    def autocommit(self) -> AbstractContextManager[sa.Connection]:
        """Each statement is committed by itself."""
        return self._within(self._sql.autocommit)

    @contextmanager
    def _within(
        self, transaction: Callable[[sa.Connection, float], AbstractContextManager[None]]
    ) -> Iterator[sa.Connection]:
        seconds, watch = self._timeout_seconds, None
        try:
            with (
                unavailable(self._engine),
                self._engine.connect() as connection,
                self._sql.deadline(connection, seconds + GRACE_SECONDS) as watch,
                transaction(connection, seconds),
            ):
                yield connection
        except Unavailable as error:
            if sqlstate(error.__cause__) == IDLE_IN_TRANSACTION or (watch and watch.was_idle):
                late = f"The transaction was idle for too long (timeout_seconds: {seconds:g})."
                raise TimeoutError(late) from error
            raise
