"""Types and expressions of PostgreSQL, under the names by which the statements use them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import Dialect

from orders.sql.ids import array_of

#: A moment in whole milliseconds; as the session's time zone has it, in UTC.
Instant = sa.TIMESTAMP(timezone=True)
#: A UUID, which Python has as text.
Id = postgresql.UUID(as_uuid=False)


class IdList(sa.types.TypeDecorator[Sequence[str]]):
    """Many ids in one parameter, so that a batch of any size is one and the same statement."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[str] | None, dialect: Dialect) -> str:  # noqa: ARG002  SQLAlchemy's
        return array_of(value or ())


def ids(parameter: str) -> sa.Select[Any]:
    """The ids in a parameter, an `IdList`."""
    given = sa.cast(sa.bindparam(parameter, type_=IdList()), postgresql.ARRAY(Id))
    each = sa.func.unnest(given).table_valued(sa.column("value", Id), name="value")
    return sa.select(each.c.value)


def one_of(column: sa.ColumnElement[Any], query: sa.Select[Any]) -> sa.ColumnElement[bool]:
    """Whether the column is among the query's rows. An index on the column is used."""
    # An array, because a query is evaluated once for it. A cast parameter is not a constant: as a
    # filter it would be parsed again for every row, and without statistics a planner may well filter.
    return column == sa.any_(sa.func.array(query.correlate(None).scalar_subquery()))


def unindexed(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """The same condition, but none that a partial index is for.

    For statements that name their rows: without statistics, a planner would rather read that index
    from end to end than look up the ids.
    """
    return sa.case((condition, sa.true()), else_=sa.false())


def text_literal(value: str) -> sa.ColumnClause[str]:
    """A text that becomes part of the statement: one of ours, never from a request."""
    return sa.literal_column(f"'{value}'", sa.String)


def now() -> sa.ColumnElement[datetime]:
    """The database's clock when the statement began, rounded down to milliseconds."""
    return sa.literal_column("date_trunc('milliseconds', statement_timestamp())", Instant)


def clock() -> sa.ColumnElement[datetime]:
    """The database's clock at this very moment, after all that the statement waited for."""
    return sa.literal_column("date_trunc('milliseconds', clock_timestamp())", Instant)


def read_only() -> sa.ColumnElement[bool]:
    """Whether this server refuses to write."""
    return sa.literal_column("(current_setting('transaction_read_only') = 'on')", sa.Boolean)


def later(
    moment: sa.ColumnElement[datetime], ms: str | sa.ColumnElement[int]
) -> sa.ColumnElement[datetime]:
    """That many milliseconds after the moment; ``ms`` is a column, or a parameter's name."""
    count = sa.bindparam(ms, type_=sa.BigInteger()) if isinstance(ms, str) else ms
    millisecond = sa.literal_column("interval '1 millisecond'", sa.Interval)
    # SQLAlchemy takes the sum for a timestamp without a time zone.
    return sa.type_coerce(moment + count * millisecond, Instant)


def ms_until(
    moment: sa.ColumnElement[datetime], since: sa.ColumnElement[datetime] | None = None
) -> sa.ColumnElement[int]:
    """Milliseconds from now, or from ``since``, to the moment; negative when it is past."""
    seconds = sa.extract("epoch", moment - (now() if since is None else since))
    return sa.cast(seconds * sa.literal_column("1000", sa.Integer), sa.BigInteger)


def rfc3339_text(moment: sa.ColumnElement[datetime]) -> sa.ColumnElement[str]:
    """The moment as `orders.http.schemas.types.rfc3339` writes it, for JSON."""
    in_utc = sa.func.timezone(text_literal("UTC"), moment)
    return sa.func.to_char(in_utc, text_literal('YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))


def uuid7(
    at: sa.ColumnElement[datetime], random: str | sa.ColumnElement[str]
) -> sa.ColumnElement[str]:
    """A UUIDv7 of a moment; ``random`` is what follows the time, in hex, or a parameter with it."""
    rest = sa.bindparam(random, type_=sa.String) if isinstance(random, str) else random
    digits = sa.func.to_hex(
        sa.cast(sa.extract("epoch", at) * sa.literal_column("1000", sa.Integer), sa.BigInteger)
    )
    return sa.cast(
        sa.func.lpad(digits, sa.literal_column("12"), text_literal("0")).concat(rest),
        Id,
    )


def first_uuid7(at: sa.ColumnElement[datetime]) -> sa.ColumnElement[str]:
    """The least UUIDv7 of a moment."""
    return uuid7(at, text_literal(20 * "0"))
