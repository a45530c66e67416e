"""Payments and refunds."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, WithJsonSchema, model_validator

from orders.http.schemas.paging import TimeQuery, page_of
from orders.http.schemas.types import (
    Amount,
    AmountOut,
    Currency,
    CurrencyOut,
    Id,
    In,
    Moment,
    Out,
    PaidAt,
    PriceOut,
    Provider,
    ProviderOut,
    Reference,
    ReferenceOut,
)
from orders.order.domain import PaymentStatus

RefundReference = Field(description="The provider's own name for the refund.", examples=["re-1"])

REFUND_AMOUNT = Field(
    description="How much, in minor units. Default: all that is left of the payment.",
    examples=[2500],
)
REFUND_CURRENCY = Field(description="The payment's.", examples=["EUR"])

RefundReason = WithJsonSchema(
    {
        "type": "string",
        "enum": ["order_cancelled", "paid_in_time", "already_paid", "wrong_amount"],
        "description": "Why it has to be refunded. Of those that came after the order was cancelled, "
        "`paid_in_time` was taken before the deadline at which that happened.",
    }
)


class PaymentIn(In):
    """Money that a provider took."""

    provider: Provider
    reference: Reference
    amount_minor: Amount
    currency: Currency
    paid_at: PaidAt | None = None


class RefundIn(In):
    """Money that a provider sent back."""

    reference: Annotated[Reference, RefundReference]
    amount_minor: Annotated[Amount | None, REFUND_AMOUNT] = None
    currency: Annotated[Currency | None, REFUND_CURRENCY] = None


class PaymentsOfOrderQuery(TimeQuery):
    """Which of an order's payments."""

    list_name: ClassVar[str] = "payments"


class PaymentsQuery(PaymentsOfOrderQuery):
    """Which of a client's payments: those with a status, or the one with a provider's reference."""

    status: PaymentStatus | None = Field(
        default=None, description="Only those with this status.", examples=["refund_due"]
    )
    provider: Provider | None = Field(
        default=None, description="Only the one that this provider took. With reference."
    )
    reference: Reference | None = Field(
        default=None, description="The provider's own name for it. With provider."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = (self.status is None, self.provider is None, self.reference is None)
        if given not in ((False, True, True), (True, False, False)):
            raise ValueError("send status, or provider and reference")
        return self


class PaymentOut(Out):
    """A payment, and whether it was applied to the order."""

    id: Id
    order_id: Id = Field(description="The id of its order.")
    provider: ProviderOut
    reference: ReferenceOut
    amount_minor: AmountOut
    currency: CurrencyOut
    status: PaymentStatus
    reason: Annotated[str, RefundReason] | None
    created_at: Moment = Field(description="When it was reported.")
    paid_at: Moment | None = Field(
        description="When the money was taken, by the provider's clock, if it was reported."
    )
    refunded_minor: PriceOut = Field(
        description="How much was sent back, in minor units.", examples=[0]
    )
    refunded_at: Moment | None = Field(
        description="When its latest refund that stands was recorded."
    )
    refund_reference: ReferenceOut | None = Field(
        description="The provider's own name for the latest refund that stands.", examples=["re-1"]
    )


PaymentsOut = page_of("PaymentsOut", PaymentOut, "A page of payments, oldest first.")
