"""A client's events across all of its orders, in a sequence whose readers miss none.

An event gets its id when it is written, so one with a smaller id may be committed later. So whoever
writes events announces them: see ``announce.sql``. A reader asks how far the sequence is, then for
the least number that is announced: what has an id up to both is committed by now, or never will be.
"""

from collections.abc import Sequence
from types import SimpleNamespace

from orders.db.files import Room
from orders.db.statements import Service
from orders.feature import features

SQL = Room(__package__)


class Feed(Service):
    """Raises StorageUnavailable while the database does not answer."""

    def events(self, client_id: str, *, after_id: int, page_size: int) -> list[SimpleNamespace]:
        """A client's events after an id, in their sequence: none is added before one that was read.

        As `orders.features.feed.routes.FeedEventOut` shows them.
        """
        values = {"client_id": client_id, "after_id": after_id, "page_size": page_size}
        with self._reading() as sql:
            settled = SQL.get_settled(sql).scalar_one()  # first, with a snapshot of its own
            events = SQL.list_events(sql, **values, settled=settled).all()
            ids: dict[int, Sequence[str]] = {}
            for each in features():
                ids |= each.messages(sql, events)
        return [
            SimpleNamespace(**event._asdict(), webhook_ids=ids.get(event.sequence, ()))
            for event in events
        ]
