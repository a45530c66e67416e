"""Webhook subscriptions and deliveries."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from orders.db.statements import FIRST, Position
from orders.features.webhooks.domain import PING, WEBHOOK_TYPES, DeliveryStatus
from orders.http.schemas.orders import OrderOut
from orders.http.schemas.paging import Instant, TimeQuery, page_of
from orders.http.schemas.types import ChangeIn, CountOut, Id, In, Moment, Out, Sequence, Shown


def _known(event: str) -> str:
    if event not in WEBHOOK_TYPES:
        raise ValueError(f"it is none of {', '.join(WEBHOOK_TYPES)}")
    return event


WebhookType = Annotated[
    str, AfterValidator(_known), Field(json_schema_extra={"enum": [*WEBHOOK_TYPES]})
]
DeliveryType = Annotated[str, Field(json_schema_extra={"enum": [*WEBHOOK_TYPES, PING]})]
EventTypes = Annotated[list[WebhookType], Field(min_length=1, max_length=len(WEBHOOK_TYPES))]
Url = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2000),
    Field(
        description="An https or http URL, without a user.", examples=["https://shop.example/hook"]
    ),
]


def _each_once(events: list[str]) -> list[str]:
    if len(set(events)) != len(events):
        raise ValueError("an event is named twice")
    return events


def _each_at_most_once(schema: dict[str, Any]) -> None:
    schema["anyOf"][0]["uniqueItems"] = True


Wanted = Annotated[
    Annotated[EventTypes, AfterValidator(_each_once)] | None,
    Field(
        description="Which events to send, each once. Default: all, including those that later versions add.",
        json_schema_extra=_each_at_most_once,
        examples=[["order.paid", "order.cancelled"]],
    ),
]


class WebhookIn(In):
    """Where to send events, and which."""

    url: Url
    events: Wanted = None


class WebhookChangeIn(ChangeIn):
    """What to change in a subscription. With null as events, it gets all of them."""

    paused: bool | None = Field(
        default=None, description="Whether to keep deliveries for later.", examples=[True]
    )
    url: Url | None = Field(default=None, description="An https or http URL, without a user.")
    events: Wanted = None


class WebhooksQuery(TimeQuery):
    """Which of a client's subscriptions."""

    list_name: ClassVar[str] = "webhooks"


class DeliveriesQuery(TimeQuery):
    """Which of a subscription's deliveries."""

    status: DeliveryStatus | None = Field(
        default=None, description="Only those with this status.", examples=["dead"]
    )
    created_after: Instant | None = Field(
        default=None, description="Only those written after this moment."
    )
    created_before: Instant | None = Field(
        default=None, description="Only those written before this moment."
    )

    list_name: ClassVar[str] = "deliveries"

    @property
    def before(self) -> Position | None:
        """Where the list goes on. Raises BadRequest."""
        until = self.created_before
        return self.after or (None if until is None else Position(until, FIRST.id))


class WebhookOut(Out):
    """A webhook subscription; events is null for all."""

    id: Id
    url: Annotated[str, Shown(Url)]
    events: Annotated[list[str], Shown(EventTypes)] | None = Field(
        description="Which events; null for all."
    )
    created_at: Moment = Field(description="When it was made.")
    paused_at: Moment | None = Field(description="When it was paused, if it is.")
    pause_reason: (
        Annotated[str, WithJsonSchema({"type": "string", "enum": ["requested", "gone"]})] | None
    ) = Field(description="requested: by PATCH; gone: the endpoint answered 410.")
    previous_secret_expires_at: Moment | None = Field(
        description="Until then, messages are also signed with a previous secret."
    )


class WebhookWithSecretOut(WebhookOut):
    """A webhook subscription with the secret that signs, which is shown only now."""

    secret: str = Field(
        description="The secret that messages are signed with.",
        examples=["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"],
        json_schema_extra={"maxLength": 100, "pattern": "^whsec_[A-Za-z0-9+/=]+$"},
    )


WebhooksOut = page_of("WebhooksOut", WebhookOut, "A page of webhook subscriptions, oldest first.")


class DeliveryOut(Out):
    """A webhook delivery, and what the endpoint answered last. Its id is the message's webhook-id."""

    id: Id
    subscription_id: Id = Field(description="The id of its subscription.")
    order_id: Id | None = Field(description="The id of the order that it is about; null in a ping.")
    type: Annotated[str, Shown(DeliveryType), Field(description="What happened.")]
    status: DeliveryStatus
    attempts: CountOut = Field(description="How often it was sent.")
    created_at: Moment = Field(description="When it was written.")
    next_attempt_at: Moment | None = Field(
        description="When it is sent next, unless its subscription is paused."
    )
    delivered_at: Moment | None = Field(description="When it was delivered.")
    last_attempt_at: Moment | None = Field(description="When it was sent last.")
    last_status: (
        Annotated[int, Field(json_schema_extra={"minimum": 100, "maximum": 999})] | None
    ) = Field(description="The status that the endpoint answered last.")
    last_error: Annotated[str, Field(json_schema_extra={"maxLength": 200})] | None = Field(
        description="Why there was no answer the last time."
    )
    last_body: Annotated[str, Field(json_schema_extra={"maxLength": 70_000})] | None = Field(
        description="How the endpoint's last answer began."
    )


DeliveriesOut = page_of("DeliveriesOut", DeliveryOut, "A page of webhook deliveries, newest first.")


class MessageData(Out):
    """What happened, and the order as of the first attempt. More fields may come."""

    order: OrderOut


class MessageOut(Out):
    """What is sent to a webhook."""

    type: Annotated[str, Shown(WebhookType), Field(description="What happened.")]
    timestamp: Moment = Field(description="When it happened.")
    sequence: Sequence
    data: MessageData
