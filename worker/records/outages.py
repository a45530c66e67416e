"""Which errors of PostgreSQL are an outage, and how to go on after one."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import Unavailable

P = ParamSpec("P")
R = TypeVar("R")

#: A write on a server that takes none: a standby, or a primary that was demoted.
READ_ONLY = "25006"
#: Serialization failure and deadlock: PostgreSQL rolled everything back, and a retry may succeed.
_CONFLICTS = ("40001", "40P01")
#: The client was idle in a transaction for longer than the server allows.
IDLE_IN_TRANSACTION = "25P03"
#: Connection lost, insufficient resources, operator intervention (shutdown, start-up, statement timeout), lock
#: timeout.
_TRANSIENT_SQLSTATES = ("08", "53", "57", IDLE_IN_TRANSACTION, "55P03", READ_ONLY, *_CONFLICTS)
#: How often to rerun a transaction after a conflict with another one.
CONFLICT_RETRIES = 3


def is_transient(error: DBAPIError | PoolTimeout) -> bool:
    """Whether the database is at fault and the same statement may succeed later."""
    if isinstance(error, PoolTimeout) or error.connection_invalidated:
        return True
    state = sqlstate(error)
    if state is None:  # no answer at all, so the connection failed
        return isinstance(error, sa.exc.OperationalError)
    return state.startswith(_TRANSIENT_SQLSTATES)


def sqlstate(error: BaseException | None) -> str | None:
    """PostgreSQL's error code, if there is one."""
    original = getattr(error, "orig", None)
    return getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)


def retried(transaction: Callable[P, R]) -> Callable[P, R]:
    """Run a function that is one transaction again if it lost a conflict with another one.

    It raises Unavailable from the conflict. A handler's own error or outcome is left alone, even if a conflict
    in another database caused it.
    """

    @wraps(transaction)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(CONFLICT_RETRIES):
            try:
                return transaction(*args, **kwargs)
            except Unavailable as error:
                if sqlstate(error.__cause__) not in _CONFLICTS:
                    raise
        return transaction(*args, **kwargs)

    return run
