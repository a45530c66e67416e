"""Overdue orders that wait for a locked row, and who has locked it.

Reads only, and waits for no row: a row that is locked names the transaction that locked it (``xmax``),
and that one's own lock names its connection.
"""

import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from orders.errors import StorageUnavailable
from orders.log import log
from orders.sql.database import reading

#: How long a lock is held, and an order overdue, before anybody is told: payments take milliseconds.
LONG_MS = 1500
#: How often a worker looks while it meets locked rows, and how often it repeats itself.
LOOK_SECONDS, REPEAT_SECONDS = 2.0, 60.0

_LOCKED = """
WITH late AS MATERIALIZED (
    SELECT order_id, xmax AS locked_by FROM unpaid_orders
    WHERE {which}
    ORDER BY expires_at, order_id LIMIT 20
), items AS (
    SELECT order_id, sku FROM order_items WHERE order_id = ANY (ARRAY(SELECT order_id FROM late))
), needed AS (
    SELECT order_id, 'its own row' AS what, locked_by FROM late
    UNION ALL
    SELECT items.order_id, 'the row of ' || sku || ' in stock_items', stock.xmax
    FROM items JOIN stock_items stock USING (sku)
    WHERE stock.sku = ANY (ARRAY(SELECT sku FROM items))
), locks AS MATERIALIZED (
    SELECT transactionid, pid FROM pg_locks WHERE locktype = 'transactionid' AND granted
), held AS (
    SELECT order_id, what, pid FROM needed JOIN locks ON transactionid = locked_by
    UNION ALL
    SELECT order_id, 'the table ' || relation::regclass, pid FROM late, pg_locks
    WHERE locktype = 'relation' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation::regclass::text IN ('unpaid_orders', 'stock_items', 'order_events')
      AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
)
SELECT held.order_id::text, held.what, who.pid, who.xact_start AS since, who.application_name,
    concat_ws(', waits for pid ', who.state, (pg_blocking_pids(who.pid))[1]) AS state
FROM held JOIN pg_stat_activity who USING (pid)
WHERE who.pid <> pg_backend_pid() AND {whose} AND coalesce(
    who.xact_start <= clock_timestamp() - :long_ms * interval '1 millisecond', true
)
ORDER BY who.xact_start, held.order_id, held.what LIMIT 5
"""
# The oldest overdue orders whose own row, or that of a SKU of theirs, or whose table is locked for long,
# and by whom; not by those who wait for another row themselves.
LIST_LOCKED = sa.text(
    _LOCKED.format(
        which="expires_at <= statement_timestamp() - :long_ms * interval '1 millisecond'",
        whose="who.wait_event_type IS DISTINCT FROM 'Lock'",
    )
)
# The same of one unpaid order, overdue or not, by whomever.
GET_LOCKED = sa.text(_LOCKED.format(which="order_id = CAST(:order_id AS uuid)", whose="true"))


class Locked(NamedTuple):
    """An order that waits for a lock, and the connection that holds it."""

    order_id: str
    #: The row or the table that it waits for.
    what: str
    pid: int
    #: When that transaction began; None if this user may not see it.
    since: datetime | None
    #: What the connection calls itself, and what it does.
    application: str | None
    state: str | None

    def __str__(self) -> str:
        since = "" if self.since is None else f" since {self.since:%H:%M:%S} UTC"
        who = ", ".join(filter(None, (self.application, self.state)))
        return f"order {self.order_id} waits for {self.what}, that pid {self.pid} holds{since}" + (
            f" ({who})" if who else ""
        )


def locked_rows(connection: sa.Connection, order_id: str | None = None) -> list[Locked]:
    """The locks that have been held for longest, up to five; those that one order waits for, if it is named."""
    values = {"long_ms": LONG_MS} | ({"order_id": order_id} if order_id else {})
    rows = connection.execute(GET_LOCKED if order_id else LIST_LOCKED, values)
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
