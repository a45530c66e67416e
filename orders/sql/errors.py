"""Translates database errors into the service's own. The engine knows which of them are transient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from orders.errors import RowLocked, SchemaOutdated, StorageUnavailable
from worker.records import outages
from worker.records.outages import is_transient

P = ParamSpec("P")
R = TypeVar("R")

READ_ONLY, sqlstate = outages.READ_ONLY, outages.sqlstate
#: What to do about a schema that is missing or older.
MIGRATE = "run python -m orders migrate, or alembic upgrade head"


@contextmanager
def translated() -> Iterator[None]:
    """Raises StorageUnavailable for transient errors, and SchemaOutdated for missing tables or columns."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        if is_transient(error):
            outage = RowLocked if sqlstate(error) == LOCK_NOT_AVAILABLE else StorageUnavailable
            raise outage(" ".join(str(getattr(error, "orig", error)).split())) from error
        if sqlstate(error) in _NO_SCHEMA:
            raise SchemaOutdated(f"It answers {first_line(error)!r}: {MIGRATE}.") from error
        raise


def retried(transaction: Callable[P, R]) -> Callable[P, R]:
    """Run a method that is one transaction again if it lost a conflict with another one."""
    return outages.retried(transaction, StorageUnavailable)


def first_line(error: DBAPIError | PoolTimeout) -> str:
    """The driver's message, without the statement and the position in it."""
    return str(getattr(error, "orig", error)).strip().partition("\n")[0]


#: Undefined table, undefined column.
_NO_SCHEMA = ("42P01", "42703")


LOCK_NOT_AVAILABLE = "55P03"


def waited_for(error: DBAPIError, table: str) -> bool:
    """Whether a statement was given up because a row of this table stayed locked."""
    context = getattr(getattr(error.orig, "diag", None), "context", None)
    return sqlstate(error) == LOCK_NOT_AVAILABLE and f'relation "{table}"' in (context or "")
