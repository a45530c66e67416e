"""What an order is, and its rules. Pure: no clock, no database, no network."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from orders.errors import TimeoutOutOfRange


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
    ORDER_REFUNDED = "order.refunded"  # money that paid it was sent back; it stays paid
    REFUND_DUE = "payment.refund_due"
    REFUNDED = "payment.refunded"
    REFUND_FAILED = "payment.refund_failed"  # it did not arrive: what was due back is due again
    DISPUTED = "payment.disputed"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an order may stay unpaid: the default, the bounds of what is asked for, and what keeps it beyond."""

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
    quantities: Mapping[str, int]  # by SKU
    #: How long it may stay unpaid; None is the shortest of its SKUs', or the service's default.
    timeout_seconds: float | None = None
    client_reference: str | None = None
    metadata: Mapping[str, Any] | None = None
    #: Whatever its caller writes, to find where the order came from: opaque.
    origin: str | None = None


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
    refunded_minor: int = 0  # of the money that paid it
    client: str = ""  # the name of the one that owns it
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
    #: The sum of its refunds, and of the latest that stands, when it was recorded, and the provider's reference.
    refunded_minor: int = 0
    refunded_at: datetime | None = None
    refund_reference: str | None = None
    paid_at: datetime | None = None  # by the provider's clock


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """Something that happened to an order."""

    id: int
    type: EventType
    at: datetime
    data: Mapping[str, Any]  # of order.created, the order as it was placed
    key_id: str | None = None  # of the API key that it was done with, if there was one


class CancelledOrder(NamedTuple):
    """An order that was cancelled at its deadline, and how late that was by the database's clock."""

    id: str
    late_ms: int
    origin: str | None
