"""What webhooks are: subscriptions, deliveries and messages. Pure: no clock, no database, no network."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from orders.order.domain import EventType, Order

#: The queue whose ids are those of subscriptions with something to send.
WEBHOOK_QUEUE = "webhooks"


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
    origin: str | None
    #: What the first attempt sent, and every later one sends.
    body: str | None
    #: When it was claimed, by the database's clock, which dates its signature: receivers refuse old ones.
    claimed_at: datetime | None = None

    @property
    def order_id(self) -> str | None:
        return None if self.order is None else self.order.id


class WaitingSubscription(NamedTuple):
    """A subscription with a delivery that waits, and the milliseconds until the first one is due."""

    id: str
    client_id: str
    due_in_ms: int
