"""Transactions in which every wait ends."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import sqlalchemy as sa

from .databases import PostgreSQL, SQLite
from .outages import unavailable

#: How long to wait for a server beyond the timeout of the transaction.
GRACE_SECONDS = 0.5


class Transactions:
    """Transactions of an engine, whatever its isolation level. They raise Unavailable."""

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
        seconds = self._timeout_seconds
        with (
            unavailable(self._engine),
            self._engine.connect() as connection,
            self._sql.deadline(connection, seconds + GRACE_SECONDS),
            transaction(connection, seconds),
        ):
            yield connection
