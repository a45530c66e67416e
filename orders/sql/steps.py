"""Operations of several steps: one statement on PostgreSQL, one after another on SQLite."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql.dml import UpdateBase

from orders.sql.expressions import epoch_ms

Statement = sa.Select[Any] | UpdateBase


class Step(Protocol):
    """Adds a step to an operation; returns a table of the rows that the step returns, for later steps."""

    def __call__(self, name: str, statement: Statement) -> sa.FromClause: ...


class Operation:
    """Named steps: the first ones decide, and the others follow from what those returned.

        @Operation
        def cancel(step: Step) -> sa.Select[Any]:
            cancelled = step("cancelled", sa.update(orders).where(...).returning(orders.c.id))
            step("event", sa.insert(order_events).from_select(..., sa.select(cancelled.c.id)))
            return sa.select(cancelled)

        [row] = cancel(connection, for_id=...)

    On PostgreSQL the steps are CTEs of one statement: one round trip, and no lock is held while the
    client does anything. All of them see the tables as they were when the statement began, so what
    a step changed is read from its RETURNING, never from the table. Of the steps that no other step
    reads, PostgreSQL runs the last one first; so a step that locks rows that others wait for comes
    first here. On SQLite, which has no CTEs that write, each step is a statement of the caller's
    transaction, and what it returned goes into the next ones as JSON.

    No parameter may have the name of a column.
    """

    def __init__(self, define: Callable[[Step], sa.Select[Any]]) -> None:
        self.__doc__ = define.__doc__
        ctes: list[sa.CTE] = []

        def step(name: str, statement: Statement) -> sa.FromClause:
            ctes.append(statement.cte(name))
            return ctes[-1]

        last = define(step)
        #: For PostgreSQL.
        self.statement = last.add_cte(*ctes)
        # SQLAlchemy caches a compiled statement under a key made from all of its parts, which for
        # one of this size takes longer than anything else; a lambda's key is its function.
        self._statement = sa.lambda_stmt(
            lambda: self.statement, track_on=[define], track_closure_variables=False
        )

        self._steps: list[tuple[str, Statement]] = []

        def step_by_step(name: str, statement: Statement) -> sa.FromClause:
            self._steps.append((name, statement))
            return _returned(name, statement)

        self._last = define(step_by_step)

    def __call__(self, connection: sa.Connection, **values: Any) -> Sequence[sa.Row[Any]]:
        """Run it; on SQLite in the transaction that the connection is in."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, values).all()
        for name, statement in self._steps:
            result = connection.execute(statement, values)
            if result.returns_rows:
                values[name] = result.all()
        return connection.execute(self._last, values).all()


class _Rows(sa.types.TypeDecorator[Any]):
    """What a step returned, as JSON."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return json.dumps([[*row] for row in value], default=epoch_ms)


def _returned(name: str, statement: Statement) -> sa.FromClause:
    """The rows that an earlier step returned, on SQLite."""
    row = sa.func.json_each(sa.bindparam(name, type_=_Rows)).table_valued("value").c.value
    return sa.select(
        *(
            sa.func.json_extract(row, f"$[{place}]", type_=column.type).label(column.name)
            for place, column in enumerate(statement.cte().c)
        )
    ).cte(name)
