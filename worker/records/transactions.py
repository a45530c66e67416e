"""Transactions in which every wait ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import Unavailable
from .outages import IDLE_IN_TRANSACTION, READ_ONLY, is_transient, sqlstate
from .watchdog import Watchdog

_WATCHDOG = Watchdog()

#: How long to wait for a server beyond the timeout of the transaction.
GRACE_SECONDS = 0.5

#: How long a statement waits for one lock at most. A locked row holds up its batch until the record at fault is
#: found, which takes one such wait for each halving.
LOCK_MS = 250
_MS = "CAST(:ms AS text)"
#: Sets timeouts for a transaction, in ms, where the engine's connections have none.
_BOUNDED = ", ".join(
    f"set_config('{name}', CASE current_setting('{name}') WHEN '0' THEN {ms}"
    f" ELSE current_setting('{name}') END, true)"
    for name, ms in {
        "lock_timeout": f"CAST(LEAST(CAST({_MS} AS integer), {LOCK_MS}) AS text)",
        "statement_timeout": _MS,
        "idle_in_transaction_session_timeout": _MS,
    }.items()
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


class Transactions:
    """Transactions of an engine, whatever its isolation level. They raise Unavailable, and TimeoutError if the block
    itself took longer than the timeout, not the database.
    """

    def __init__(self, engine: sa.Engine, timeout_seconds: float) -> None:
        """Raises ValueError for another database."""
        if engine.dialect.name != "postgresql" or engine.dialect.is_async:
            raise ValueError(
                f"records are in PostgreSQL, not in {engine.dialect.name}, and not asyncio's"
            )
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._ms = {"ms": str(round(1000 * timeout_seconds))}

    @contextmanager
    def begin(self, *, by_index: bool = False) -> Iterator[sa.Connection]:
        """One transaction whose every wait is limited; for reading pages, ``by_index``."""
        with self._connected() as connection:
            _leave_autocommit(connection)
            with connection.begin():
                connection.execute(_BEGIN_READING if by_index else _BEGIN_WRITING, self._ms)
                yield connection

    @contextmanager
    def autocommit(self) -> Iterator[sa.Connection]:
        """Each statement is committed by itself.

        The driver is told, not SQLAlchemy, which would take as long as a small statement, and which an engine
        with its own way to begin a transaction would undo.
        """
        with self._connected() as connection, connection.begin():
            driver = _driver(connection)
            driver.commit()  # what a listener of the engine's has begun
            before, driver.autocommit = driver.autocommit, True
            try:
                yield connection
            finally:
                if not getattr(driver, "closed", False):
                    driver.autocommit = before

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        """A connection, which is closed if the block takes longer than the timeout."""
        seconds, watch = self._timeout_seconds, None
        try:
            with (
                self._engine.connect() as connection,
                _WATCHDOG.watching(_driver(connection), seconds + GRACE_SECONDS) as watch,
            ):
                yield connection
        except (DBAPIError, PoolTimeout, Unavailable) as error:
            if isinstance(error, DBAPIError) and not is_transient(error):
                raise
            state = sqlstate(error) or sqlstate(error.__cause__)
            if state == READ_ONLY:
                self._engine.dispose()  # a demoted primary keeps its connections
            if state == IDLE_IN_TRANSACTION or (watch and watch.was_idle):
                late = f"The transaction was idle for too long (timeout_seconds: {seconds:g})."
                raise TimeoutError(late) from error
            if isinstance(error, Unavailable):  # the block's own
                raise
            raise Unavailable(str(getattr(error, "orig", error))) from error


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


def _leave_autocommit(connection: sa.Connection) -> None:
    """Make the next transaction a real one, whatever the engine's isolation level."""
    if connection.dialect.detect_autocommit_setting(_driver(connection)):
        connection.execution_options(isolation_level="READ COMMITTED")
