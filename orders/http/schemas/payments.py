"""Payments and refunds."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from orders.http.schemas.paging import NextCursor, Page, Query, cursor
from orders.http.schemas.types import (
    Amount,
    AmountOut,
    Currency,
    CurrencyOut,
    Id,
    In,
    Moment,
    Out,
    Provider,
    ProviderOut,
    Reference,
    ReferenceOut,
)
from orders.order.domain import Payment, PaymentStatus
from orders.sql.statements import Position

RefundReference = Field(description="The provider's own name for the refund.", examples=["re-1"])

RefundReason = WithJsonSchema(
    {
        "type": "string",
        "enum": ["order_cancelled", "already_paid", "wrong_amount"],
        "description": "Why it has to be refunded.",
    }
)


class PaymentIn(In):
    """Money that a provider took."""

    provider: Provider
    reference: Reference
    amount_minor: Amount
    currency: Currency


class RefundIn(In):
    """Money that a provider sent back."""

    reference: Annotated[Reference, RefundReference]


class PaymentsOfOrderQuery(Query):
    """Which of an order's payments."""

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self.position("payments")

    def cursor_after(self, payment: Payment) -> str:
        """The cursor of the page that follows this payment."""
        return cursor("payments", payment.created_at, payment.id)


class PaymentsQuery(PaymentsOfOrderQuery):
    """Which of a client's payments."""

    status: Annotated[
        PaymentStatus,
        Field(description="Only those with this status.", examples=["refund_due"]),
    ]


class PaymentOut(Out):
    """A payment, and whether it was applied to the order."""

    id: Id
    order_id: Annotated[Id, Field(description="The id of its order.")]
    provider: ProviderOut
    reference: ReferenceOut
    amount_minor: AmountOut
    currency: CurrencyOut
    status: PaymentStatus
    reason: Annotated[str, RefundReason] | None
    created_at: Annotated[Moment, Field(description="When it was reported.")]
    refunded_at: Annotated[Moment | None, Field(description="When its refund was recorded.")]
    refund_reference: Annotated[ReferenceOut | None, RefundReference]


class PaymentsOut(Out):
    """A page of payments, oldest first."""

    data: Page[PaymentOut]
    next_cursor: NextCursor
