"""The state of every order, as a table."""

import sqlalchemy as sa

from orders.db.base import Id, Instant

states = (
    sa.text(
        "SELECT order_id, expires_at, version, 'unpaid' AS status, NULL AS ended_at, NULL AS reason FROM unpaid_orders"
        " UNION ALL SELECT order_id, expires_at, version, substr(type, 7), at, data ->> 'reason' FROM order_events"
        " WHERE place = 0"
    )
    .columns(
        *(sa.column("order_id", Id), sa.column("expires_at", Instant), sa.column("version")),
        *(sa.column("status", sa.String), sa.column("ended_at", Instant), sa.column("reason")),
    )
    .subquery("states")
)
#: "unpaid", "paid" or "cancelled".
status = states.c.status
