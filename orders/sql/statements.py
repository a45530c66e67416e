"""What the repositories have in common: statements on one connection, and pages of rows."""

from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.sql.expressions import Instant, later, ms_until, now

p = sa.bindparam


class Position(NamedTuple):
    """Where a page ended: the time by which the list is sorted, and the id, of its last row."""

    at: datetime
    id: str


#: Before any row.
FIRST = Position(
    datetime.fromisoformat("1970-01-01T00:00:00Z"), "00000000-0000-0000-0000-000000000000"
)


def after_last(at: sa.Column[Any], row_id: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Whether a row comes after a page's end, the parameters last_at and last_id."""
    last = sa.tuple_(p("last_at", type_=Instant), p("last_id", type_=row_id.type))
    return sa.tuple_(at, row_id) > last


class ByDue(NamedTuple):
    """A page of waiting rows by due time: up to a time, or between two times."""

    until: sa.Select[Any]
    between: sa.Select[Any]


def by_due(due: sa.Column[Any], row_id: sa.Column[Any], *pending: sa.ColumnElement[bool]) -> ByDue:
    """The statements for a table. Two, because with a null bound the index would not be used."""
    until = (
        sa.select(row_id.label("id"), due, ms_until(due).label("ms"))
        .where(*pending, due <= later(now(), "before_ms"), after_last(due, row_id))
        .order_by(due, row_id)
        .limit(p("page_size"))
    )
    return ByDue(until, until.where(due > later(now(), "after_ms")))


class Statements:
    """Statements on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def _run(self, statement: sa.Executable, **values: Any) -> sa.CursorResult[Any]:
        return self._connection.execute(statement, values)

    def _run_due(
        self,
        statements: ByDue,
        after_ms: int | None,
        before_ms: int,
        page_size: int,
        last: Position,
    ) -> sa.CursorResult[Any]:
        values: dict[str, Any] = {"before_ms": before_ms, "page_size": page_size}
        values |= {"last_at": last.at, "last_id": last.id}
        if after_ms is None:
            return self._run(statements.until, **values)
        return self._run(statements.between, **values, after_ms=after_ms)
