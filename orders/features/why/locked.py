"""Overdue orders that wait for a locked row or table, and who has locked it."""

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from orders.db.base import READ, WRITTEN, metadata
from orders.db.files import Room
from orders.db.ids import array_of

#: How long a lock is held, and an order overdue, before anybody is told: payments take milliseconds.
LONG_MS = 1500

SQL = Room("orders.features.why")


class Locked(NamedTuple):
    """What an order waits for, and who holds up everybody who does."""

    #: None: every order waits for it.
    order_id: str | None
    #: The row or the table that it waits for.
    what: str
    #: The connection; None if the transaction is prepared, which has none.
    pid: int | None
    prepared: str | None
    #: The connection that holds the lock, if that one waits for the other.
    waiter: int | None
    #: When that transaction began; None if this user may not see it.
    since: datetime | None
    #: What the connection calls itself, and what it does.
    application: str | None
    state: str | None

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid else f"prepared transaction {self.prepared or ''}"
        waits = f"pid {self.waiter} has locked, waiting for {who}"
        held = waits if self.waiter else f"{who} has locked"
        since = "" if self.since is None else f" since {self.since:%H:%M:%S} UTC"
        facts = ", ".join(filter(None, (self.application, self.state)))
        order = f"order {self.order_id}" if self.order_id else "every order"
        return f"{order} waits for {self.what}, which {held}{since}" + (
            f" ({facts})" if facts else ""
        )


def locked_rows(
    connection: sa.Connection, order_id: str | None = None, *, long_ms: int | None = None
) -> list[Locked]:
    """The locks that have been held for longest, up to five of tables, and up to five of rows of overdue orders, or of
    one order. Rows are not looked at while a table is closed to readers.
    """
    long_ms = LONG_MS if long_ms is None else long_ms
    of = {
        name: array_of(each.name for each in metadata.sorted_tables if each.info == info)
        for name, info in (("read", READ), ("written", WRITTEN))
    }
    tables = SQL.list_locked_tables(connection, **of, long_ms=long_ms).all()
    found = [Locked._make(row[:-1]) for row in tables]
    if not any(row.is_closed for row in tables):
        rows = SQL.list_locked_rows(connection, order_id=order_id, long_ms=long_ms)
        found += map(Locked._make, rows)
    return found
