"""What SQL says of the orders, for the page: bounded reads, on a connection of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import sqlalchemy as sa

from orders.domain import Position, is_order_id
from orders.errors import OrderNotFound, PaymentNotFound, StorageUnavailable
from orders.ops.repository import OpsRepository
from orders.ops.shared import Shared
from orders.schemas.orders import EventOut, OrderOut
from orders.schemas.payments import PaymentOut
from orders.schemas.types import rfc3339
from orders.transactional import Transactional

Json = dict[str, Any]

#: How long what was read is shown to whoever asks next, in this process.
FRESH_SECONDS, SLOW_SECONDS = 1.0, 5.0
#: More are not counted.
MOST_UNPAID, MOST_OVERDUE, MOST_REFUNDS = 10_000, 1000, 1000
#: Rows of the lists.
NEXT, LATEST, FOUND, LISTED = 12, 12, 20, 100
#: A reference is looked for among so many clients' orders.
MOST_CLIENTS = 10_000


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one order but its check."""

    order: Json
    events: list[Json]
    payments: list[Json]
    deliveries: list[Json]

    def json(self) -> Json:
        return {
            "order": self.order,
            "events": self.events,
            "payments": self.payments,
            "deliveries": self.deliveries,
        }


class Records(Transactional[OpsRepository]):
    """Raises StorageUnavailable from every method but ``state`` while the database does not answer."""

    _repository = OpsRepository

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self._fresh = Shared(self._look, FRESH_SECONDS)
        self._slow = Shared(self._look_slowly, SLOW_SECONDS)

    def state(self) -> Json:
        """Counters, lists and lateness; without them, that the database does not answer."""
        fresh = self._fresh.get()
        return fresh | self._slow.get() if fresh["answers"] else fresh

    def _look(self) -> Json:
        try:
            with self._reading() as repository:
                overdue = repository.count_overdue(MOST_OVERDUE)
                upcoming = repository.next_to_expire(NEXT)
                latest = repository.latest_expired(LATEST)
        except (StorageUnavailable, sa.exc.DBAPIError):  # or there is no schema yet
            return {"answers": False}
        oldest_ms = -upcoming[0].expires_in_ms if upcoming else 0
        return {
            "answers": True,
            "overdue": {"count": overdue, "most": MOST_OVERDUE, "oldest_ms": max(0, oldest_ms)},
            "next": [_shown(row) | {"expires_in_ms": row.expires_in_ms} for row in upcoming],
            "latest": [_shown(row) | {"late_ms": row.late_ms, "ago_ms": -row.ms} for row in latest],
        }

    def _look_slowly(self) -> Json:
        try:
            with self._reading() as repository:
                unpaid = repository.count_unpaid(MOST_UNPAID)
                refunds = repository.refunds_due(MOST_REFUNDS)
                lateness = repository.lateness()
        except (StorageUnavailable, sa.exc.DBAPIError):
            return {}  # the rest may be there all the same
        return {
            "unpaid": {"count": unpaid, "most": MOST_UNPAID},
            "refunds": {"sums": [each._asdict() for each in refunds], "most": MOST_REFUNDS},
            "lateness": [_minute(late) for late in lateness],
        }

    def refunds_due(self, page_size: int, after: Position | None) -> Sequence[sa.Row[Any]]:
        with self._reading() as repository:
            return repository.list_refunds_due(page_size, after)

    def payer(self, payment_id: str) -> str:
        """Raises PaymentNotFound."""
        with self._reading() as repository:
            payer = repository.payer(payment_id)
        if payer is None:
            raise PaymentNotFound
        return payer

    def find(self, text: str) -> list[Json]:
        """Orders of this id or reference, newest first."""
        order_id = text.lower()
        with self._reading() as repository:
            if is_order_id(order_id):
                order = repository.order(order_id, None)
                if order is not None:
                    return [OrderOut.model_validate(order).model_dump(mode="json")]
            rows = repository.with_reference(text, most_clients=MOST_CLIENTS, most=FOUND)
        return [_shown(row) for row in rows]

    def story(self, order_id: str) -> Story:
        """Everything about one order but its check. Raises OrderNotFound."""
        with self._reading() as repository:
            order = repository.order(order_id, None)
            if order is None:
                raise OrderNotFound
            events = repository.events(order_id, 0, LISTED)
            payments = repository.payments_of_order(order_id, page_size=LISTED, after=None)
            deliveries = repository.list_deliveries(order_id, LISTED)
        return Story(
            OrderOut.model_validate(order).model_dump(mode="json"),
            [EventOut.model_validate(each).model_dump(mode="json") for each in events],
            [PaymentOut.model_validate(each).model_dump(mode="json") for each in payments],
            [_delivery(row) for row in deliveries],
        )


def _shown(row: sa.Row[Any]) -> Json:
    """An order in a list."""
    return {
        "id": row.id,
        "client": row.client,
        "client_reference": row.client_reference,
        "status": row.status,
        "total_minor": row.total_minor,
        "currency": row.currency,
        "expires_at": rfc3339(row.expires_at),
    }


def refund_due(row: sa.Row[Any]) -> Json:
    """A payment that is due back, in a list."""
    return {
        "id": row.id,
        "order_id": row.order_id,
        "client": row.client,
        "provider": row.provider,
        "reference": row.reference,
        "amount_minor": row.amount_minor,
        "currency": row.currency,
        "reason": row.reason,
        "created_at": rfc3339(row.created_at),
        "due_for_ms": max(0, -row.ms),
    }


def _delivery(row: sa.Row[Any]) -> Json:
    def moment(at: Any) -> str | None:
        return None if at is None else rfc3339(at)

    return {
        "id": row.id,
        "url": row.url,
        "type": row.type,
        "status": row.status,
        "attempts": row.attempts,
        "created_at": rfc3339(row.created_at),
        "next_attempt_at": moment(row.due_at) if row.status == "pending" else None,
        "delivered_at": moment(row.delivered_at),
        "last_attempt_at": moment(row.last_attempt_at),
        "last_status": row.last_status,
        "last_error": row.last_error,
    }


def _minute(late: list[int]) -> Json:
    """How late the cancellations of a minute were."""
    if not late:
        return {"count": 0, "median_ms": None, "most_ms": None}
    return {"count": len(late), "median_ms": round(median(late)), "most_ms": max(late)}
