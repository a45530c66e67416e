"""Payments and refunds."""

from typing import Any

from orders import errors
from orders.http.auth import caller, page, reader, replay_header, services
from orders.http.routing import Routes, answers
from orders.http.schemas.payments import (
    PaymentIn,
    PaymentOut,
    PaymentsOfOrderQuery,
    PaymentsOut,
    PaymentsQuery,
    RefundIn,
)

payments = Routes(
    "payments",
    "Payments",
    "What a provider charged for an order, and refunded. Money that comes too "
    "late, twice or in the wrong amount is kept and marked for refund.",
)


@payments.post(
    "/orders/<uuid:order_id>/payments",
    returns=PaymentOut,
    status=201,
    description="The order is paid.",
    also={202: "The money came too late, twice, or in the wrong amount: it has to be refunded."},
    scopes=["payments"],
)
@answers(errors.OrderNotFound, errors.ReferenceReused, sends=["Idempotent-Replayed"])
def create_payment(order_id: str, body: PaymentIn) -> Any:
    """Report a payment.

    Money that the order cannot take is kept and marked for refund. Once you have registered providers, a
    payment from any other is refused. Repeating the request, with the same provider and reference, returns
    the original response.
    """
    paid = services().orders.pay(caller(), order_id, **body.model_dump())
    status = 201 if paid.payment.reason is None else 202
    return paid.payment, replay_header(paid.replayed), status


@payments.get(
    "/orders/<uuid:order_id>/payments", returns=PaymentsOut, scopes=["orders", "payments", "ops"]
)
@answers(errors.OrderNotFound)
def list_payments_of_order(order_id: str, query: PaymentsOfOrderQuery) -> Any:
    """An order's payments, oldest first."""
    found = services().orders.payments_of_order(
        reader(), order_id, page_size=query.limit, after=query.after
    )
    return page(found, query)


@payments.get("/payments", returns=PaymentsOut, scopes=["payments"])
def list_payments(query: PaymentsQuery) -> Any:
    """Your payments with one status, or the one with a reference.

    Oldest first. `refund_due` lists the money to send back.
    """
    orders = services().orders
    if query.provider and query.reference:
        found = orders.payments_with(caller(), query.provider, query.reference)
        return {"data": found, "next_cursor": None}
    found = orders.payments(
        caller(), status=str(query.status), page_size=query.limit, after=query.after
    )
    return page(found, query)


@payments.get("/payments/<uuid:payment_id>", returns=PaymentOut, scopes=["payments"])
@answers(errors.PaymentNotFound)
def get_payment(payment_id: str) -> Any:
    """One payment."""
    return services().orders.payment(caller(), payment_id)


@payments.post("/payments/<uuid:payment_id>/refund", returns=PaymentOut, scopes=["payments"])
@answers(
    *(errors.AlreadyRefunded, errors.PaymentNotFound, errors.ReferenceReused),
    *(errors.RefundTooLarge, errors.WrongCurrency),
    sends=["Idempotent-Replayed"],
)
def refund_payment(payment_id: str, body: RefundIn) -> Any:
    """Record a refund that you have sent, of all or some of the money.

    A paid order stays paid. Repeating the request changes nothing.
    """
    refunded = services().orders.refund(caller(), payment_id, **body.model_dump())
    return refunded.payment, replay_header(refunded.replayed)
