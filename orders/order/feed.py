"""A client's events across all of its orders, in a sequence whose readers miss none.

An event gets its id when it is written, so one with a smaller id may be committed later. So whoever
writes events announces them: see `orders.sql.sequences`. A reader asks how far the sequence is, then for
the least number that is announced: what has an id up to both is committed by now, or never will be.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.order.domain import Order
from orders.order.repository import data_of
from orders.order.states import with_placed
from orders.sql.expressions import Id
from orders.sql.sequences import MARK
from orders.sql.tables import order_events, webhook_deliveries
from orders.sql.transactions import Service

p = sa.bindparam


class FeedEvent(NamedTuple):
    """Something that happened to one of a client's orders."""

    sequence: int
    order_id: str
    type: str
    at: datetime
    #: Of order.created, the order as it was placed.
    data: Mapping[str, Any] | Order
    #: The ids of the messages about it, as long as they are kept.
    webhook_ids: list[str]
    #: Of the API key that it was done with; None if there was none.
    key_id: str | None


# The greatest id up to which every event is committed.
SETTLED = sa.text("""
    SELECT least(last_value, (
        SELECT min((classid::bigint & 65535) << 32 | objid::bigint) FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = :mark
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND last_value > 0  -- so that it is read first
    )) FROM order_events_id_seq
""")
_place = sa.tuple_(order_events.c.client_id, order_events.c.id)


def _at(parameter: str) -> sa.Tuple:
    return sa.tuple_(p("for_client", type_=Id), p(parameter, type_=sa.BigInteger))


_messages = sa.select(sa.func.json_agg(webhook_deliveries.c.id, type_=sa.JSON)).where(
    webhook_deliveries.c.order_id == order_events.c.order_id,
    webhook_deliveries.c.event_id == order_events.c.id,
    webhook_deliveries.c.type == order_events.c.type,  # not a reminder
)
# A client's events between two ids, in their sequence.
LIST_EVENTS = with_placed(
    sa.select(order_events, _messages.scalar_subquery().label("webhook_ids"))
    .where(_place > _at("after_id"), _place <= _at("settled"))
    .order_by(order_events.c.client_id, order_events.c.id)
    .limit(p("page_size"))
)


class Feed(Service):
    """Raises StorageUnavailable while the database does not answer."""

    def events(self, client_id: str, *, after_id: int, page_size: int) -> list[FeedEvent]:
        """A client's events after an id, in their sequence: none is added before one that was read."""
        with self._reading() as sql:  # each statement with a snapshot of its own
            settled = sql.run(SETTLED, mark=MARK).scalar_one()
            values = {"for_client": client_id, "after_id": after_id, "settled": settled}
            rows = sql.run(LIST_EVENTS, **values, page_size=page_size).all()
        return [
            FeedEvent(
                *(row.sequence, row.order_id, row.type, row.at, data_of(row)),
                *(row.webhook_ids or [], row.key_id),
            )
            for row in rows
        ]
