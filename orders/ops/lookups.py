"""Orders, payments and webhooks as the page shows them: bounded reads, on a connection of their own."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa

from orders.caches import SharedRead
from orders.errors import OrderNotFound, PaymentNotFound, StorageUnavailable
from orders.http.schemas.orders import EventOut, OrderOut
from orders.http.schemas.payments import PaymentOut
from orders.http.schemas.types import Out, rfc3339
from orders.http.schemas.webhooks import DeliveryOut
from orders.ops import repository
from orders.order.domain import Order
from orders.order.repository import OrderRepository
from orders.order.states import status_of
from orders.sql.ids import is_uuid
from orders.sql.statements import Position
from orders.sql.transactions import Transactional
from orders.watch.locked import locked_rows
from orders.webhooks.repository import DELIVERY

Json = dict[str, Any]
T = TypeVar("T")

#: How long each half of `ShownRecords.state` is shared by all who ask this process.
FRESH_SECONDS, SLOW_SECONDS = 1.0, 5.0
#: Counts stop here.
MOST_UNPAID, MOST_OVERDUE, MOST_REFUNDS = 10_000, 1000, 1000
#: The maximum lengths of the lists.
NEXT, LATEST, FOUND, LISTED = 12, 12, 20, 100


class ShownRecords(Transactional[OrderRepository]):
    """Raises StorageUnavailable from every method but ``state`` while the database does not answer."""

    _repository = OrderRepository

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self._fresh = SharedRead(self._read_fresh, FRESH_SECONDS)
        self._slow = SharedRead(self._read_slow, SLOW_SECONDS)

    def state(self) -> Json:
        """Counts and lists; or that the database does not answer."""
        fresh = self._fresh.get()
        return fresh | self._slow.get() if fresh["answers"] else fresh

    def _read_fresh(self) -> Json:
        lists = self._in_time(
            lambda sql: (
                sql.run(repository.LIST_NEXT, most=NEXT).all(),
                sql.run(repository.LIST_LATEST, most=LATEST).all(),
            )
        )
        if lists is None:  # or there is no schema yet
            return {"answers": False}
        upcoming, latest = lists
        late = self._in_time(lambda sql: sql.run(repository.LIST_OVERDUE, most=MOST_OVERDUE).all())
        # Read only while there is something to be explained.
        is_late = late is None or late
        locked = self._in_time(lambda sql: locked_rows(sql.connection)) if is_late else None
        return {
            "answers": True,
            "overdue": None if late is None else _overdue(late),
            "locked": [str(each) for each in locked or ()],
            "next": [
                _shown(row) | {"expires_in_ms": row.expires_in_ms, "frozen": row.is_frozen}
                for row in upcoming
            ],
            "latest": [_shown(row) | {"late_ms": row.late_ms, "ago_ms": -row.ms} for row in latest],
        }

    def _in_time(self, read: Callable[[OrderRepository], T]) -> T | None:
        """What ``read`` returns; None if the database does not answer, or this takes too long while others succeed."""
        with suppress(StorageUnavailable, sa.exc.DBAPIError), self._reading() as sql:
            return read(sql)
        return None

    def _read_slow(self) -> Json:
        found = self._in_time(
            lambda sql: (
                sql.run(repository.COUNT_UNPAID, most=MOST_UNPAID).scalar_one(),
                sql.refunds_due(MOST_REFUNDS),
            )
        )
        if found is None:
            return {}
        unpaid, refunds = found
        return {
            "unpaid": {"count": unpaid, "most": MOST_UNPAID},
            "refunds": {"sums": [each._asdict() for each in refunds], "most": MOST_REFUNDS},
        }

    def refunds_due(self, page_size: int, after: Position | None) -> list[sa.Row[Any]]:
        """All clients' payments that have to be refunded, oldest first."""
        return self._page(lambda row: row, repository.LIST_REFUNDS_DUE, page_size, after)

    def payer(self, payment_id: str) -> str:
        """The id of the client that a payment belongs to. Raises PaymentNotFound."""
        payer: str | None = self._value(repository.GET_PAYER, for_id=payment_id)
        if payer is None:
            raise PaymentNotFound
        return payer

    def find(self, text: str) -> list[Json]:
        """Orders with this id or reference, newest first."""
        order_id = text.lower()
        with self._reading() as sql:
            if is_uuid(order_id) and (order := sql.order(order_id, None)):
                return [_shown(order)]
            values = {"for_reference": text, "page_size": FOUND}
            return sql.all(_shown, repository.FIND_BY_REFERENCE, **values)

    def story(self, order_id: str) -> Json:
        """An order with its events, payments and webhook deliveries. Raises OrderNotFound."""
        with self._reading() as sql:
            events = sql.events(order_id, 0, LISTED)
            payments = sql.payments_of_order(order_id, page_size=LISTED, after=None)
            values = {"for_order": order_id, "most": LISTED}
            deliveries = sql.all(_delivery, repository.LIST_DELIVERIES, **values)
            order = sql.order(order_id, None)  # last, as in `OrderRepository.check`
        if order is None:
            raise OrderNotFound
        return {
            "order": _dumped(OrderOut, order),
            "events": [_dumped(EventOut, each) for each in events],
            "payments": [_dumped(PaymentOut, each) for each in payments],
            "deliveries": deliveries,
        }


def _dumped(schema: type[Out], found: object) -> Json:
    return schema.model_validate(found).model_dump(mode="json")


def _shown(order: Order | sa.Row[Any]) -> Json:
    """An order in a list."""
    return {
        "id": order.id,
        "client": order.client,
        "client_reference": order.client_reference,
        "status": order.status if isinstance(order, Order) else status_of(order),
        "total_minor": order.total_minor,
        "currency": order.currency,
        "expires_at": rfc3339(order.expires_at),
    }


def refund_due(row: sa.Row[Any]) -> Json:
    """A payment that has to be refunded, in a list."""
    return {
        "id": row.id,
        "order_id": row.order_id,
        "client": row.client,
        "provider": row.provider,
        "reference": row.reference,
        "amount_minor": row.amount_minor - row.refunded_minor,
        "currency": row.currency,
        "reason": row.reason,
        "created_at": rfc3339(row.created_at),
        "due_for_ms": max(0, -row.ms),
    }


def _delivery(row: sa.Row[Any]) -> Json:
    """A webhook delivery, with the URL that it is sent to."""
    shown = DeliveryOut.model_validate(DELIVERY(row))
    more = {"url": row.url, "paused": row.paused_at is not None}
    return shown.model_dump(mode="json", exclude={"last_body"}) | more


def _overdue(late: Sequence[sa.Row[Any]]) -> Json:
    """How many orders are late, and the ids of the latest ones."""
    oldest_first = sorted(late, key=lambda row: -row.ms)
    return {
        "count": len(late),
        "most": MOST_OVERDUE,
        "oldest_ms": oldest_first[0].ms if late else 0,
        "ids": [row.order_id for row in oldest_first[:LISTED]],
    }
