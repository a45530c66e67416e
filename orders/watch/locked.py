"""Overdue orders that wait for a locked row, and who has locked it.

Reads only, and waits for no row: a row that is locked names the transaction that locked it (``xmax``),
and that one's own lock names its connection.
"""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from orders.errors import StorageUnavailable
from orders.sql.database import reading

log = structlog.get_logger("orders")

#: How long a lock is held, and an order overdue, before anybody is told: payments take milliseconds.
LONG_MS = 1500
#: How often a worker looks while it meets locked rows, and how often it repeats itself.
LOOK_SECONDS, REPEAT_SECONDS = 2.0, 60.0

# The oldest overdue orders whose own row, or that of a SKU of theirs, is locked for long, and by whom;
# not by those who wait for another row themselves.
LIST_LOCKED = sa.text("""
WITH late AS MATERIALIZED (
    SELECT order_id, xmax AS locked_by FROM unpaid_orders
    WHERE expires_at <= statement_timestamp() - :long_ms * interval '1 millisecond'
    ORDER BY expires_at, order_id LIMIT 20
), items AS (
    SELECT order_id, sku FROM order_items WHERE order_id = ANY (ARRAY(SELECT order_id FROM late))
), needed AS (
    SELECT order_id, NULL AS sku, locked_by FROM late
    UNION ALL
    SELECT items.order_id, items.sku, stock.xmax FROM items JOIN stock_items stock USING (sku)
    WHERE stock.sku = ANY (ARRAY(SELECT sku FROM items))
), locks AS MATERIALIZED (
    SELECT transactionid, pid FROM pg_locks WHERE locktype = 'transactionid' AND granted
)
SELECT needed.order_id::text, needed.sku, who.pid, who.xact_start AS since, who.application_name, who.state
FROM needed JOIN locks ON locks.transactionid = needed.locked_by JOIN pg_stat_activity who USING (pid)
WHERE who.pid <> pg_backend_pid() AND who.wait_event_type IS DISTINCT FROM 'Lock' AND coalesce(
    who.xact_start <= clock_timestamp() - :long_ms * interval '1 millisecond', true
)
ORDER BY who.xact_start, needed.order_id, needed.sku LIMIT 5
""")


class Locked(NamedTuple):
    """An order that waits for a row, and the connection that has locked it."""

    order_id: str
    #: Whose stock it is; None if it is the order's own row.
    sku: str | None
    pid: int
    #: When that transaction began; None if this user may not see it.
    since: datetime | None
    #: What the connection calls itself, and what it does.
    application: str | None
    state: str | None

    def __str__(self) -> str:
        row = "its own row" if self.sku is None else f"the row of {self.sku} in stock_items"
        since = "" if self.since is None else f" since {self.since:%H:%M:%S} UTC"
        who = ", ".join(filter(None, (self.application, self.state)))
        return f"order {self.order_id} waits for {row}, that pid {self.pid} holds{since}" + (
            f" ({who})" if who else ""
        )


def locked_rows(connection: sa.Connection) -> list[Locked]:
    """The locks that have been held for longest, up to five."""
    rows = connection.execute(LIST_LOCKED, {"long_ms": LONG_MS})
    return [Locked._make(row) for row in rows]


class LockLog:
    """Logs who holds the rows that a worker waits for. Any thread may use it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        #: When to look next, if a row may be locked; and when each order and holder was logged. Both are
        #: on the monotonic clock.
        self._look_at: float | None = None
        self._logged: dict[tuple[str, int], float] = {}

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
        except (
            StorageUnavailable,
            sa.exc.DBAPIError,
        ):  # best effort, and logged by whoever needs it
            return []
        keys = {(each.order_id, each.pid): each for each in found}
        self._logged = {
            key: at for key, at in self._logged.items() if key in keys and now < at + REPEAT_SECONDS
        }
        for key, each in keys.items():
            if key not in self._logged:
                self._logged[key] = now
                log.warning("row locked", order=each.order_id, pid=each.pid, detail=str(each))
        return found
