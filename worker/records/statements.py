"""Every statement on the user's table."""

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.visitors import replacement_traverse

from ..flow import MAX_SECONDS
from .databases import PostgreSQL, SQLite


class RecordStatements:
    """No plan of theirs depends on statistics."""

    def __init__(
        self, sql: PostgreSQL | SQLite, id_: sa.Column[Any], pending: sa.ColumnElement[bool]
    ) -> None:
        self._sql = sql
        ids = sql.among("ids")
        # Opaque, so that the partial index does not qualify: without statistics a planner would rather scan
        # that index than look up the ids.
        opaque = sa.case((pending, sa.literal_column("1")), else_=sa.literal_column("0")) == (
            sa.literal_column("1")
        )
        #: Lock the records that are pending and due, among some ids and in id order. Records that another
        #: transaction has locked are skipped. The last column is the id with the type of the user's column.
        self.lock = (
            sa.select(sql.id, *([id_] if sql.id.type is not id_.type else []))
            .where(ids, opaque, sql.due <= sql.now)
            .order_by(sql.id)
            .with_for_update(key_share=True, skip_locked=True, of=id_.table)
        )
        #: Find the records that are pending, among some ids, and in how many ms each is due. Records whose due
        #: time cannot be scheduled, such as NULL and infinity, count as not pending.
        self.look = sa.select(sql.id.label("key"), sql.ms.label("ms")).where(
            ids,
            opaque,
            sql.is_time,
            sql.due <= sql.after(sa.literal(float(MAX_SECONDS), sa.Double)),
        )
        #: Whether this server takes no writes.
        self.read_only = sa.select(sql.read_only)
        self.nothing = sa.select(sql.id, sql.due).where(sa.false())
        #: Select pending records in order of due time and id, within the bounds that are named.
        self.page = cache(self._page)
        # With literals, because only then does a planner see that the partial index qualifies.
        self._pending: sa.ColumnElement[bool] = replacement_traverse(pending, {}, _literal)

    def _page(self, bounds: frozenset[str]) -> sa.Select[Any]:
        sql = self._sql
        before = sql.after(sa.bindparam("before", type_=sa.Double))
        page = (
            sa.select(sql.id.label("key"), sql.due_as_text.label("due"), sql.ms.label("ms"))
            .where(self._pending, sql.is_time, sql.due <= before)
            .order_by(sql.due, sql.id)
            .limit(sa.bindparam("page_size", type_=sa.Integer, literal_execute=True))
        )
        if "after" in bounds:  # a null bound would hide the index
            page = page.where(sql.due > sql.after(sa.bindparam("after", type_=sa.Double)))
        if "last_id" in bounds:
            last_id = sa.bindparam("last_id", type_=sql.id.type)
            page = page.where(sa.tuple_(sql.due, sql.id) > sa.tuple_(sql.last_due, last_id))
        return page


def _literal(element: Any, **_kw: Any) -> Any:
    return element.render_literal_execute() if isinstance(element, sa.BindParameter) else None
