"""Webhooks of payment providers."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    StringConstraints,
    Tag,
)

from orders.http.schemas.payments import RefundReference
from orders.http.schemas.types import Amount, Currency, Id, Out, Reference
from orders.sql.ids import UUID

PAYMENT, REFUND = "payment.succeeded", "refund.succeeded"
OTHER = "other"


Kind = Field(description="What happened.")


class Report(BaseModel):
    """JSON's own types only. Unlike in requests of clients, unknown fields are ignored.

    A provider adds fields at will. Refusing them would lose what it reports.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class WebhookHeaders(BaseModel):
    """The headers of Standard Webhooks."""

    model_config = ConfigDict(populate_by_name=True)

    webhook_id: Annotated[
        str,
        Field(
            alias="webhook-id",
            description="The message's id, the same for every attempt.",
            examples=["msg-1"],
            json_schema_extra={"maxLength": 255},
        ),
    ]
    webhook_timestamp: Annotated[
        str,
        Field(
            alias="webhook-timestamp",
            description="Seconds since the epoch, at most five minutes from now.",
            examples=["1795339800"],
            json_schema_extra={"maxLength": 15, "pattern": "^[0-9]+$"},
        ),
    ]
    webhook_signature: Annotated[
        str,
        Field(
            alias="webhook-signature",
            description="v1, and the base64 of an HMAC-SHA256 of id.timestamp.body; several, "
            "separated by spaces, during a rotation.",
            examples=["v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="],
            json_schema_extra={"maxLength": 600},
        ),
    ]


class PaymentReport(Report):
    """Money that the provider took for an order."""

    order_id: Annotated[
        str,
        StringConstraints(pattern=f"^{UUID.pattern}$"),
        Field(
            description="The id of the order that it is for.",
            examples=["01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f"],
            json_schema_extra={"format": "uuid"},
        ),
    ]
    reference: Reference
    amount_minor: Amount
    currency: Currency


class RefundReport(Report):
    """Money that the provider sent back."""

    payment_reference: Annotated[
        Reference, Field(description="The provider's own name for the payment.")
    ]
    reference: Annotated[Reference, RefundReference]


class PaymentSucceeded(Report):
    """A payment was taken."""

    type: Annotated[Literal["payment.succeeded"], Kind]
    data: PaymentReport


class RefundSucceeded(Report):
    """A payment was sent back."""

    type: Annotated[Literal["refund.succeeded"], Kind]
    data: RefundReport


class OtherMessage(Report):
    """A message of any other type, which is acknowledged and ignored."""

    type: Annotated[
        str,
        StringConstraints(min_length=1, max_length=100, pattern=r"^[!-~]+$"),
        Field(
            description="Any other.",
            examples=["payment.created"],
            json_schema_extra={"not": {"enum": [PAYMENT, REFUND]}},
        ),
    ]


def _tag(message: Any) -> str:
    kind = message.get("type") if isinstance(message, dict) else None
    return kind if kind in (PAYMENT, REFUND) else OTHER


class ReportIn(
    RootModel[
        Annotated[
            Annotated[PaymentSucceeded, Tag(PAYMENT)]
            | Annotated[RefundSucceeded, Tag(REFUND)]
            | Annotated[OtherMessage, Tag(OTHER)],
            Discriminator(_tag),
        ]
    ]
):
    """What a provider reports."""


class OutcomeOut(Out):
    """What became of a message, and which payment it was about. It need not be sent again."""

    outcome: Annotated[
        Literal["applied", "refund_due", "refunded", "replayed", "ignored"],
        Field(description="Replayed: it was recorded before."),
    ]
    payment_id: Annotated[
        Id | None, Field(description="The payment's id; null if the message is ignored.")
    ]
