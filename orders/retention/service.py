"""How long orders are kept, and what of a person is exported and erased from them on request."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.errors import OrderNotFound
from orders.order.details import NO_DETAILS
from orders.retention import repository
from orders.sql.errors import retried
from orders.sql.transactions import Service

DAY_MS = 86_400_000
#: Changes a client's order: `OrderService.describe`, with no version expected.
Describe = Callable[[str, str, Mapping[str, Any]], object]


class Deleted(NamedTuple):
    """How many orders were deleted, and the last that was looked at; None if no more are old enough."""

    orders: int
    last_id: str | None


class Erased(NamedTuple):
    """How many messages were deleted, and how many that wait may still have personal data."""

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
        clock, and by ``not_after``.
        """
        if not self._days:
            return Deleted(0, None)
        with self._writing() as sql:
            values = {"kept_ms": -DAY_MS * self._days, "not_after": not_after}
            page = sql.do(repository.lock, after_id=after_id, page_size=most, **values)
            locked = [row.id for row in page if row.is_locked]
            gone = sql.do(repository.delete, for_ids=locked, **values) if locked else []
        return Deleted(len(gone), page[-1].id if len(page) == most else None)

    def export(self, order_id: str) -> dict[str, Any]:
        """What `erase` would erase from an order and from what is kept of it, for JSON.

        Raises OrderNotFound if there is no trace of it.
        """
        # The order last: whoever sees it has seen what belongs to it.
        queries = (repository.GET_SENT, repository.GET_MESSAGES, repository.GET_DETAILS)
        with self._reading() as sql:
            sent, messages, details = (
                [row._asdict() for row in sql.run(query, for_id=order_id)] for query in queries
            )
        if not details and not messages:
            raise OrderNotFound
        own = details[0] if details else {}
        return {"order_id": order_id, **own, "webhooks": sent, "provider_messages": messages}

    def erase(self, order_id: str) -> Erased:
        """Erase a person's data from an order and from what is kept of it. Repeating it is harmless.

        Raises OrderNotFound if there is no trace of it.
        """
        with self._reading() as sql:
            client_id = sql.run(repository.GET_DETAILS, for_id=order_id).scalar()
        if client_id is not None:
            with suppress(OrderNotFound):  # deleted since
                self._describe(client_id, order_id, NO_DETAILS)
        with self._autocommit() as sql:
            messages = sql.run(repository.FORGET_MESSAGES, for_id=order_id).rowcount
            waiting = sql.run(repository.COUNT_WAITING, for_id=order_id).scalar_one()
        if client_id is None and not messages and not waiting:
            raise OrderNotFound
        return Erased(messages, waiting)
