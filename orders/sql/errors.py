"""Which errors of PostgreSQL and SQLite are transient, and how to recognize them."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from orders.errors import SchemaOutdated, StorageUnavailable

#: What to do about a schema that is missing or older.
MIGRATE = "run python -m orders migrate, or alembic upgrade head"

P = ParamSpec("P")
R = TypeVar("R")

#: A statement that writes, in a server that does not: a standby, or a primary that was demoted.
READ_ONLY = "25006"
#: Connection lost, resources gone, operator intervention (shutdown, start-up, statement timeout),
#: serialization, deadlock, lock timeout.
_TRANSIENT_SQLSTATES = ("08", "53", "57", "40001", "40P01", "55P03", READ_ONLY)
#: BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN
_TRANSIENT_SQLITE = {5, 6, 8, 10, 13, 14}


@contextmanager
def translated() -> Iterator[None]:
    """Raises StorageUnavailable for transient errors, and SchemaOutdated for missing tables or columns."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        if is_transient(error):
            raise StorageUnavailable(
                " ".join(str(getattr(error, "orig", error)).split())
            ) from error
        if _lacks_schema(error):
            raise SchemaOutdated(f"It answers {first_line(error)!r}: {MIGRATE}.") from error
        raise


def is_transient(error: DBAPIError | PoolTimeout) -> bool:
    """Whether the database is at fault and the same statement may succeed later."""
    if isinstance(error, PoolTimeout) or error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF in _TRANSIENT_SQLITE
    state = sqlstate(error)
    if state is None:  # no answer at all: the connection failed
        return isinstance(error, sa.exc.OperationalError)
    return state.startswith(_TRANSIENT_SQLSTATES)


def first_line(error: DBAPIError | PoolTimeout) -> str:
    """The driver's message, without the statement and the position in it."""
    return str(getattr(error, "orig", error)).strip().partition("\n")[0]


#: Undefined table, undefined column.
_NO_SCHEMA = ("42P01", "42703")
_NO_SCHEMA_SQLITE = re.compile(r"no such (table|column): |table \w+ has no column named ")


def _lacks_schema(error: DBAPIError | PoolTimeout) -> bool:
    """Whether the statement names a table or a column that the database does not have."""
    if isinstance(getattr(error, "orig", None), sqlite3.Error):
        return _NO_SCHEMA_SQLITE.match(first_line(error)) is not None
    return sqlstate(error) in _NO_SCHEMA


#: Serialization failure, deadlock: PostgreSQL rolled everything back, so the transaction can be run
#: again.
CONFLICTS = ("40001", "40P01")
CONFLICT_RETRIES = 3


def retried(transaction: Callable[P, R]) -> Callable[P, R]:
    """Run a function that is one transaction again if it lost a conflict with another one.

    The lock order of `orders.order.operations` makes that rare: it takes statements from outside this
    service, or a database with a stricter default isolation level.
    """

    @wraps(transaction)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(CONFLICT_RETRIES):
            try:
                return transaction(*args, **kwargs)
            except StorageUnavailable as error:
                if sqlstate(error.__cause__) not in CONFLICTS:
                    raise
        return transaction(*args, **kwargs)

    return run


def sqlstate(error: BaseException | None) -> str | None:
    """PostgreSQL's code for what went wrong."""
    return getattr(getattr(error, "orig", None), "sqlstate", None)


LOCK_NOT_AVAILABLE = "55P03"


def waited_for(error: DBAPIError, table: str) -> bool:
    """Whether a statement was given up because a row of this table stayed locked."""
    context = getattr(getattr(error.orig, "diag", None), "context", None)
    return sqlstate(error) == LOCK_NOT_AVAILABLE and f'relation "{table}"' in (context or "")
