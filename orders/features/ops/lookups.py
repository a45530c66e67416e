"""Orders and payments as the page shows them: bounded reads, on a connection of their own."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa

from orders.db.files import Room
from orders.db.ids import is_uuid
from orders.db.statements import Service
from orders.errors import OrderNotFound, PaymentNotFound, StorageUnavailable
from orders.feature import features
from orders.hooks import Hooks
from orders.http.schemas.orders import EventOut, OrderOut
from orders.http.schemas.payments import PaymentOut
from orders.http.schemas.types import Out, rfc3339
from orders.order.reads import Reads

SQL = Room("orders.features.ops")
Json = dict[str, Any]
T = TypeVar("T")

#: Counts stop here.
MOST_UNPAID, MOST_OVERDUE, MOST_REFUNDS = 10_000, 1000, 1000
#: The maximum lengths of the lists.
NEXT, LATEST, FOUND, LISTED = 12, 12, 20, 100


class ShownRecords(Service):
    """Raises StorageUnavailable from every method but ``state`` while the database does not answer."""

    def __init__(self, engine: sa.Engine, hooks: Hooks) -> None:
        super().__init__(engine)
        self._hooks = hooks

    def state(self) -> Json:
        """Counts and lists; or that the database does not answer."""
        lists = self._in_time(
            lambda sql: (
                SQL.list_next(sql, most=NEXT).all(),
                SQL.list_latest(sql, most=LATEST).all(),
            )
        )
        if lists is None:  # or there is no schema yet
            return {"answers": False}
        upcoming, latest = lists
        late = self._in_time(lambda sql: SQL.list_overdue(sql, most=MOST_OVERDUE).all())
        # Read only while there is something to be explained.
        is_late = late is None or late
        locked = self._in_time(self._find_locked) if is_late else None
        unpaid = self._in_time(lambda sql: SQL.count_unpaid(sql, most=MOST_UNPAID).scalar_one())
        refunds = self._in_time(lambda sql: Reads(sql).refunds_due(MOST_REFUNDS))
        sums = None if refunds is None else [each._asdict() for each in refunds]
        return {
            "answers": True,
            "unpaid": None if unpaid is None else {"count": unpaid, "most": MOST_UNPAID},
            "refunds": None if sums is None else {"sums": sums, "most": MOST_REFUNDS},
            "overdue": None if late is None else _overdue(late),
            "locked": locked or [],
            "next": [*map(_shown, upcoming)],
            "latest": [*map(_shown, latest)],
        }

    def _find_locked(self, sql: sa.Connection) -> list[str]:
        return [str(each) for hook in self._hooks.locked for each in hook(sql)]

    def _in_time(self, read: Callable[[sa.Connection], T]) -> T | None:
        """What ``read`` returns; None if the database does not answer, or this takes too long while others succeed."""
        with suppress(StorageUnavailable, sa.exc.DBAPIError), self._reading() as sql:
            return read(sql)
        return None

    def list_refunds_due(self) -> list[Json]:
        """The oldest of all clients' payments that have to be refunded."""
        with self._reading() as sql:
            return [_refund_due(row) for row in SQL.list_refunds_due(sql, most=LISTED)]

    def payer(self, payment_id: str) -> str:
        """The id of the client that a payment belongs to. Raises PaymentNotFound."""
        payer: str | None = self._value(SQL.get_payer, id=payment_id)
        if payer is None:
            raise PaymentNotFound
        return payer

    def find(self, text: str) -> list[Json]:
        """Orders with this id or reference, newest first."""
        order_id = text.lower()
        with self._reading() as sql:
            if is_uuid(order_id):
                with suppress(OrderNotFound):
                    return [{"id": Reads(sql).order(None, order_id).id}]  # all that the page needs
            return [_shown(row) for row in SQL.find_by_reference(sql, reference=text, most=FOUND)]

    def story(self, order_id: str) -> Json:
        """An order with its events and payments, and what features add to them. Raises OrderNotFound."""
        with self._reading() as sql:
            orders = Reads(sql)
            events = orders.events(None, order_id, after_id=0, page_size=LISTED)
            payments = orders.payments_of_order(None, order_id, page_size=LISTED)
            steps = [step for feature in features() for step in feature.steps(sql, order_id)]
            order = orders.order(None, order_id)  # last, as in `Reads`
        return {
            "order": _dumped(OrderOut, order),
            "events": [_dumped(EventOut, each) for each in events],
            "payments": [_dumped(PaymentOut, each) for each in payments],
            "steps": steps,
        }


def _dumped(schema: type[Out], found: object) -> Json:
    return schema.model_validate(found).model_dump(mode="json")


def _shown(order: sa.Row[Any]) -> Json:
    """An order in a list."""
    return order._asdict() | {"expires_at": rfc3339(order.expires_at)}


def _refund_due(row: sa.Row[Any]) -> Json:
    shown = {"created_at": rfc3339(row.created_at), "due_for_ms": max(0, row.due_for_ms)}
    return row._asdict() | shown


def _overdue(late: Sequence[sa.Row[Any]]) -> Json:
    """How many orders are late, and the ids of the latest ones."""
    oldest_first = sorted(late, key=lambda row: -row.ms)
    return {
        "count": len(late),
        "most": MOST_OVERDUE,
        "oldest_ms": oldest_first[0].ms if late else 0,
        "ids": [row.order_id for row in oldest_first[:LISTED]],
    }
