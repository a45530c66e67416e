"""Translates database errors into the service's own. The engine knows which of them are transient."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from orders.errors import RowLocked, SchemaOutdated, StorageUnavailable, StorageUnfit
from worker.records import outages
from worker.records.outages import is_transient

READ_ONLY, sqlstate = outages.READ_ONLY, outages.sqlstate
#: Run a method that is one transaction again if it lost a conflict with another one.
retried = outages.retried
#: What to do about a schema that is missing or older.
MIGRATE = "run python -m orders migrate"
#: What to do about a user that lacks a right.
GRANT = "docs/install.md has the statements that grant what the service needs"


@contextmanager
def translated() -> Iterator[None]:
    """Raises StorageUnavailable for transient errors, SchemaOutdated for missing tables or columns, and StorageUnfit
    for missing rights.
    """
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        if is_transient(error):
            outage = RowLocked if sqlstate(error) == LOCK_NOT_AVAILABLE else StorageUnavailable
            raise outage(" ".join(str(getattr(error, "orig", error)).split())) from error
        if sqlstate(error) in _NO_SCHEMA:
            raise SchemaOutdated(f"It answers {first_line(error)!r}: {MIGRATE}.") from error
        if sqlstate(error) == NO_RIGHT:
            raise StorageUnfit(f"It answers {first_line(error)!r}: {GRANT}.") from error
        raise


def first_line(error: DBAPIError | PoolTimeout) -> str:
    """The driver's message, without the statement and the position in it."""
    return str(getattr(error, "orig", error)).strip().partition("\n")[0]


#: Undefined table, undefined column; insufficient privilege.
_NO_SCHEMA, NO_RIGHT = ("42P01", "42703"), "42501"


LOCK_NOT_AVAILABLE = "55P03"


def waited_for(error: DBAPIError, table: str) -> bool:
    """Whether a statement was given up because a row of this table stayed locked."""
    # Whatever its language, which only a superuser may set.
    context = getattr(getattr(error.orig, "diag", None), "context", None) or ""
    return sqlstate(error) == LOCK_NOT_AVAILABLE and bool(re.search(rf"\b{table}\b", context))
