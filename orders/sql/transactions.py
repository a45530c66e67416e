"""What the services have in common: each opens its repository in a transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import sqlalchemy as sa

from orders.sql.database import autocommit, reading, writing
from orders.sql.statements import Statements

R = TypeVar("R", bound=Statements)


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
