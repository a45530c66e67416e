"""The SQL statements of the operators' page, each with a name and a sentence.

Except for those on its sessions they only read, and a bounded number of rows.
"""

import sqlalchemy as sa

from orders.order.sparing import frozen, spared
from orders.order.states import client_of, ended_state, in_state, listed, unpaid_state
from orders.sql.expressions import Instant, ids, later, ms_until, now, one_of
from orders.sql.statements import FIRST, newest_ids, oldest_first
from orders.sql.steps import insertion
from orders.sql.tables import (
    IS_EXPIRED,
    REFUND_DUE,
    api_keys,
    ops_sessions,
    order_events,
    orders,
    payments,
    unpaid_orders,
    webhook_deliveries,
    webhook_subscriptions,
)

p = sa.bindparam

#: Cancellations before that are not listed among the latest.
DAY_AGO_MS = sa.literal_column("-86400000", sa.BigInteger)

_of_unpaid = (
    # With a bound, planners seek in the index instead of scanning all of it.
    sa.select(unpaid_orders.c.expires_at)
    .where(unpaid_orders.c.expires_at > sa.literal(FIRST.at, Instant))
    .limit(p("most"))
)
# How many orders are unpaid, up to a number.
COUNT_UNPAID = sa.select(sa.func.count()).select_from(_of_unpaid.subquery())
_ended_at = sa.func.greatest(unpaid_orders.c.expires_at, unpaid_orders.c.kept_until)
_late = (
    _of_unpaid.add_columns(unpaid_orders.c.order_id, ms_until(now(), _ended_at).label("ms"))
    .where(unpaid_orders.c.expires_at <= now(), ~spared(unpaid_orders))
    .subquery()
)
# Those of them that are overdue and spared by nothing, up to a number, and for how many milliseconds.
LIST_OVERDUE = sa.select(_late.c.order_id, _late.c.ms)
_owner = client_of(orders.c.client_id)
_next = (
    unpaid_state()
    .add_columns(unpaid_orders.c.kept_until, frozen(unpaid_orders).label("is_frozen"))
    .where(unpaid_orders.c.expires_at > sa.literal(FIRST.at, Instant))
    .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    .limit(p("most"))
    .cte("page")
)
_ends_at = sa.func.greatest(_next.c.expires_at, _next.c.kept_until)
# The unpaid orders that expire next, overdue ones first. One that is being paid waits for that.
LIST_NEXT = in_state(
    _next, _owner, ms_until(_ends_at).label("expires_in_ms"), _next.c.is_frozen
).order_by(_next.c.expires_at, _next.c.order_id)
_latest = (
    ended_state()
    .where(IS_EXPIRED, order_events.c.at > later(now(), DAY_AGO_MS))
    .order_by(order_events.c.at.desc())
    .limit(p("most"))
    .cte("page")
)
# The orders that expired last, and how late they were cancelled.
LIST_LATEST = in_state(
    _latest,
    _owner,
    ms_until(_latest.c.ended_at, _latest.c.expires_at).label("late_ms"),
    ms_until(_latest.c.ended_at).label("ms"),
).order_by(_latest.c.ended_at.desc())
# All clients' payments that have to be refunded, oldest first, from a page's end on.
LIST_REFUNDS_DUE = oldest_first(
    sa.select(
        payments, client_of(payments.c.client_id), ms_until(payments.c.created_at).label("ms")
    ).where(payments.c.status == REFUND_DUE),
    *(payments.c.created_at, payments.c.id),
)
# The client that a payment belongs to.
GET_PAYER = sa.select(payments.c.client_id).where(payments.c.id == p("for_id"))
# Whose these API keys are.
NAMES_OF_KEYS = sa.select(api_keys.c.id, client_of(api_keys.c.client_id)).where(
    one_of(api_keys.c.id, ids("ids"))
)

_has_reference = (
    page.where(
        table.c.client_reference == p("for_reference"),
        table.c.client_reference.is_not(None),  # for the index
    )
    for table, page in ((unpaid_orders, unpaid_state()), (order_events, ended_state()))
)
_found = listed(*_has_reference, by=["client_reference", "client_id", "type", "order_id"]).cte(
    "page"
)
# Some orders with a reference, of whichever clients.
FIND_BY_REFERENCE = in_state(_found, _owner).order_by(_found.c.order_id.desc())
# The webhook deliveries about an order, with their URLs.
LIST_DELIVERIES = (
    sa.select(webhook_deliveries, *webhook_subscriptions.c["url", "paused_at"])
    .join_from(
        webhook_deliveries,
        webhook_subscriptions,
        webhook_subscriptions.c.id == webhook_deliveries.c.subscription_id,
    )
    .where(
        webhook_deliveries.c.order_id == p("for_order"),
        one_of(
            webhook_subscriptions.c.id,
            sa.select(webhook_deliveries.c.subscription_id).where(
                webhook_deliveries.c.order_id == p("for_order")
            ),
        ),
    )
    .order_by(webhook_deliveries.c.event_id, webhook_deliveries.c.id)
    .limit(p("most"))
)


# -- sessions ------------------------------------------------------------------------------


_is_current = ops_sessions.c.expires_at > now()
# Insert a session of a key, unless that has expired.
ADD_SESSION = insertion(
    ops_sessions,
    {
        "id": "session_id",
        "key_id": api_keys.c.id,
        "secret_hash": "hash",
        "expires_at": later(now(), "for_ms"),
    },
    api_keys.c.id == p("for_key"),
    sa.func.coalesce(api_keys.c.expires_at > now(), sa.true()),
).returning(ops_sessions.c.id)
# Delete expired sessions of any key: more at a time than one login adds.
PRUNE_SESSIONS = sa.delete(ops_sessions).where(
    one_of(
        ops_sessions.c.id,
        sa.select(ops_sessions.c.id)
        .where(ops_sessions.c.expires_at <= now())
        .order_by(ops_sessions.c.expires_at)
        .limit(sa.literal_column("100"))
        .with_for_update(skip_locked=True),
    )
)
# One session, if it has not ended, with the milliseconds until it does.
GET_SESSION = sa.select(ops_sessions, ms_until(ops_sessions.c.expires_at).label("valid_ms")).where(
    ops_sessions.c.id == p("for_id"), _is_current
)
# The sessions that have not ended.
LIST_SESSION_IDS = newest_ids(ops_sessions.c.id, _is_current)
# End a session.
END_SESSION = sa.delete(ops_sessions).where(ops_sessions.c.id == p("for_id"))
