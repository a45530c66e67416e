"""Moments of the database's clock, in statements."""

from datetime import datetime

import sqlalchemy as sa

from orders.db.base import Instant


def now() -> sa.ColumnElement[datetime]:
    """The database's clock when the statement began, rounded down to milliseconds."""
    return sa.literal_column("date_trunc('milliseconds', statement_timestamp())", Instant)


def clock() -> sa.ColumnElement[datetime]:
    """The database's clock at this very moment, after all that the statement waited for."""
    return sa.literal_column("date_trunc('milliseconds', clock_timestamp())", Instant)


def later(
    moment: sa.ColumnElement[datetime], ms: str | sa.ColumnElement[int]
) -> sa.ColumnElement[datetime]:
    """That many milliseconds after the moment; ``ms`` is a column, or a parameter's name."""
    count = sa.bindparam(ms, type_=sa.BigInteger()) if isinstance(ms, str) else ms
    millisecond = sa.literal_column("interval '1 millisecond'", sa.Interval)
    # SQLAlchemy takes the sum for a timestamp without a time zone.
    return sa.type_coerce(moment + count * millisecond, Instant)
