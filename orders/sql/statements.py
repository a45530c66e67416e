"""What the contexts have in common: statements on one connection, and what is made of their rows."""

from collections.abc import Callable, Sequence
from datetime import datetime
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from orders.sql.expressions import Instant
from orders.sql.files import Statement
from orders.sql.steps import Operation

p = sa.bindparam
T = TypeVar("T")
#: What can be run.
Runnable = sa.Executable | Statement
#: Makes a value of a row.
Make = Callable[[sa.Row[Any]], T]


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
#: How many credentials of a kind a process knows by their ids, so that guesses do not lock their owners out.
MOST_IDS = 10_000


def after_last(at: sa.Column[Any], row_id: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Whether a row comes after a page's end, the parameters last_at and last_id."""
    last = sa.tuple_(p("last_at", type_=Instant), p("last_id", type_=row_id.type))
    return sa.tuple_(at, row_id) > last


def oldest_first(
    found: sa.Select[Any], at: sa.Column[Any], row_id: sa.Column[Any]
) -> sa.Select[Any]:
    """A page of what is found, for `Statements.page`."""
    return found.where(after_last(at, row_id)).order_by(at, row_id).limit(p("page_size"))


def newest_ids(row_id: sa.Column[Any], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The ids of the newest rows, `MOST_IDS` of them."""
    found = sa.select(row_id).where(*conditions)
    return found.order_by(row_id.desc()).limit(sa.literal_column(str(MOST_IDS)))


def made_of(kind: Callable[..., T], **convert: Callable[[Any], Any]) -> Make[T]:
    """Fill each field of ``kind`` from the column of its name, converted unless it is null."""
    names = tuple(signature(kind).parameters)

    def make(row: sa.Row[Any]) -> T:
        values = {name: getattr(row, name) for name in names}
        for name, converted in convert.items():
            if values[name] is not None:
                values[name] = converted(values[name])
        return kind(**values)

    return make


class Statements:
    """Statements on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection

    def run(self, statement: Runnable, **values: Any) -> sa.CursorResult[Any]:
        if isinstance(statement, Statement):
            return statement(self.connection, **values)
        return self.connection.execute(statement, values)

    def do(self, operation: Operation, **values: Any) -> Sequence[sa.Row[Any]]:
        return operation(self.connection, **values)

    def one(self, make: Make[T], statement: Runnable, **values: Any) -> T | None:
        """The only row; None if there is none."""
        row = self.run(statement, **values).one_or_none()
        return None if row is None else make(row)

    def all(self, make: Make[T], statement: Runnable, **values: Any) -> list[T]:
        return [make(row) for row in self.run(statement, **values)]

    def page(
        self,
        make: Make[T],
        statement: Runnable,
        page_size: int,
        after: Position | None,
        **values: Any,
    ) -> list[T]:
        """A page of a list that is sorted by time and id; ``after`` is where the one before ended."""
        at, last_id = after or FIRST
        values |= {"page_size": page_size, "last_at": at, "last_id": last_id}
        return self.all(make, statement, **values)
