"""What spares an overdue order: conditions on a row of `unpaid_orders`.

A payment under way is noted in the order's own row. The statement that cancels compares a row that
it had to wait for again, but other tables it sees as they were when it began.
"""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from orders.sql.expressions import Instant, later, now, one_of
from orders.sql.freeze_tables import freezes, payment_attempts
from orders.sql.steps import Step

p = sa.bindparam
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


#: For how long attempts may keep an order past its deadline.
_MOST_MS = p("for_most_ms", type_=sa.BigInteger)


def bound_of(deadline: sa.ColumnElement[datetime]) -> sa.ColumnElement[datetime]:
    """Until when attempts may keep an order, by the deadline in force."""
    return later(deadline, _MOST_MS)


def last_end(
    asks: sa.ColumnElement[bool], bound: sa.ColumnElement[datetime]
) -> sa.ColumnElement[datetime]:
    """When an attempt ends at the latest: a tenth of the bound is left for asking its provider, if that can be."""
    to_ask = _MOST_MS // sa.literal_column("10", sa.BigInteger)
    return sa.case((asks, later(bound, -to_ask)), else_=bound)


def kept_with(
    unpaid: sa.FromClause, deadline: sa.ColumnElement[datetime]
) -> sa.ColumnElement[datetime]:
    """Until when an order is kept, if it is, once its deadline has moved."""
    return sa.case((unpaid.c.kept_until.is_not(None), bound_of(deadline)))


def end_attempts(
    step: Step, ended: sa.FromClause, last: sa.ColumnElement[datetime] | None = None
) -> None:
    """End the open attempts of orders that this statement ended, so that they are closed soon.

    Of orders whose deadline it moved, have them end by ``last``. Those that are locked are being settled.
    An order that expires has none: they keep it until they end.
    """
    concerned = sa.select(ended.c.order_id).where(ended.c.kept_until.is_not(None))
    attempts, last = payment_attempts.c, now() if last is None else last
    left = step(
        "attempts_left",
        sa.select(attempts.id)
        .where(
            one_of(attempts.order_id, concerned),
            sa.case((attempts.settled_at.is_(None), attempts.ends_at > last), else_=sa.false()),
        )
        .with_for_update(skip_locked=True),
    )
    step(
        "attempts_ended",
        sa.update(payment_attempts)
        .where(one_of(attempts.id, sa.select(left.c.id)))
        .values(ends_at=last),
    )


def move_attempts(step: Step, moved: sa.FromClause) -> None:
    """Have no attempt outlast what keeps its order, whose deadline this statement moved."""
    attempts = payment_attempts.c
    kept_until = sa.select(moved.c.kept_until).where(moved.c.order_id == attempts.order_id)
    bound = kept_until.correlate(payment_attempts).scalar_subquery()
    end_attempts(step, moved, last_end(attempts.asks, bound))
