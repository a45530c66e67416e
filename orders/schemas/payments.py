"""Payments and refunds."""

from typing import Literal

from orders.domain import Payment, PaymentStatus, Position
from orders.schemas.paging import Query, cursor
from orders.schemas.types import Amount, Currency, In, Moment, Out, Provider, Reference


class PaymentIn(In):
    """Money that a provider took."""

    provider: Provider
    reference: Reference
    amount_minor: Amount
    currency: Currency


class RefundIn(In):
    """Money that a provider sent back."""

    reference: Reference


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
    """Which of one's payments."""

    status: Literal["applied", "refund_due", "refunded"]


class PaymentOut(Out):
    """A payment, and whether the order took it."""

    id: str
    order_id: str
    provider: str
    reference: str
    amount_minor: int
    currency: str
    status: PaymentStatus
    reason: str | None
    created_at: Moment
    refunded_at: Moment | None
    refund_reference: str | None


class PaymentsOut(Out):
    """A page of payments, oldest first."""

    data: list[PaymentOut]
    next_cursor: str | None
