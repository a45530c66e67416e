"""What the repositories have in common: statements on one connection, and pages of rows."""

from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.sql.expressions import Instant

p = sa.bindparam


class Position(NamedTuple):
    """Where a page ended: the time by which the list is sorted, and the id, of its last row."""

    at: datetime
    id: str


#: Before any row.
FIRST = Position(
    datetime.fromisoformat("1970-01-01T00:00:00Z"), "00000000-0000-0000-0000-000000000000"
)
#: After any row.
LAST = Position(datetime.fromisoformat("9999-12-31T00:00:00Z"), FIRST.id)


def after_last(at: sa.Column[Any], row_id: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Whether a row comes after a page's end, the parameters last_at and last_id."""
    last = sa.tuple_(p("last_at", type_=Instant), p("last_id", type_=row_id.type))
    return sa.tuple_(at, row_id) > last


class Statements:
    """Statements on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def _run(self, statement: sa.Executable, **values: Any) -> sa.CursorResult[Any]:
        return self._connection.execute(statement, values)
