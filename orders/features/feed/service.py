"""A client's events across all of its orders, in a sequence whose readers miss none.

An event gets its id when it is written, so one with a smaller id may be committed later. So whoever
writes events announces them: see ``announce.sql``. A reader asks how far the sequence is, then for
the least number that is announced: what has an id up to both is committed by now, or never will be.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from orders.db.files import Room
from orders.db.statements import Service
from orders.feature import features

SQL = Room(__package__)


class FeedEvent(NamedTuple):
    """Something that happened to one of a client's orders."""

    sequence: int
    order_id: str
    type: str
    at: datetime
    #: Of order.created, the order as it was placed.
    data: Mapping[str, Any]
    #: Of the API key that it was done with; None if there was none.
    key_id: str | None
    #: The ids of the messages about it, as long as they are kept.
    webhook_ids: Sequence[str] = ()


class Feed(Service):
    """Raises StorageUnavailable while the database does not answer."""

    def events(self, client_id: str, *, after_id: int, page_size: int) -> list[FeedEvent]:
        """A client's events after an id, in their sequence: none is added before one that was read."""
        values = {"client_id": client_id, "after_id": after_id, "page_size": page_size}
        with self._reading() as sql:
            settled = SQL.get_settled(sql).scalar_one()  # first, with a snapshot of its own
            events = [
                FeedEvent(**row._asdict())
                for row in SQL.list_events(sql, **values, settled=settled)
            ]
            ids: dict[int, Sequence[str]] = {}
            for each in features():
                ids |= each.messages(sql, events)
        return [event._replace(webhook_ids=ids.get(event.sequence, ())) for event in events]
