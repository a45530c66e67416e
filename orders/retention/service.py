"""How long orders are kept, and what is erased from them on request."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.errors import InboxFull, OrderNotFound
from orders.retention import repository
from orders.retention.domain import named_in
from orders.retention.repository import MOST_WAITING
from orders.sql.errors import retried
from orders.sql.statements import FIRST
from orders.sql.transactions import Service

DAY_MS = 86_400_000
#: How many messages of providers are read at a time.
PAGE_SIZE = 1000
#: What erases the reference and the metadata.
NO_DETAILS = {"client_reference": None, "metadata": None}

#: Changes a client's order: `OrderService.describe`, with no version expected.
Describe = Callable[[str, str, Mapping[str, Any]], object]


class Deleted(NamedTuple):
    """How many orders were deleted, and the last that was looked at; None if no more are old enough."""

    orders: int
    last_id: str | None


class Erased(NamedTuple):
    """Where else personal data was erased, and how many messages still have some."""

    messages: int
    waiting: int


class Retention(Service):
    """Deletes a batch at a time; erases one order at a time."""

    def __init__(self, engine: sa.Engine, describe: Describe, days: int) -> None:
        super().__init__(engine)
        self._describe = describe
        self._days = days

    @retried
    def delete(self, after_id: str, most: int, not_after: datetime) -> Deleted:
        """Delete those of the next orders after a position that are old enough and done with.

        An order counts as old when it was placed, and last changed, so many days ago: by the database's
        clock, and by ``not_after``. Raises InboxFull, with nothing deleted.
        """
        if not self._days:
            return Deleted(0, None)
        with self._writing() as sql:
            waiting = sql.run(repository.LIST_WAITING).scalars().all()
            if len(waiting) > MOST_WAITING:
                raise InboxFull("No order is deleted.")
            values = {
                "mentioned": [*frozenset().union(*map(named_in, waiting))],
                "kept_ms": -DAY_MS * self._days,
                "not_after": not_after,
            }
            page = sql.do(repository.lock, after_id=after_id, page_size=most, **values)
            locked = [row.id for row in page if row.is_locked]
            gone = sql.do(repository.delete, for_ids=locked, **values) if locked else []
        return Deleted(len(gone), page[-1].id if len(page) == most else None)

    def erase(self, order_id: str) -> Erased:
        """Erase a person's data from an order and from what is kept of it. Repeating it is harmless.

        Raises OrderNotFound if there is no trace of it.
        """
        with self._reading() as sql:
            names = sql.run(repository.GET_NAMES, for_id=order_id).all()
        client_id = names[0].client_id if names else None
        references = {row.reference for row in names}
        if client_id is not None:
            with suppress(OrderNotFound):  # deleted since
                self._describe(client_id, order_id, NO_DETAILS)
            with self._autocommit() as sql:
                sql.run(repository.FORGET_SENT, for_id=order_id)
        messages, waiting = self._erase_messages(order_id, client_id, references)
        if client_id is None and not messages and not waiting:
            raise OrderNotFound
        return Erased(messages, waiting)

    def _erase_messages(
        self, order_id: str, client_id: str | None, references: set[Any]
    ) -> tuple[int, int]:
        """Erase what providers said about an order; how many messages, and how many that wait and stay."""
        erased = waiting = 0
        after_id: str | None = FIRST.id
        while after_id is not None:
            with self._autocommit() as sql:
                page = sql.run(
                    repository.LIST_MESSAGES, after_id=after_id, page_size=PAGE_SIZE
                ).all()
                about = [
                    row
                    for row in page
                    if order_id in (named := named_in(row.body))
                    or (row.client_id == client_id and references & named)
                ]
                waiting += sum(row.status == "waiting" for row in about)
                if about:
                    ids = [row.id for row in about]
                    erased += sql.run(repository.FORGET_MESSAGES, for_ids=ids).rowcount
            after_id = page[-1].id if len(page) == PAGE_SIZE else None
        return erased, waiting
