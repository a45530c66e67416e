"""How many overdue orders may be cancelled per second, by all workers together.

A bucket holds what may be cancelled at once: as much as a second brings. Every batch takes from it,
in the statement that cancels. A look before locking anything keeps a batch that comes to an empty
bucket from holding orders that somebody wants to pay.
"""

from typing import Any

import sqlalchemy as sa

from orders.sql.expressions import Instant, now
from orders.sql.keeping import cancellation_pace as pace
from orders.sql.steps import Step, insertion
from orders.sql.tables import unpaid_orders

SECOND = sa.literal_column("interval '1 second'", sa.Interval)
MINUTE = sa.literal_column("interval '1 minute'", sa.Interval)
CLOCK = sa.literal_column("clock_timestamp()", Instant)
#: The bucket's one row.
BUCKET = sa.literal_column("1", sa.SmallInteger)
#: Times are in microseconds: rounding must not cost an order.
ROUNDING = sa.literal_column("0.001", sa.Double)
_rate = sa.bindparam("for_rate", type_=sa.Double)


def _used_until(at: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Up to when the bucket's content was used: the rest of the time until ``at`` is its content."""
    # Later than that: the clock was set back, and nobody waits until it is as late again.
    used = sa.case((pace.c.used_until <= at + MINUTE, pace.c.used_until))
    return sa.type_coerce(sa.func.greatest(used, at - SECOND), Instant)


def _content(at: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    seconds = sa.cast(sa.extract("epoch", at - _used_until(at)), sa.Double)
    return sa.cast(sa.func.floor(seconds * _rate + ROUNDING), sa.Integer)


def at_most(overdue: sa.Select[Any]) -> sa.Select[Any]:
    """As many overdue orders as may be cancelled now, as far as is known: the oldest."""
    known = sa.select(sa.func.greatest(_content(now()), sa.literal_column("0"))).where(
        pace.c.id == BUCKET
    )
    most = sa.func.coalesce(known.scalar_subquery(), sa.cast(_rate, sa.Integer))
    oldest = overdue.order_by(None).order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    return oldest.limit(most)


def granted(step: Step, overdue: sa.FromClause) -> sa.Select[Any]:
    """Take what the locked orders need from the bucket; the ids of those that may be cancelled."""
    count = sa.select(sa.func.count()).select_from(overdue).scalar_subquery()
    wanted = sa.cast(count, sa.Integer)
    zero = sa.literal_column("0", sa.Integer)
    row = {
        "id": BUCKET,
        "granted": wanted,
        "used_until": CLOCK - SECOND + sa.cast(wanted, sa.Double) / _rate * SECOND,
    }
    taken = insertion(pace, row, wanted > zero)
    # As in `orders.order.operations`, a conflicting row is read once it is locked.
    grant = sa.func.greatest(zero, sa.func.least(taken.excluded.granted, _content(CLOCK)))
    bucket = step(
        "bucket",
        taken.on_conflict_do_update(
            index_elements=["id"],
            set_={
                "granted": grant,
                "used_until": _used_until(CLOCK) + sa.cast(grant, sa.Double) / _rate * SECOND,
            },
        ).returning(pace.c.granted),
    )
    most = sa.select(bucket.c.granted).scalar_subquery()
    return (
        sa.select(overdue.c.order_id).order_by(overdue.c.expires_at, overdue.c.order_id).limit(most)
    )
