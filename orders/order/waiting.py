"""What keeps an overdue order from being cancelled: conditions on a row of `unpaid_orders`.

A payment under way is noted in the order's own row. The statement that cancels compares a row that
it had to wait for again, but other tables it sees as they were when it began.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from orders.sql.expressions import Instant, ms_until, now, one_of, unindexed
from orders.sql.keeping import freezes, payment_attempts
from orders.sql.steps import Step
from orders.sql.tables import order_items

#: How soon an order that is kept is looked at again, at the latest: what frees it may go unnoticed.
LOOK_AGAIN_MS = sa.literal_column("60000", sa.BigInteger)


#: A freeze holds until it has given back: it cancels nobody between its end and then.
HOLDS = sa.and_(
    freezes.c.given_back_at.is_(None),
    # For planners: with a bound they search the index of those that hold, whatever they know of it.
    freezes.c.ends_at > sa.literal_column("timestamptz '1970-01-01 00:00:00Z'", Instant),
)
#: How soon to look again at an order whose freeze has ended, and is giving back.
GIVING_BACK_MS = sa.literal_column("1000", sa.BigInteger)


def in_scope(
    unpaid: sa.FromClause,
    client_id: sa.ColumnElement[Any],
    sku: sa.ColumnElement[Any],
    provider: sa.ColumnElement[Any],
) -> sa.ColumnElement[bool]:
    """Whether an unpaid order is all of what is not null."""
    order_id = unpaid.c.order_id
    skus = sa.select(order_items.c.sku).where(order_items.c.order_id == order_id)
    providers = sa.select(payment_attempts.c.provider).where(
        payment_attempts.c.order_id == order_id,
        unindexed(payment_attempts.c.settled_at.is_(None)),
    )

    def among(query: sa.Select[Any]) -> Any:
        return sa.any_(sa.func.array(query.correlate(unpaid).scalar_subquery()))

    # An array is read once for each order, and only if a freeze asks for it.
    return sa.and_(
        client_id.is_(None) | (client_id == unpaid.c.client_id),
        sku.is_(None) | (sku == among(skus)),
        provider.is_(None) | (provider == among(providers)),
    )


def _freezes(unpaid: sa.FromClause, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """The freezes that hold an order."""
    scope = (freezes.c.client_id, freezes.c.sku, freezes.c.provider)
    return (
        sa.select(*columns).where(HOLDS, in_scope(unpaid, *scope)).select_from(freezes)
    ).correlate(unpaid)


def frozen(unpaid: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether a freeze holds an order."""
    everything = (each.is_(None) for each in freezes.c["client_id", "sku", "provider"])
    clients = sa.func.array(sa.select(freezes.c.client_id).where(HOLDS).scalar_subquery())
    # Each query is evaluated once for a whole statement. In a freeze of everything, the first leaves no
    # order to look at. The other leaves those of clients that a freeze may concern: a freeze that names
    # no client puts null among the clients, which makes the comparison null, not false.
    is_all = sa.exists(sa.select(freezes.c.id).where(HOLDS, *everything))
    may_be_held = (unpaid.c.client_id == sa.any_(clients)).is_not(sa.false())
    held = sa.exists(_freezes(unpaid, freezes.c.id))
    return is_all | sa.case((may_be_held, held), else_=sa.false())


def frozen_ms(unpaid: sa.FromClause) -> sa.ColumnElement[int]:
    """How many milliseconds from now to look at a frozen order again; null if it is not frozen."""
    latest = _freezes(unpaid, sa.func.max(freezes.c.ends_at).label("ends_at")).subquery()
    ms = sa.case(
        (
            latest.c.ends_at.is_not(None),
            sa.func.greatest(ms_until(latest.c.ends_at), GIVING_BACK_MS),
        )
    )
    return sa.select(ms).scalar_subquery()


def under_way(unpaid: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether somebody is paying the order, as far as is known."""
    return sa.func.coalesce(unpaid.c.under_way_until > now(), sa.false())


def kept(unpaid: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether an order is not to be cancelled although it may be overdue."""
    return frozen(unpaid) | under_way(unpaid)


def kept_ms(unpaid: sa.FromClause) -> sa.ColumnElement[int]:
    """How many milliseconds from now to look at such an order again; null if nothing keeps it."""
    left = sa.func.least(ms_until(unpaid.c.under_way_until), LOOK_AGAIN_MS)
    # Of nulls and numbers, this is the greatest number.
    return sa.func.greatest(frozen_ms(unpaid), sa.case((under_way(unpaid), left)))


def moved_with(
    unpaid: sa.FromClause, deadline: sa.ColumnElement[datetime]
) -> sa.ColumnElement[datetime]:
    """Until when an attempt keeps the order, once its deadline has moved: later by as much."""
    delay = sa.func.greatest(
        deadline - unpaid.c.expires_at, sa.literal_column("interval '0'", sa.Interval)
    )
    return sa.type_coerce(unpaid.c.under_way_until + delay, Instant)


def end_attempts(step: Step, ended: sa.FromClause) -> None:
    """End the open attempts of orders that this statement ended, so that they are closed soon.

    Those that are locked are being settled.
    """
    concerned = sa.select(ended.c.order_id).where(ended.c.under_way_until.is_not(None))
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
