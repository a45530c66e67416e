"""Webhook subscriptions and deliveries."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, field_validator

from orders.http.schemas.orders import OrderOut
from orders.http.schemas.paging import NextCursor, Page, Query, cursor
from orders.http.schemas.types import CountOut, Id, In, Moment, Out, Shown
from orders.sql.statements import Position
from orders.webhooks.domain import WEBHOOK_TYPES, Delivery, DeliveryStatus, Subscription


def _known(event: str) -> str:
    if event not in WEBHOOK_TYPES:
        raise ValueError(f"it is none of {', '.join(WEBHOOK_TYPES)}")
    return event


WebhookType = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra={"enum": [*WEBHOOK_TYPES]})
]
EventTypes = Annotated[list[WebhookType], Field(min_length=1, max_length=len(WEBHOOK_TYPES))]
Url = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2000),
    Field(
        description="An https or http URL, without a user.", examples=["https://shop.example/hook"]
    ),
]


class WebhookIn(In):
    """Where to send events, and which."""

    url: Url
    events: Annotated[
        EventTypes | None,
        Field(
            description="Which events to send, each once. Default: all.",
            examples=[["order.paid", "order.cancelled"]],
        ),
    ] = None

    @field_validator("events")
    @classmethod
    def _each_once(cls, events: list[str] | None) -> list[str] | None:
        if events is not None and len(set(events)) != len(events):
            raise ValueError("an event is named twice")
        return events


class WebhookChangeIn(In):
    """Whether a subscription is paused. While it is, its deliveries are kept for later."""

    paused: Annotated[bool, Field(description="Whether to pause it.", examples=[True])]


class WebhooksQuery(Query):
    """Which of a client's subscriptions."""

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self.position("webhooks")

    def cursor_after(self, subscription: Subscription) -> str:
        """The cursor of the page that follows this subscription."""
        return cursor("webhooks", subscription.created_at, subscription.id)


class DeliveriesQuery(Query):
    """Which of a subscription's deliveries."""

    status: Annotated[
        DeliveryStatus | None,
        Field(description="Only those with this status.", examples=["dead"]),
    ] = None

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self.position("deliveries")

    def cursor_after(self, delivery: Delivery) -> str:
        """The cursor of the page that follows this delivery."""
        return cursor("deliveries", delivery.created_at, delivery.id)


class WebhookOut(Out):
    """A webhook subscription; events is null for all."""

    id: Id
    url: Annotated[str, Shown(Url)]
    events: Annotated[
        Annotated[list[str], Shown(EventTypes)] | None,
        Field(description="Which events; null for all."),
    ]
    created_at: Annotated[Moment, Field(description="When it was made.")]
    paused_at: Annotated[Moment | None, Field(description="When it was paused, if it is.")]
    pause_reason: Annotated[
        Annotated[str, WithJsonSchema({"type": "string", "enum": ["requested", "gone"]})] | None,
        Field(description="requested: by PATCH; gone: the endpoint answered 410."),
    ]
    previous_secret_expires_at: Annotated[
        Moment | None,
        Field(description="Until then messages are signed with the previous secret, too."),
    ]


class WebhookWithSecretOut(WebhookOut):
    """A webhook subscription with the secret that signs, which is shown only now."""

    secret: Annotated[
        str,
        Field(
            description="The secret that messages are signed with.",
            examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
            json_schema_extra={"maxLength": 100, "pattern": "^whsec_[A-Za-z0-9+/=]+$"},
        ),
    ]


class WebhooksOut(Out):
    """A page of webhook subscriptions, oldest first."""

    data: Page[WebhookOut]
    next_cursor: NextCursor


class DeliveryOut(Out):
    """A webhook delivery, and what the endpoint answered last. Its id is the message's webhook-id."""

    id: Id
    subscription_id: Annotated[Id, Field(description="The id of its subscription.")]
    order_id: Annotated[Id, Field(description="The id of the order that it is about.")]
    type: Annotated[str, Shown(WebhookType), Field(description="What happened.")]
    status: DeliveryStatus
    attempts: Annotated[CountOut, Field(description="How often it was sent.")]
    created_at: Annotated[Moment, Field(description="When it was written.")]
    next_attempt_at: Annotated[Moment | None, Field(description="When it is sent next.")]
    delivered_at: Annotated[Moment | None, Field(description="When it was delivered.")]
    last_attempt_at: Annotated[Moment | None, Field(description="When it was sent last.")]
    last_status: Annotated[
        Annotated[int, Field(json_schema_extra={"minimum": 100, "maximum": 999})] | None,
        Field(description="The status that the endpoint answered last."),
    ]
    last_error: Annotated[
        Annotated[str, Field(json_schema_extra={"maxLength": 200})] | None,
        Field(description="Why there was no answer the last time."),
    ]
    last_body: Annotated[
        Annotated[str, Field(json_schema_extra={"maxLength": 70_000})] | None,
        Field(description="How the endpoint's last answer began."),
    ]


class DeliveriesOut(Out):
    """A page of webhook deliveries, oldest first."""

    data: Page[DeliveryOut]
    next_cursor: NextCursor


class MessageData(Out):
    """What happened, and the order as it was when the message was sent. More fields may come."""

    order: OrderOut


class MessageOut(Out):
    """What is sent to a webhook."""

    type: Annotated[str, Shown(WebhookType), Field(description="What happened.")]
    timestamp: Annotated[Moment, Field(description="When it happened.")]
    sequence: Annotated[
        int,
        Field(
            description="The later of two events of an order has the greater number.",
            examples=[4711],
            json_schema_extra={"minimum": 1, "maximum": 2**63 - 1},
        ),
    ]
    data: MessageData
