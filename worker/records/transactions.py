"""Transactions in which every wait ends."""

from collections.abc import Iterator
from contextlib import contextmanager

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

    @contextmanager
    def begin(self, *, writes: bool = False) -> Iterator[sa.Connection]:
        """One transaction."""
        with unavailable(self._engine), self._engine.connect() as connection:
            self._sql.leave_autocommit(connection)
            with (
                self._sql.deadline(connection, self._timeout_seconds + GRACE_SECONDS),
                connection.begin(),
            ):
                self._sql.begin(connection, self._timeout_seconds, writes=writes)
                yield connection

    @contextmanager
    def autocommit(self) -> Iterator[sa.Connection]:
        """Each statement is committed by itself."""
        seconds = self._timeout_seconds + GRACE_SECONDS
        with (
            unavailable(self._engine),
            self._engine.connect() as connection,
            self._sql.deadline(connection, seconds),
            self._sql.autocommit(connection),
        ):
            yield connection
