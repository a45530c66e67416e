"""Webhook subscriptions and deliveries."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from orders.domain import (
    WEBHOOK_TYPES,
    Delivery,
    DeliveryStatus,
    Position,
    Subscription,
)
from orders.schemas.paging import Query, cursor
from orders.schemas.types import In, Moment, Out

EventType = Literal[
    "order.created",
    "order.paid",
    "order.cancelled",
    "order.extended",
    "order.expiring",
    "payment.refund_due",
    "payment.refunded",
]
assert set(EventType.__args__) == set(WEBHOOK_TYPES)  # type: ignore[attr-defined]


class WebhookIn(In):
    """Where to send events, and which."""

    url: Annotated[
        str,
        StringConstraints(min_length=1, max_length=2000),
        Field(description="https or http, without a user", examples=["https://shop.example/hook"]),
    ]
    events: Annotated[
        list[EventType] | None,
        Field(min_length=1, max_length=len(WEBHOOK_TYPES), description="All, unless named."),
    ] = None

    @field_validator("events")
    @classmethod
    def _each_once(cls, events: list[str] | None) -> list[str] | None:
        if events is not None and len(set(events)) != len(events):
            raise ValueError("an event is named twice")
        return events


class WebhookChangeIn(In):
    """Paused: deliveries are kept for later."""

    paused: bool


class WebhooksQuery(Query):
    """Which of one's subscriptions."""

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self.position("webhooks")

    def cursor_after(self, subscription: Subscription) -> str:
        """The cursor of the page that follows this subscription."""
        return cursor("webhooks", subscription.created_at, subscription.id)


class DeliveriesQuery(Query):
    """Which of a subscription's deliveries."""

    status: Literal["pending", "delivered", "dead"] | None = None

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self.position("deliveries")

    def cursor_after(self, delivery: Delivery) -> str:
        """The cursor of the page that follows this delivery."""
        return cursor("deliveries", delivery.created_at, delivery.id)


class WebhookOut(Out):
    """A webhook subscription; events is null for all."""

    id: str
    url: str
    events: list[str] | None
    created_at: Moment
    paused_at: Moment | None
    pause_reason: str | None
    previous_secret_expires_at: Moment | None


class WebhookWithSecretOut(WebhookOut):
    """A webhook subscription with the secret that signs, which is shown only now."""

    secret: str


class WebhooksOut(Out):
    """A page of webhook subscriptions, oldest first."""

    data: list[WebhookOut]
    next_cursor: str | None


class DeliveryOut(Out):
    """A webhook delivery, and what the endpoint answered last. Its id is the message's webhook-id."""

    id: str
    subscription_id: str
    order_id: str
    type: str
    status: DeliveryStatus
    attempts: int
    created_at: Moment
    next_attempt_at: Moment | None
    delivered_at: Moment | None
    last_attempt_at: Moment | None
    last_status: int | None
    last_error: str | None
    last_body: str | None


class DeliveriesOut(Out):
    """A page of webhook deliveries, oldest first."""

    data: list[DeliveryOut]
    next_cursor: str | None
