"""The SQL statements of the operators' page, each with a name and a sentence. All of them read, and no more than so much."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from orders.domain import Position
from orders.expressions import Instant, later, ms_until, now, one_of
from orders.models import (
    EXPIRED,
    REFUND_DUE,
    UNPAID,
    api_clients,
    orders,
    payments,
    webhook_deliveries,
    webhook_subscriptions,
)
from orders.operations import client_of
from orders.repository import FIRST, Repository, after_last

p = sa.bindparam

#: Lateness is shown for so many minutes, of so many cancellations in each: the last ones.
MINUTES, SAMPLE = 30, 25
#: Cancellations longer ago are not the latest ones any more.
DAY_MS = 86_400_000

_FIRST_AT = sa.literal(FIRST.at, Instant)
_of_unpaid = (
    sa.select(orders.c.expires_at)
    # The bound is for planners: they look for a beginning in the index, and not through all of it.
    .where(orders.c.status == UNPAID, orders.c.expires_at > _FIRST_AT)
    .limit(p("most"))
)
# How many orders are unpaid, up to a number.
COUNT_UNPAID = sa.select(sa.func.count()).select_from(_of_unpaid.subquery())
# How many of them are overdue, up to a number.
COUNT_OVERDUE = sa.select(sa.func.count()).select_from(
    _of_unpaid.where(orders.c.expires_at <= now()).subquery()
)
_SHOWN = (
    *(orders.c.id, orders.c.client_reference, orders.c.total_minor, orders.c.currency),
    *(orders.c.status, orders.c.expires_at, client_of(orders.c.customer_id)),
)
# The unpaid orders that expire next, those that are overdue first.
LIST_NEXT = (
    sa.select(*_SHOWN, ms_until(orders.c.expires_at).label("expires_in_ms"))
    .where(orders.c.status == UNPAID, orders.c.expires_at > _FIRST_AT)
    .order_by(orders.c.expires_at, orders.c.id)
    .limit(p("most"))
)
_late = ms_until(orders.c.cancelled_at, orders.c.expires_at).label("late_ms")
_cancelled_ago = ms_until(orders.c.cancelled_at).label("ms")
# The orders that were cancelled last because they were not paid, and how late that was.
LIST_LATEST = (
    sa.select(*_SHOWN, _late, _cancelled_ago)
    .where(orders.c.cancel_reason == EXPIRED, orders.c.cancelled_at > later(now(), "after_ms"))
    .order_by(orders.c.cancelled_at.desc())
    .limit(p("most"))
)


def _ago(minutes: int) -> sa.ColumnElement[Any]:
    return later(now(), sa.literal_column(str(-60_000 * minutes), sa.BigInteger))


def _lateness_of(minute: int) -> sa.Select[Any]:
    """The last cancellations of one minute, which ended so many minutes ago."""
    found = (
        sa.select(sa.literal_column(str(minute), sa.Integer).label("minute"), _late)
        .where(
            orders.c.cancel_reason == EXPIRED,
            orders.c.cancelled_at > _ago(minute + 1),
            orders.c.cancelled_at <= _ago(minute),
        )
        .order_by(orders.c.cancelled_at.desc())
        .limit(p("most"))
    )
    return sa.select(found.subquery())


# How late the last cancellations of each of the last minutes were: as many looks into the index as there are minutes.
LIST_LATENESS = sa.union_all(*map(_lateness_of, range(MINUTES)))

_oldest_first = (payments.c.created_at, payments.c.id)
_due_back = payments.c.status == REFUND_DUE
# Money that is due back, oldest first, whoever's it is, from a page's end on.
LIST_REFUNDS_DUE = (
    sa.select(
        payments, client_of(payments.c.customer_id), ms_until(payments.c.created_at).label("ms")
    )
    .where(_due_back, after_last(*_oldest_first))
    .order_by(*_oldest_first)
    .limit(p("most"))
)
# Whose a payment is.
GET_PAYER = sa.select(payments.c.customer_id).where(payments.c.id == p("for_id"))

_some_clients = sa.select(api_clients.c.id).order_by(api_clients.c.id).limit(p("most_clients"))
_with_reference = (
    sa.select(orders.c.id)
    .where(
        one_of(orders.c.customer_id, _some_clients), orders.c.client_reference == p("for_reference")
    )
    .limit(p("most"))
)
# Some orders with a reference, of a bounded number of clients: a lookup in the index for each client.
FIND_BY_REFERENCE = (
    sa.select(*_SHOWN, ms_until(orders.c.expires_at).label("expires_in_ms"))
    .where(one_of(orders.c.id, _with_reference))
    .order_by(orders.c.created_at.desc(), orders.c.id)
)
# The webhook deliveries about an order, and where they go.
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


class OpsRepository(Repository):
    """The statements, on one connection, beside those on orders."""

    def count_unpaid(self, most: int) -> int:
        count: int = self._run(COUNT_UNPAID, most=most).scalar_one()
        return count

    def count_overdue(self, most: int) -> int:
        count: int = self._run(COUNT_OVERDUE, most=most).scalar_one()
        return count

    def next_to_expire(self, most: int) -> Sequence[sa.Row[Any]]:
        """Unpaid orders, the most urgent first."""
        return self._run(LIST_NEXT, most=most).all()

    def latest_expired(self, most: int) -> Sequence[sa.Row[Any]]:
        """The last cancellations of the last day, newest first."""
        return self._run(LIST_LATEST, most=most, after_ms=-DAY_MS).all()

    def lateness(self) -> list[list[int]]:
        """For each of the last minutes, the present one first, how late its last cancellations were, in ms."""
        found: list[list[int]] = [[] for _ in range(MINUTES)]
        for row in self._run(LIST_LATENESS, most=SAMPLE):
            found[row.minute].append(row.late_ms)
        return found

    def list_refunds_due(self, most: int, after: Position | None = None) -> Sequence[sa.Row[Any]]:
        """Money that is due back, oldest first."""
        at, last_id = after or FIRST
        return self._run(LIST_REFUNDS_DUE, most=most, last_at=at, last_id=last_id).all()

    def payer(self, payment_id: str) -> str | None:
        """The id of the client whose payment this is."""
        payer: str | None = self._run(GET_PAYER, for_id=payment_id).scalar_one_or_none()
        return payer

    def with_reference(
        self, reference: str, *, most_clients: int, most: int
    ) -> Sequence[sa.Row[Any]]:
        """Orders that their clients call so, newest first."""
        values = {"for_reference": reference, "most_clients": most_clients, "most": most}
        return self._run(FIND_BY_REFERENCE, **values).all()

    def list_deliveries(self, order_id: str, most: int) -> Sequence[sa.Row[Any]]:
        """The webhook deliveries about an order, in the order of its events."""
        return self._run(LIST_DELIVERIES, for_order=order_id, most=most).all()
