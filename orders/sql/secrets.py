"""Signing secrets, one per row: a rotation adds one, and the others expire some time later.

So a rotation whose response was lost invalidates no secret that is in use.
"""

from typing import Any

import sqlalchemy as sa

from orders.sql.expressions import Id, later, now
from orders.sql.ids import new_id
from orders.sql.statements import Statements

p = sa.bindparam


class Secrets:
    """The secrets in a table whose first column is their owner's id.

    They change in the transaction that locked their owner, and after it did: a statement that waits
    for the lock does not see what the holder wrote.
    """

    def __init__(self, table: sa.Table) -> None:
        self._table = table
        self._owner = table.columns[0]
        of_owner, until = self._owner == p("for_owner", type_=Id), table.c.expires_at
        soon = later(now(), "for_ms")
        self._delete = sa.delete(table).where(of_owner)
        self._delete_expired = self._delete.where(until <= now())
        self._expire = (
            sa.update(table)
            .where(of_owner, sa.func.coalesce(until > soon, sa.true()))
            .values(expires_at=soon)
        )

    def add(self, sql: Statements, owner_id: str, secret: str) -> None:
        """Insert a secret that does not expire."""
        row = {self._owner.name: owner_id, "id": new_id(), "secret": secret, "created_at": now()}
        sql.run(sa.insert(self._table).values(row))

    def replace(self, sql: Statements, owner_id: str, secret: str, overlap_ms: int) -> None:
        """Insert a secret, make the others expire, and delete those that have expired."""
        for statement in (self._delete_expired, self._expire):
            sql.run(statement, for_owner=owner_id, for_ms=overlap_ms)
        self.add(sql, owner_id, secret)

    def delete(self, sql: Statements, owner_id: str) -> None:
        sql.run(self._delete, for_owner=owner_id)

    @property
    def is_valid(self) -> sa.ColumnElement[bool]:
        """Whether a secret has not expired."""
        return sa.func.coalesce(self._table.c.expires_at > now(), sa.true())

    def old_until(self, owner_id: sa.ColumnElement[str]) -> sa.ScalarSelect[Any]:
        """Until when a secret before the last rotation is valid."""
        until = self._table.c.expires_at
        newest = sa.select(sa.func.max(until)).where(self._owner == owner_id, until > now())
        return newest.scalar_subquery()
