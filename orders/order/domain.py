"""What an order is, and its rules. Pure: no clock, no database, no network."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from orders.errors import MixedCurrencies, OutOfStock, TotalTooLarge, UnknownSku
from orders.order.origin import Origin
from orders.stock.domain import MAX_MINOR, StockItem


class OrderStatus(StrEnum):
    """Paid and cancelled are final."""

    UNPAID = "unpaid"
    PAID = "paid"
    CANCELLED = "cancelled"


class PaymentStatus(StrEnum):
    """Money that came too late, twice, or in the wrong amount is kept and marked for refund."""

    APPLIED = "applied"
    REFUND_DUE = "refund_due"
    REFUNDED = "refunded"


class CancelReason(StrEnum):
    """Why an order was cancelled."""

    EXPIRED = "expired"
    REQUESTED = "requested"


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
    #: Why it has to be refunded: order_cancelled, already_paid or wrong_amount.
    reason: str | None
    created_at: datetime
    refunded_at: datetime | None = None
    #: The provider's.
    refund_reference: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an order."""

    id: int
    type: str
    at: datetime
    #: Of order.created, the order as it was placed.
    data: Mapping[str, Any] | Order


class Cancelled(NamedTuple):
    """An order that was cancelled at its deadline, and how late that was by the database's clock."""

    id: str
    late_ms: int
    origin: Origin


class Waiting(NamedTuple):
    """An unpaid order, and the milliseconds until it expires; negative when it is overdue."""

    id: str
    expires_at: datetime
    expires_in_ms: int


class RefundsDue(NamedTuple):
    """Money in one currency that has to be refunded, and how long the oldest of it has waited."""

    currency: str
    payments: int
    amount_minor: int
    oldest_ms: int


def total_minor(items: Iterable[Item]) -> int:
    """The order's total. Raises TotalTooLarge past `MAX_MINOR`."""
    total = sum(item.quantity * item.unit_price_minor for item in items)
    if total > MAX_MINOR:
        raise TotalTooLarge(f"It may be {MAX_MINOR} at most.")
    return total


def check_basket(quantities: Mapping[str, int], shelf: Mapping[str, StockItem]) -> None:
    """Raises UnknownSku, OutOfStock, MixedCurrencies or TotalTooLarge if this cannot be ordered."""
    wanted = sorted(quantities.items())
    for sku, quantity in wanted:
        if sku not in shelf:
            raise UnknownSku(sku, sku=sku)
        if quantity > shelf[sku].available:
            raise OutOfStock(sku, sku=sku, available=shelf[sku].available)
    currencies = sorted({shelf[sku].currency for sku, _ in wanted})
    if len(currencies) != 1:
        raise MixedCurrencies(f"These have {', '.join(currencies)}.")
    total_minor(Item(sku, quantity, shelf[sku].price_minor) for sku, quantity in wanted)
