"""What an order is, and its rules. Pure: no clock, no database, no network."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from orders.errors import MixedCurrencies, OutOfStock, TotalTooLarge, UnknownSku
from orders.origin import Origin

#: Amounts travel as JSON numbers, which are exact up to here in every language.
MAX_MINOR = 2**53 - 1
#: What the columns for quantities hold.
MAX_INT = 2**31 - 1


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


class Position(NamedTuple):
    """Where a page ended: the time by which the list is sorted, and the id, of its last row."""

    at: datetime
    id: str


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
class StockItem:
    """A SKU on the shelf. ``on_hand`` includes ``reserved``, which unpaid orders hold."""

    sku: str
    on_hand: int
    reserved: int
    price_minor: int
    currency: str

    @property
    def available(self) -> int:
        return self.on_hand - self.reserved

    @property
    def version(self) -> str:
        """What an operator sets. Not ``reserved``, which every order for a popular SKU changes."""
        return f"{self.on_hand}-{self.price_minor}-{self.currency}"


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A change of a SKU's stock on hand that no order made."""

    #: Grows with each change of the SKU.
    id: int
    sku: str
    #: The client's name; None for the command line.
    client: str | None
    delta: int
    reason: str
    #: Afterwards.
    on_hand: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Expected:
    """The version that a writer expects to find."""

    #: It must have one of these; None is any.
    versions: frozenset[str] | None = None
    #: Whether it must exist already; None is either.
    exists: bool | None = None


ANYTHING = Expected()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an order."""

    id: int
    type: str
    at: datetime
    #: Of order.created, the order as it was placed.
    data: Mapping[str, Any] | Order


class DeliveryStatus(StrEnum):
    """Pending, until it is delivered or dead. A dead one is not sent again unless you ask for it."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


#: What webhooks can be sent for: what happens to orders, and a reminder before their deadline.
REMINDER = "order.expiring"
WEBHOOK_TYPES = (
    *("order.created", "order.paid", "order.cancelled", "order.extended", REMINDER),
    *("payment.refund_due", "payment.refunded"),
)
#: The events that set a deadline, and so bring a reminder with them.
SET_A_DEADLINE = ("order.created", "order.extended")


@dataclass(frozen=True, slots=True)
class Subscription:
    """Where a client wants its events to be sent, and which of them; None: all."""

    id: str
    url: str
    events: tuple[str, ...] | None
    created_at: datetime
    paused_at: datetime | None
    #: requested, or gone: the endpoint answered 410.
    pause_reason: str | None
    #: Until then the secret before the last rotation signs too.
    previous_secret_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one subscription. What the endpoint answered last is kept."""

    id: str
    subscription_id: str
    order_id: str
    type: str
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    last_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    last_body: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery that this process may send now, until its lease ends."""

    id: str
    #: Proof of the lease.
    leased_until: datetime
    subscription_id: str
    url: str
    #: Each of them signs.
    secrets: tuple[str, ...]
    attempts: int
    type: str
    #: When it happened, and the event's number: of two events of one order the later has the greater one.
    at: datetime
    sequence: int
    facts: Mapping[str, Any]
    #: As it is now.
    order: Order
    #: Of the order.
    origin: Origin


class Answer(NamedTuple):
    """The outcome of sending a message: a status and the beginning of the body, or an error."""

    status: int | None
    error: str | None
    body: str | None

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class Client:
    """Who calls, and what the key they sent may do: a customer, the shop's back office, or both."""

    id: str
    name: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class ValidKey:
    """Whose an API key is, and what it may do."""

    client: Client
    secret_hash: str
    #: Until it expires.
    valid_ms: float
    #: Since its use was last noted.
    unused_ms: float
    #: Whether the database is read-only.
    read_only: bool


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key: all but the key itself."""

    id: str
    #: The client's name.
    client: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None
    #: To the minute.
    last_used_at: datetime | None
    expired: bool


@dataclass(frozen=True, slots=True)
class ProviderEndpoint:
    """Where a payment provider sends its webhooks: all that is known of it but the secrets."""

    id: str
    #: The client's name.
    client: str
    provider: str
    created_at: datetime
    revoked_at: datetime | None
    #: Until when a message may be signed with the secret before the last rotation.
    old_secret_until: datetime | None


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


ORDER_ID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_order_id(text: str) -> bool:
    """Whether this is a UUID in the form in which ids are written."""
    return ORDER_ID.fullmatch(text) is not None
