"""Operations of several steps in one statement."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.sql.dml import UpdateBase


class Step(Protocol):
    """Adds a step to an operation; returns a table of the rows that the step returns, for later steps."""

    def __call__(self, name: str, statement: sa.Select[Any] | UpdateBase) -> sa.FromClause: ...


class Operation:
    """Named steps: the first ones decide, and the others follow from what those returned.

        @Operation
        def cancel(step: Step) -> sa.Select[Any]:
            cancelled = step("cancelled", sa.update(orders).where(...).returning(orders.c.id))
            step("event", sa.insert(order_events).from_select(..., sa.select(cancelled.c.id)))
            return sa.select(cancelled)

        [row] = cancel(connection, for_id=...)

    The steps are CTEs of one statement: one round trip, and no lock is held while the client does
    anything. All of them see the tables as they were when the statement began, so what a step
    changed is read from its RETURNING, never from the table. Of the steps that no other step reads,
    PostgreSQL runs the last one first; so a step that locks rows that others wait for comes first
    here.

    No parameter may have the name of a column.
    """

    def __init__(self, define: Callable[[Step], sa.Select[Any]]) -> None:
        self.__doc__ = define.__doc__
        ctes: list[sa.CTE] = []

        def step(name: str, statement: sa.Select[Any] | UpdateBase) -> sa.FromClause:
            ctes.append(statement.cte(name))
            return ctes[-1]

        last = define(step)
        self.statement = last.add_cte(*ctes)
        # SQLAlchemy caches a compiled statement under a key made from all of its parts, which for
        # one of this size takes longer than anything else; a lambda's key is its function.
        self._statement = sa.lambda_stmt(
            lambda: self.statement, track_on=[define], track_closure_variables=False
        )

    def __call__(self, connection: sa.Connection, **values: Any) -> Sequence[sa.Row[Any]]:
        return connection.execute(self._statement, values).all()


def insertion(
    table: sa.Table,
    row: Mapping[str, Any],
    *conditions: Any,
    source: sa.FromClause | None = None,
    order_by: Any = None,
    lock: bool = False,
) -> Insert:
    """Insert what is selected, and locked if need be; a value that is text is the name of a parameter."""
    values = (
        sa.bindparam(value, type_=table.c[name].type) if isinstance(value, str) else value
        for name, value in row.items()
    )
    chosen = sa.select(*values).where(*conditions).order_by(order_by)
    if source is not None:
        chosen = chosen.select_from(source)
    return insert(table).from_select([*row], chosen.with_for_update() if lock else chosen)
