"""The state of every order, as a table."""

import sqlalchemy as sa

from orders.order.states import ended_state, unpaid_state
from orders.sql.tables import TERMINAL

#: order_id, expires_at, version, ending (a terminal event's type, or null), ended_at, reason
states = sa.union_all(unpaid_state(), ended_state().where(TERMINAL)).subquery("states")

#: "unpaid", "paid" or "cancelled".
status = sa.func.coalesce(sa.func.replace(states.c.ending, "order.", ""), "unpaid").label("status")
