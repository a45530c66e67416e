"""What spares an overdue order: conditions on a row of `unpaid_orders`.

A payment under way is noted in the order's own row. The statement that cancels compares a row that
it had to wait for again, but other tables it sees as they were when it began.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from orders.sql.expressions import Instant, now, one_of
from orders.sql.freeze_tables import freezes, payment_attempts
from orders.sql.steps import Step

#: A freeze is in force until it has given back: it cancels nobody between its end and then.
IN_FORCE = sa.and_(
    freezes.c.given_back_at.is_(None),
    # For planners: with a bound they search the index of those in force, whatever they know of it.
    freezes.c.ends_at > sa.literal_column("timestamptz '1970-01-01 00:00:00Z'", Instant),
)


def is_of(unpaid: sa.FromClause, client_id: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Whether an unpaid order is this client's; null is any client."""
    return client_id.is_(None) | (client_id == unpaid.c.client_id)


def frozen(unpaid: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a freeze stops an order's deadline."""
    client_id = freezes.c.client_id
    clients = sa.select(client_id).where(IN_FORCE, client_id.is_not(None)).scalar_subquery()
    # Each query is evaluated once for a whole statement. In a freeze of everything, the first leaves
    # no order to look at.
    everything = sa.exists(sa.select(freezes.c.id).where(IN_FORCE, client_id.is_(None)))
    return everything | (unpaid.c.client_id == sa.any_(sa.func.array(clients)))


def kept(unpaid: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether somebody is paying the order, as far as is known."""
    return sa.func.coalesce(unpaid.c.kept_until > now(), sa.false())


def spared(unpaid: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether an order is not to be cancelled although it may be overdue."""
    return frozen(unpaid) | kept(unpaid)


def moved_with(
    unpaid: sa.FromClause, deadline: sa.ColumnElement[datetime]
) -> sa.ColumnElement[datetime]:
    """Until when an attempt keeps the order, once its deadline has moved: later by as much."""
    delay = sa.func.greatest(
        deadline - unpaid.c.expires_at, sa.literal_column("interval '0'", sa.Interval)
    )
    return sa.type_coerce(unpaid.c.kept_until + delay, Instant)


def end_attempts(step: Step, ended: sa.FromClause) -> None:
    """End the open attempts of orders that this statement ended, so that they are closed soon.

    Those that are locked are being settled. An order that expires has none: they keep it until they end.
    """
    concerned = sa.select(ended.c.order_id).where(ended.c.kept_until.is_not(None))
    attempts = payment_attempts.c
    left = step(
        "attempts_left",
        sa.select(attempts.id)
        .where(
            one_of(attempts.order_id, concerned),
            sa.case((attempts.settled_at.is_(None), attempts.ends_at > now()), else_=sa.false()),
        )
        .with_for_update(skip_locked=True),
    )
    step(
        "attempts_ended",
        sa.update(payment_attempts)
        .where(one_of(attempts.id, sa.select(left.c.id)))
        .values(ends_at=now()),
    )
