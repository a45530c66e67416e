"""Overdue orders that wait for a locked row or table, and who has locked it."""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from orders.db.base import READ, WRITTEN, metadata
from orders.db.database import reading
from orders.db.files import Room
from orders.db.ids import array_of
from orders.errors import StorageUnavailable
from orders.log import log

#: How long a lock is held, and an order overdue, before anybody is told: payments take milliseconds.
LONG_MS = 1500
#: How often a worker looks while it meets locked rows, and how often it repeats itself.
LOOK_SECONDS, REPEAT_SECONDS = 2.0, 60.0

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


class LockLog:
    """Logs who holds the rows that a worker waits for. Any thread may use it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        #: When to look next, if a row may be locked; and when each order and holder was logged. Both are
        #: on the monotonic clock.
        self._look_at: float | None = None
        self._logged: dict[tuple[object, ...], float] = {}

    def suspect(self) -> None:
        """Have `tick` look in a while, and as long as there is something to be seen."""
        if self._look_at is None:
            self._look_at = time.monotonic() + LOOK_SECONDS

    def tick(self) -> None:
        """To be called about once a second."""
        now = time.monotonic()
        if self._look_at is not None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS if self.look(now) else None

    def look(self, now: float) -> Sequence[Locked]:
        """Log what is locked, unless that was logged recently. ``now`` is monotonic, in seconds."""
        try:
            with reading(self._engine) as connection:
                found = locked_rows(connection)
        except (StorageUnavailable, sa.exc.DBAPIError):  # logged by whoever needs it
            return []
        keys = {each[:4]: each for each in found}
        self._logged = {
            key: at for key, at in self._logged.items() if key in keys and now < at + REPEAT_SECONDS
        }
        for key, each in keys.items():
            if key not in self._logged:
                self._logged[key] = now
                log.warning("row locked", order=each.order_id, pid=each.pid, detail=str(each))
        return found
