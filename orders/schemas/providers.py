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

from orders.domain import ORDER_ID
from orders.schemas.types import Amount, Currency, Out, Reference

PAYMENT, REFUND = "payment.succeeded", "refund.succeeded"
OTHER = "other"


class Report(BaseModel):
    """JSON's own types only. Unlike in requests of clients, unknown fields are ignored.

    A provider adds fields at will. Refusing them would lose what it reports.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class WebhookHeaders(BaseModel):
    """The headers of Standard Webhooks."""

    model_config = ConfigDict(populate_by_name=True)

    webhook_id: Annotated[str, Field(alias="webhook-id", description="The message's own name")]
    webhook_timestamp: Annotated[
        str, Field(alias="webhook-timestamp", description="Seconds since the epoch")
    ]
    webhook_signature: Annotated[
        str,
        Field(
            alias="webhook-signature",
            description="v1, and the base64 of an HMAC-SHA256 of id.timestamp.body; several, "
            "separated by spaces, during a rotation",
        ),
    ]


class PaymentReport(Report):
    """Money that the provider took for an order."""

    order_id: Annotated[str, StringConstraints(pattern=f"^{ORDER_ID.pattern}$")]
    reference: Reference
    amount_minor: Amount
    currency: Currency


class RefundReport(Report):
    """Money that the provider sent back."""

    payment_reference: Reference
    reference: Reference


class PaymentSucceeded(Report):
    """A payment was taken."""

    type: Literal["payment.succeeded"]
    data: PaymentReport


class RefundSucceeded(Report):
    """A payment was sent back."""

    type: Literal["refund.succeeded"]
    data: RefundReport


class OtherMessage(Report):
    """Of a type that is acknowledged and ignored."""

    type: Annotated[
        str,
        StringConstraints(pattern=r"^[!-~]{1,100}$"),
        Field(json_schema_extra={"not": {"enum": [PAYMENT, REFUND]}}),
    ]


def _tag(message: Any) -> str:
    kind = message.get("type") if isinstance(message, dict) else None
    return kind if kind in (PAYMENT, REFUND) else OTHER


class WebhookIn(
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
    """What became of a message, and of which payment. Whatever it is, it need not be sent again."""

    outcome: Literal["applied", "refund_due", "refunded", "replayed", "ignored"]
    payment_id: str | None
