"""What the services have in common: each method opens its repository in a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from orders.errors import OrderError
from orders.sql.database import Bind, autocommit, reading, writing
from orders.sql.statements import Make, Position, Runnable, Statements

R = TypeVar("R", bound=Statements)
T = TypeVar("T")


class Transactional(Generic[R]):
    """A service on repositories of one kind.

    Of an engine each method uses a connection of its own, and raises StorageUnavailable while the
    database does not answer; of a connection it takes part in that one's transaction.
    """

    #: The kind of repository.
    _repository: type[R]

    def __init__(self, bind: Bind) -> None:
        self._bind = bind

    @contextmanager
    def _writing(self) -> Iterator[R]:
        """A repository in a transaction: what raises leaves nothing written."""
        with writing(self._bind) as connection:
            yield self._opened(connection)

    @contextmanager
    def _autocommit(self) -> Iterator[R]:
        """A repository whose statements are each committed by themselves.

        For a method that writes in one `Operation` or statement: it saves the round trips of BEGIN
        and COMMIT, and no lock outlasts the statement if this process freezes.
        """
        with autocommit(self._bind) as connection:
            yield self._opened(connection)

    @contextmanager
    def _reading(self) -> Iterator[R]:
        with reading(self._bind) as connection:
            yield self._opened(connection)

    def _opened(self, connection: sa.Connection) -> R:
        return self._repository(connection)

    def _one(self, make: Make[T], error: type[OrderError], statement: Runnable, **values: Any) -> T:
        """Read the only row. Raises ``error`` if there is none."""
        with self._reading() as sql:
            found = sql.one(make, statement, **values)
        if found is None:
            raise error
        return found

    def _value(self, statement: Runnable, **values: Any) -> Any:
        """The only column of the only row; None if there is none."""
        with self._reading() as sql:
            return sql.run(statement, **values).scalar_one_or_none()

    def _ids(self, statement: Runnable) -> frozenset[str]:
        """The only column."""
        with self._reading() as sql:
            return frozenset(sql.run(statement).scalars())

    def _all(self, make: Make[T], statement: Runnable, **values: Any) -> list[T]:
        with self._reading() as sql:
            return sql.all(make, statement, **values)

    def _page(
        self,
        make: Make[T],
        statement: Runnable,
        page_size: int,
        after: Position | None,
        **values: Any,
    ) -> list[T]:
        with self._reading() as sql:
            return sql.page(make, statement, page_size, after, **values)


class Service(Transactional[Statements]):
    """A service that runs the statements of its context itself."""

    _repository = Statements
