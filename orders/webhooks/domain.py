"""What webhooks are: subscriptions, deliveries and messages. Pure: no clock, no database, no network."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, NamedTuple

from orders.order.domain import EventType, Order
from orders.order.origin import Origin


class DeliveryStatus(StrEnum):
    """Pending, until it is delivered or dead. A dead one is not sent again unless you ask for it."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


#: What webhooks can be sent for: what happens to orders, and a reminder before their deadline.
REMINDER = "order.expiring"
WEBHOOK_TYPES = (*EventType, REMINDER)
#: A message that its receiver asked for, about nothing.
PING = "webhook.ping"
#: The events that set a deadline, and so bring a reminder with them.
SET_A_DEADLINE = (EventType.CREATED, EventType.EXTENDED)


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
    #: Until then a secret before the last rotation signs too.
    previous_secret_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one subscription. What the endpoint answered last is kept."""

    id: str
    subscription_id: str
    order_id: str | None
    type: str
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    due_at: datetime
    delivered_at: datetime | None
    last_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    last_body: str | None

    @property
    def next_attempt_at(self) -> datetime | None:
        return self.due_at if self.status is DeliveryStatus.PENDING else None


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery that is due, to be sent by the sender that claims it."""

    id: str
    #: When it is due; once it is claimed, when the lease ends. Whoever finds another value lost it.
    token: datetime
    subscription_id: str
    url: str
    #: Each of them signs.
    secrets: tuple[str, ...]
    #: How many began before this one.
    attempts: int
    type: str
    #: When it happened, and the event's number: of two events of one order the later has the greater one.
    at: datetime
    sequence: int | None
    facts: Mapping[str, Any]
    #: As it is now; None in a ping.
    order: Order | None
    #: Of the order.
    origin: Origin
    #: What the first attempt sent, and every later one sends.
    body: str | None
    #: When it was claimed, by the database's clock, which dates its signature: receivers refuse old ones.
    claimed_at: datetime | None = None

    @property
    def order_id(self) -> str | None:
        return None if self.order is None else self.order.id


class Answer(NamedTuple):
    """The outcome of sending a message: a status and the beginning of the body, or an error."""

    status: int | None
    error: str | None
    body: str | None
    #: The header of this name.
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004

    def asked_seconds(self, at: datetime) -> float:
        """For how long from this moment on the endpoint asks not to be called: in seconds, or until a date."""
        asked = self.retry_after or ""
        if asked.isascii() and asked.isdigit():
            return float(asked)
        with suppress(ValueError, OverflowError):
            until = parsedate_to_datetime(asked)
            return (until.replace(tzinfo=until.tzinfo or UTC) - at).total_seconds()
        return 0.0
