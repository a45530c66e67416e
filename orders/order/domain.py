"""What an order is, and its rules. Pure: no clock, no database, no network."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from orders.errors import TimeoutOutOfRange
from orders.order.origin import Origin


def as_stored(moment: datetime) -> datetime:
    """A moment in UTC, rounded down to the millisecond.

    Raises ValueError for one that has no year from 1 to 9999 there: it could be stored, and not read.
    """
    try:
        utc = moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("it is not in the years 1 to 9999, in UTC") from error
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


class OrderStatus(StrEnum):
    """Paid and cancelled are final."""

    UNPAID = "unpaid"
    PAID = "paid"
    CANCELLED = "cancelled"


class PaymentStatus(StrEnum):
    """Money that came too late, twice, or in the wrong amount is kept and marked for refund.

    Refunded once all of it was sent back, whether it had been applied or was due.
    """

    APPLIED = "applied"
    REFUND_DUE = "refund_due"
    REFUNDED = "refunded"


class CancelReason(StrEnum):
    """Why an order was cancelled."""

    EXPIRED = "expired"
    REQUESTED = "requested"


class EventType(StrEnum):
    """What happens to orders and their payments."""

    CREATED = "order.created"
    EXTENDED = "order.extended"
    PAID = "order.paid"
    CANCELLED = "order.cancelled"
    #: Some or all of the money that paid the order was sent back. It stays paid.
    ORDER_REFUNDED = "order.refunded"
    REFUND_DUE = "payment.refund_due"
    #: Some or all of the money that was due back was sent.
    REFUNDED = "payment.refunded"
    #: A refund that was recorded did not arrive: of money that was due back, it is due again.
    REFUND_FAILED = "payment.refund_failed"
    DISPUTED = "payment.disputed"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an order may stay unpaid: the default, and the bounds on what a request may ask for.

    Payments under way may keep it beyond that.
    """

    default_seconds: float
    min_seconds: float
    max_seconds: float
    kept_seconds: float = 1800

    def ms(self, asked_seconds: float | None) -> int:
        """Raises TimeoutOutOfRange."""
        seconds = self.default_seconds if asked_seconds is None else asked_seconds
        if not self.min_seconds <= seconds <= self.max_seconds:
            raise TimeoutOutOfRange(f"It must be {self.bounds}.")
        return round(seconds * 1000)

    @property
    def bounds(self) -> str:
        return f"{self.min_seconds:g} to {self.max_seconds:g} s"

    @property
    def bounds_ms(self) -> tuple[int, int]:
        return round(self.min_seconds * 1000), round(self.max_seconds * 1000)

    @property
    def kept_ms(self) -> int:
        return round(self.kept_seconds * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOrder:
    """An order that a client wants to place."""

    client_id: str
    #: The idempotency key, and what tells this request from others with the same key.
    key: str
    fingerprint: str
    #: By SKU.
    quantities: Mapping[str, int]
    #: How long it may stay unpaid; None is the shortest of its SKUs', or the service's default.
    timeout_seconds: float | None = None
    client_reference: str | None = None
    metadata: Mapping[str, Any] | None = None
    origin: Origin = Origin()  # noqa: RUF009  a tuple


@dataclass(frozen=True, slots=True)
class Item:
    """A quantity of one SKU, at its price when the order was placed."""

    sku: str
    quantity: int
    unit_price_minor: int


@dataclass(frozen=True, slots=True)
class Order:
    """An order. Money is in minor units of ``currency``; times are aware."""

    id: str
    status: OrderStatus
    currency: str
    total_minor: int
    items: tuple[Item, ...]
    created_at: datetime
    expires_at: datetime
    paid_at: datetime | None = None
    cancelled_at: datetime | None = None
    cancel_reason: str | None = None
    version: int = 1
    #: How much was sent back of the money that paid it.
    refunded_minor: int = 0
    #: The name of the client that owns it.
    client: str = ""
    #: The client's own name for it, and whatever else the client keeps with it.
    client_reference: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment for an order, as its provider reported it."""

    id: str
    order_id: str
    provider: str
    reference: str
    amount_minor: int
    currency: str
    status: PaymentStatus
    #: Why it has to be refunded: order_cancelled, paid_in_time, already_paid or wrong_amount.
    reason: str | None
    created_at: datetime
    #: The sum of its refunds, and of the latest, when it was recorded, and the provider's reference.
    refunded_minor: int = 0
    refunded_at: datetime | None = None
    refund_reference: str | None = None
    #: By the provider's clock.
    paid_at: datetime | None = None


class Entry(NamedTuple):
    """A refund of a payment, or a dispute, as its provider reports it."""

    reference: str
    #: Without an amount, a refund is of all that is left, and a dispute of the whole payment.
    amount_minor: int | None = None
    #: If given, the payment's.
    currency: str | None = None
    #: refund, or failed if the refund did; or of a dispute, opened, won or lost.
    kind: str = "refund"


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """Something that happened to an order."""

    id: int
    type: EventType
    at: datetime
    #: Of order.created, the order as it was placed.
    data: Mapping[str, Any] | Order
    #: Of the API key that it was done with; None if there was none.
    key_id: str | None = None


class CancelledOrder(NamedTuple):
    """An order that was cancelled at its deadline, and how late that was by the database's clock."""

    id: str
    late_ms: int
    origin: Origin


class RefundsDue(NamedTuple):
    """Money in one currency that has to be refunded, and how long the oldest of it has waited."""

    currency: str
    payments: int
    amount_minor: int
    oldest_ms: int
