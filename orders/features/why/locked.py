"""Who has long held locks that cancellations may be waiting for."""

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from orders.db.files import Room

#: How old a transaction is before anybody is told of its locks: payments take milliseconds.
LONG_MS = 1500

SQL = Room("orders.features.why")


class Locker(NamedTuple):
    """A transaction that may hold up cancellations."""

    #: Those that it has locked, or rows of them, separated by commas.
    tables: str
    #: The connection; None if the transaction is prepared, which has none.
    pid: int | None
    prepared: str | None
    #: When that transaction began; None if this user may not see it.
    since: datetime | None
    #: What the connection calls itself, and what it does or waits for.
    application: str | None
    state: str | None

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid else f"prepared transaction {self.prepared or ''}"
        since = "" if self.since is None else f" since {self.since:%H:%M:%S} UTC"
        facts = ", ".join(filter(None, (self.application, self.state)))
        return f"{who} has held locks on {self.tables}{since}" + (f" ({facts})" if facts else "")


def lockers(connection: sa.Connection, *, long_ms: int | None = None) -> list[Locker]:
    """Up to five transactions that may hold up cancellations, the oldest first."""
    long_ms = LONG_MS if long_ms is None else long_ms
    return [*map(Locker._make, SQL.list_long_locks(connection, long_ms=long_ms))]
