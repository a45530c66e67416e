"""What the services have in common: each opens its repository in a transaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import sqlalchemy as sa

from orders.sql.database import autocommit, reading, writing
from orders.sql.statements import Statements

R = TypeVar("R", bound=Statements)
T = TypeVar("T")


class Transactional(Generic[R]):
    """A service on repositories of one kind.

    Raises StorageUnavailable from every method while the database does not answer.
    """

    #: The kind of repository.
    _repository: type[R]

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @contextmanager
    def _writing(self) -> Iterator[R]:
        """A repository in a transaction: what raises leaves nothing written."""
        with writing(self._engine) as connection:
            repository = self._opened(connection)
            yield repository
        self._committed(repository)

    @contextmanager
    def _autocommit(self) -> Iterator[R]:
        """A repository whose statements are each committed by themselves.

        For a method that writes in one `Operation` or statement: it saves the round trips of BEGIN
        and COMMIT, and no lock outlasts the statement if this process freezes.
        """
        with autocommit(self._engine) as connection:
            repository = self._opened(connection)
            yield repository
        self._committed(repository)

    @contextmanager
    def _reading(self) -> Iterator[R]:
        with reading(self._engine) as connection:
            yield self._opened(connection)

    def _opened(self, connection: sa.Connection) -> R:
        return self._repository(connection)

    def _committed(self, repository: R) -> None:
        """Called after each commit. Does nothing, unless a service overrides it."""

    def _due(
        self,
        read: Callable[[R, int | None, int, int, T | None], list[T]],
        after_seconds: float | None,
        before_seconds: float,
        page_size: int,
    ) -> Iterator[list[T]]:
        """Pages of what is due within these bounds from now, soonest first.

        ``read`` returns one page, given the bounds in ms, the page size and the last row of the
        page before.
        """
        after_ms = None if after_seconds is None else round(after_seconds * 1000)
        before_ms = round(before_seconds * 1000)
        last: T | None = None
        while True:
            with self._reading() as repository:  # no connection is held while a page is used
                page = read(repository, after_ms, before_ms, page_size, last)
            if page:
                yield page
            if len(page) < page_size:
                return
            last = page[-1]
