"""Payments and refunds."""

from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint

from orders.errors import (
    AlreadyRefunded,
    OrderNotFound,
    PaymentNotFound,
    ReferenceReused,
    RefundTooLarge,
    UnknownProvider,
    WrongCurrency,
)
from orders.http.auth import auth, caller, page, reader, replay_header, services
from orders.http.contract import also, raises, sends
from orders.http.schemas.payments import (
    PaymentIn,
    PaymentOut,
    PaymentsOfOrderQuery,
    PaymentsOut,
    PaymentsQuery,
    RefundIn,
)

payments = APIBlueprint(
    "payments",
    __name__,
    url_prefix="/v1",
    tag={
        "name": "Payments",
        "description": "What a provider charged for an order, and refunded. Money that comes too "
        "late, twice or in the wrong amount is kept and marked for refund.",
    },
)

LATE = {"status": "refund_due", "reason": "order_cancelled"}
REFUNDED = {
    **LATE,
    "status": "refunded",
    "refunded_minor": 2500,
    "refunded_at": "2026-11-23T09:30:00.000Z",
    "refund_reference": "re-1",
}


@payments.post("/orders/<uuid:order_id>/payments")
@payments.auth_required(auth, roles=["payments"])
@payments.input(PaymentIn, arg_name="body")
@payments.output(PaymentOut, HTTPStatus.CREATED, description="The order is paid.")
@payments.doc(
    responses=also(
        HTTPStatus.ACCEPTED,
        "The money came too late, twice, or in the wrong amount: it has to be refunded.",
        LATE,
    )
)
@raises(OrderNotFound, ReferenceReused, UnknownProvider)
@sends("Idempotent-Replayed")
def create_payment(order_id: object, body: PaymentIn) -> Any:
    """Report a payment.

    Money that the order cannot take is kept and marked for refund. Once you have registered providers, a
    payment from any other is refused. Repeating the request, with the same provider and reference, returns
    the original response.
    """
    paid = services().orders.pay(caller(), str(order_id), **body.model_dump())
    status = HTTPStatus.CREATED if paid.payment.reason is None else HTTPStatus.ACCEPTED
    return paid.payment, status, replay_header(paid.replayed)


@payments.get("/orders/<uuid:order_id>/payments")
@payments.auth_required(auth, roles=["orders", "payments", "ops"])
@payments.input(PaymentsOfOrderQuery, location="query", arg_name="query")
@payments.output(PaymentsOut)
@raises(OrderNotFound)
def list_payments_of_order(order_id: object, query: PaymentsOfOrderQuery) -> Any:
    """An order's payments, oldest first."""
    found = services().orders.payments_of_order(
        reader(), str(order_id), page_size=query.limit, after=query.after
    )
    return page(found, query)


@payments.get("/payments")
@payments.auth_required(auth, roles=["payments"])
@payments.input(PaymentsQuery, location="query", arg_name="query")
@payments.output(PaymentsOut)
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


@payments.get("/payments/<uuid:payment_id>")
@payments.auth_required(auth, roles=["payments"])
@payments.output(PaymentOut)
@raises(PaymentNotFound)
def get_payment(payment_id: object) -> Any:
    """One payment."""
    return services().orders.payment(caller(), str(payment_id))


@payments.post("/payments/<uuid:payment_id>/refund")
@payments.auth_required(auth, roles=["payments"])
@payments.input(RefundIn, arg_name="body")
@payments.output(PaymentOut, example=REFUNDED)
@raises(AlreadyRefunded, PaymentNotFound, ReferenceReused, RefundTooLarge, WrongCurrency)
@sends("Idempotent-Replayed")
def refund_payment(payment_id: object, body: RefundIn) -> Any:
    """Record a refund that you have sent, of all or some of the money.

    A paid order stays paid. Repeating the request changes nothing.
    """
    refunded = services().orders.refund(caller(), str(payment_id), **body.model_dump())
    return refunded.payment, HTTPStatus.OK, replay_header(refunded.replayed)
