"""How long orders are kept, and what of a person is exported and erased from them on request."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.db.database import Bind
from orders.db.errors import retried
from orders.db.files import Room
from orders.db.ids import array_of
from orders.db.statements import Service
from orders.errors import OrderNotFound
from orders.feature import features
from orders.order.service import NO_DETAILS

SQL = Room("orders.features.retention")
DAY_MS = 86_400_000
#: Changes a client's order: `OrderService.describe`, with no version expected.
Describe = Callable[[str, str, Mapping[str, Any]], object]


class Deleted(NamedTuple):
    """How many orders were deleted, and the last that was looked at; None if no more are old enough."""

    orders: int
    last_id: str | None


class Erased(NamedTuple):
    """How many messages were erased, and how many that wait for a person may still have personal data."""

    messages: int
    waiting: int


class Retention(Service):
    """Deletes a batch at a time; erases one order at a time."""

    def __init__(self, bind: Bind, describe: Describe, days: int) -> None:
        super().__init__(bind)
        self._describe = describe
        self._days = days
        self._data = [data for each in features() if (data := each.order_data())]

    @retried
    def delete(self, after_id: str, most: int, not_after: datetime) -> Deleted:
        """Delete those of the next orders after a position that are old enough and done with.

        An order counts as old when it was placed, and last changed, so many days ago: by the database's
        clock, and by ``not_after``.
        """
        if not self._days:
            return Deleted(0, None)
        with self._writing() as sql:
            values = {"kept_ms": DAY_MS * self._days, "not_after": not_after}
            page = SQL.lock(sql, after_id=after_id, page_size=most, **values).all()
            if not page:
                return Deleted(0, None)
            gone = self.delete_locked(sql, (row.id for row in page if row.is_locked), page[0].since)
        return Deleted(len(gone), page[-1].id if len(page) == most else None)

    def delete_locked(
        self, sql: sa.Connection, ids: Iterable[str], since: datetime
    ) -> Sequence[str]:
        """Delete those of some locked orders that nobody needs, with all that belongs to them; return their ids."""
        left = {*ids}
        for each in self._data:
            if each.needed:
                left -= {*each.needed(sql, ids=array_of(left), since=since).scalars()}
        gone = SQL.delete(sql, ids=array_of(left), since=since).scalars().all()
        for each in self._data:
            each.delete(sql, ids=array_of(gone))
        return gone

    def export(self, order_id: str) -> dict[str, Any]:
        """What `erase` would erase from an order and from what is kept of it, for JSON.

        Raises OrderNotFound if there is no trace of it.
        """
        # The order last: whoever sees it has seen what belongs to it.
        with self._reading() as sql:
            found = {
                each.name: [row._asdict() for row in each.export(sql, order_id=order_id)]
                for each in self._data
            }
            details = SQL.get_details(sql, order_id=order_id).first()
        if details is None and not any(found.values()):
            raise OrderNotFound
        return {"order_id": order_id, **(details._asdict() if details else {}), **found}

    def erase(self, order_id: str) -> Erased:
        """Erase a person's data from an order and from what is kept of it. Repeating it is harmless.

        Raises OrderNotFound if there is no trace of it.
        """
        with self._reading() as sql:
            client_id = SQL.get_details(sql, order_id=order_id).scalar()
        if client_id is not None:
            with suppress(OrderNotFound):  # deleted since
                self._describe(client_id, order_id, NO_DETAILS)
        found = erased = 0
        with self._autocommit() as sql:
            for each in self._data:
                if each.erase:
                    ids = [row.id for row in each.export(sql, order_id=order_id)]
                    found += len(ids)
                    erased += each.erase(sql, ids=array_of(ids)).rowcount
        if client_id is None and not found:
            raise OrderNotFound
        return Erased(erased, found - erased)
