"""Every statement on the user's table."""

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.visitors import replacement_traverse

from ..flow import MAX_SECONDS
from .ids import IdArray, id_type


class RecordStatements:
    """No plan of theirs depends on statistics."""

    def __init__(
        self, id_: sa.Column[Any], due: sa.Column[Any], pending: sa.ColumnElement[bool]
    ) -> None:
        if not isinstance(due.type, sa.DateTime) or not due.type.timezone:
            raise TypeError(f"{due} must be TIMESTAMP(timezone=True), not {due.type!r}")
        item, self.parse = id_type(id_)
        self._id, self._due = id_, due
        self._now = sa.func.statement_timestamp(type_=due.type)
        earliest = sa.literal_column("timestamptz '0001-01-01 00:00:00Z'", due.type)
        since = sa.func.greatest(due, earliest, type_=due.type) - self._now
        #: Milliseconds from now until a record is due.
        self._ms = sa.cast(sa.extract("epoch", since) * 1000, sa.Double)
        among = self._among(item)
        # Opaque, so that the partial index does not qualify: without statistics a planner would rather scan
        # that index than look up the ids.
        opaque = sa.case((pending, sa.literal_column("1")), else_=sa.literal_column("0")) == (
            sa.literal_column("1")
        )
        #: Lock the records that are pending and due, among some ids and in id order. Records that another
        #: transaction has locked are skipped.
        self.lock = (
            sa.select(id_)
            .where(among, opaque, self._due <= self._now)
            .order_by(self._id)
            .with_for_update(key_share=True, skip_locked=True, of=id_.table)
        )
        #: Find the records that are pending, among some ids, and in how many ms each is due. Records whose due
        #: time cannot be scheduled, such as NULL and infinity, count as not pending.
        self.look = sa.select(self._id.label("key"), self._ms.label("ms")).where(
            among, opaque, self._due <= self.after(sa.literal(float(MAX_SECONDS), sa.Double))
        )
        #: Select pending records in order of due time and id, within the bounds that are named.
        self.page = cache(self._page)
        # With literals, because only then does a planner see that the partial index qualifies.
        self._pending: sa.ColumnElement[bool] = replacement_traverse(pending, {}, _literal)

    def after(
        self, seconds: sa.ColumnElement[float], since: sa.Column[Any] | None = None
    ) -> sa.ColumnElement[Any]:
        """A time ``seconds`` from now, or after another."""
        start = self._now if since is None else sa.type_coerce(since, self._now.type)
        return start + seconds * sa.literal_column("interval '1 second'", sa.Interval)

    def _among(self, item: sa.types.TypeEngine[Any]) -> sa.ColumnElement[bool]:
        """Whether the id is in the list that is passed as the parameter ``ids``."""
        # The subselect is evaluated once. A cast parameter is not a constant: as a filter it would be
        # parsed again for every row, and without statistics a planner may well choose to filter.
        array = postgresql.ARRAY(item)
        given = sa.cast(sa.bindparam("ids", type_=IdArray(item)), array)
        values = sa.func.array(sa.select(sa.func.unnest(given)).scalar_subquery())
        return self._id == sa.any_(sa.type_coerce(values, array))

    def _page(self, bounds: frozenset[str]) -> sa.Select[Any]:
        id_, due = self._id, self._due
        # Read as text, because Python has no times before the year 1, such as -infinity. Those are overdue.
        due_as_text = sa.cast(due, sa.Text).label("due")
        page = (
            sa.select(id_.label("key"), due_as_text, self._ms.label("ms"))
            .where(self._pending, due <= self.after(sa.bindparam("before", type_=sa.Double)))
            .order_by(due, id_)
            .limit(sa.bindparam("page_size", type_=sa.Integer, literal_execute=True))
        )
        if "after" in bounds:  # a null bound would hide the index
            page = page.where(due > self.after(sa.bindparam("after", type_=sa.Double)))
        if "last_id" in bounds:
            last_due = sa.cast(sa.bindparam("last_due", type_=sa.Text), self._now.type)
            last_id = sa.bindparam("last_id", type_=id_.type)
            page = page.where(sa.tuple_(due, id_) > sa.tuple_(last_due, last_id))
        return page


def _literal(element: Any, **_kw: Any) -> Any:
    return element.render_literal_execute() if isinstance(element, sa.BindParameter) else None
