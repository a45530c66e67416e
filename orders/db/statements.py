"""What the services have in common: each method opens a transaction, runs statements, and makes values of their rows."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from inspect import signature
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from orders.db.database import Bind, autocommit, reading, writing
from orders.db.files import Statement
from orders.errors import OrderError

T = TypeVar("T")
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


def as_it_is(row: sa.Row[Any]) -> sa.Row[Any]:
    """For what a schema shows of it."""
    return row


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


def one(make: Make[T], rows: sa.CursorResult[Any]) -> T | None:
    """Of the only row; None if there is none."""
    row = rows.one_or_none()
    return None if row is None else make(row)


class Service:
    """Of an engine each method uses a connection of its own, and raises StorageUnavailable while the
    database does not answer; of a connection it takes part in that one's transaction.
    """

    def __init__(self, bind: Bind) -> None:
        self._bind = bind

    def _writing(self) -> AbstractContextManager[sa.Connection]:
        """A transaction: what raises leaves nothing written."""
        return writing(self._bind)

    def _autocommit(self) -> AbstractContextManager[sa.Connection]:
        """For a method that writes in one statement: no lock outlasts it if this process freezes."""
        return autocommit(self._bind)

    def _reading(self) -> AbstractContextManager[sa.Connection]:
        return reading(self._bind)

    def _one_or_none(self, make: Make[T], statement: Statement, **values: Any) -> T | None:
        """Read the only row; None if there is none."""
        with self._reading() as sql:
            return one(make, statement(sql, **values))

    def _one(
        self, make: Make[T], error: type[OrderError], statement: Statement, **values: Any
    ) -> T:
        """Likewise. Raises ``error`` if there is none."""
        if (found := self._one_or_none(make, statement, **values)) is None:
            raise error
        return found

    def _value(self, statement: Statement, **values: Any) -> Any:
        """The only column of the only row; None if there is none."""
        with self._reading() as sql:
            return statement(sql, **values).scalar_one_or_none()

    def _ids(self, statement: Statement, **values: Any) -> frozenset[str]:
        """The only column."""
        with self._reading() as sql:
            return frozenset(statement(sql, **values).scalars())

    def _all(self, make: Make[T], statement: Statement, **values: Any) -> list[T]:
        with self._reading() as sql:
            return [make(row) for row in statement(sql, **values)]

    def _page(
        self,
        make: Make[T],
        statement: Statement,
        page_size: int,
        after: Position | None,
        **values: Any,
    ) -> list[T]:
        """A page of a list that is sorted by time and id; ``after`` is where the one before ended."""
        at, last_id = after or FIRST
        values |= {"page_size": page_size, "last_at": at, "last_id": last_id}
        return self._all(make, statement, **values)
