"""The SQL statements of the operators' page, each with a name and a sentence.

Except for those on its sessions they only read, and a bounded number of rows.
"""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from orders.order.repository import OrderRepository
from orders.order.states import (
    client_of,
    ended_state,
    in_state,
    listed,
    unpaid_state,
)
from orders.sql.expressions import Instant, ids, later, ms_until, now, one_of
from orders.sql.statements import FIRST, Position, after_last, newest_ids
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
from orders.watch.locked import Locked, locked_rows

p = sa.bindparam

#: Lateness is shown for this many minutes, and for this many of the last cancellations in each.
MINUTES, SAMPLE = 30, 25
#: Cancellations before that are not listed among the latest.
DAY_MS = 86_400_000

_overdue = unpaid_orders.c.expires_at <= now()
_of_unpaid = (
    # With a bound, planners seek in the index instead of scanning all of it.
    sa.select(unpaid_orders.c.expires_at)
    .where(unpaid_orders.c.expires_at > sa.literal(FIRST.at, Instant))
    .limit(p("most"))
)
# How many orders are unpaid, up to a number.
COUNT_UNPAID = sa.select(sa.func.count()).select_from(_of_unpaid.subquery())
# How many of them are overdue, up to a number.
COUNT_OVERDUE = sa.select(sa.func.count()).select_from(_of_unpaid.where(_overdue).subquery())
_owner = client_of(orders.c.client_id)
_next = (
    unpaid_state()
    .where(unpaid_orders.c.expires_at > sa.literal(FIRST.at, Instant))
    .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    .limit(p("most"))
    .cte("page")
)
# The unpaid orders that expire next, overdue ones first.
LIST_NEXT = in_state(_next, _owner, ms_until(_next.c.expires_at).label("expires_in_ms")).order_by(
    _next.c.expires_at, _next.c.order_id
)
_latest = (
    ended_state()
    .where(IS_EXPIRED, order_events.c.at > later(now(), "after_ms"))
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


def _ago(minutes: int) -> sa.ColumnElement[Any]:
    return later(now(), sa.literal_column(str(-60_000 * minutes), sa.BigInteger))


def _lateness_of(minute: int) -> sa.Select[Any]:
    """The last cancellations of the minute that ended ``minute`` minutes ago."""
    found = (
        sa.select(
            sa.literal_column(str(minute), sa.Integer).label("minute"),
            ms_until(order_events.c.at, order_events.c.expires_at).label("late_ms"),
        )
        .where(
            IS_EXPIRED,
            order_events.c.at > _ago(minute + 1),
            order_events.c.at <= _ago(minute),
        )
        .order_by(order_events.c.at.desc())
        .limit(p("most"))
    )
    return sa.select(found.subquery())


# How late the last cancellations of each of the last minutes were: one index scan for each minute.
LIST_LATENESS = sa.union_all(*map(_lateness_of, range(MINUTES)))

_oldest_first = (payments.c.created_at, payments.c.id)
# All clients' payments that have to be refunded, oldest first, from a page's end on.
LIST_REFUNDS_DUE = (
    sa.select(
        payments, client_of(payments.c.client_id), ms_until(payments.c.created_at).label("ms")
    )
    .where(payments.c.status == REFUND_DUE, after_last(*_oldest_first))
    .order_by(*_oldest_first)
    .limit(p("most"))
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
    sa.select(webhook_deliveries, webhook_subscriptions.c.url)
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


class OpsRepository(OrderRepository):
    """These statements and those of `OrderRepository`, on one connection."""

    def count_unpaid(self, most: int) -> int:
        """How many orders are unpaid, counted up to ``most``."""
        count: int = self.run(COUNT_UNPAID, most=most).scalar_one()
        return count

    def count_overdue(self, most: int) -> int:
        """How many unpaid orders are overdue, counted up to ``most``."""
        count: int = self.run(COUNT_OVERDUE, most=most).scalar_one()
        return count

    def next_to_expire(self, most: int) -> Sequence[sa.Row[Any]]:
        """Unpaid orders, soonest deadline first."""
        return self.run(LIST_NEXT, most=most).all()

    def locked_rows(self) -> list[Locked]:
        """Overdue orders that wait for a row, and who has locked it."""
        return locked_rows(self.connection)

    def latest_expired(self, most: int) -> Sequence[sa.Row[Any]]:
        """The orders that expired in the last day, newest first."""
        return self.run(LIST_LATEST, most=most, after_ms=-DAY_MS).all()

    def lateness(self) -> list[list[int]]:
        """How late, in ms, the last cancellations of each minute were; the current minute comes first."""
        found: list[list[int]] = [[] for _ in range(MINUTES)]
        for row in self.run(LIST_LATENESS, most=SAMPLE):
            found[row.minute].append(row.late_ms)
        return found

    def list_refunds_due(self, most: int, after: Position | None = None) -> Sequence[sa.Row[Any]]:
        """All clients' payments that have to be refunded, oldest first."""
        at, last_id = after or FIRST
        return self.run(LIST_REFUNDS_DUE, most=most, last_at=at, last_id=last_id).all()

    def names_of_keys(self, key_ids: Collection[str]) -> dict[str, str]:
        """Whose these API keys are, by their ids."""
        rows = self.run(NAMES_OF_KEYS, ids=key_ids) if key_ids else ()
        return {row.id: row.client for row in rows}

    def payer(self, payment_id: str) -> str | None:
        """The id of the client that a payment belongs to."""
        payer: str | None = self.run(GET_PAYER, for_id=payment_id).scalar_one_or_none()
        return payer

    def with_reference(self, reference: str, most: int) -> Sequence[sa.Row[Any]]:
        """Orders with this client reference, newest first."""
        return self.run(FIND_BY_REFERENCE, for_reference=reference, page_size=most).all()

    def list_deliveries(self, order_id: str, most: int) -> Sequence[sa.Row[Any]]:
        """The webhook deliveries about an order, in the order of its events."""
        return self.run(LIST_DELIVERIES, for_order=order_id, most=most).all()


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
