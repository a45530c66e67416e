"""Payments under way."""

from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint

from orders.errors import (
    AlreadyPaid,
    AttemptTooLate,
    OrderCancelled,
    OrderNotFound,
    ReferenceReused,
    TooManyAttempts,
    UnknownProvider,
)
from orders.http.auth import auth, caller, page, reader, replay_header, services
from orders.http.contract import raises, sends
from orders.http.schemas.attempts import AttemptIn, AttemptOut, AttemptsOut, AttemptsQuery

attempts = APIBlueprint(
    "attempts",
    __name__,
    url_prefix="/v1",
    tag={
        "name": "Payment attempts",
        "description": "Somebody is paying: their order is not cancelled meanwhile.",
    },
)


@attempts.post("/orders/<uuid:order_id>/payment-attempts")
@attempts.auth_required(auth, roles=["orders"])
@attempts.input(AttemptIn, arg_name="body")
@attempts.output(AttemptOut, HTTPStatus.CREATED)
@raises(
    *(AlreadyPaid, AttemptTooLate, OrderCancelled, OrderNotFound),
    *(ReferenceReused, TooManyAttempts, UnknownProvider),
)
@sends("Idempotent-Replayed")
def open_attempt(order_id: object, body: AttemptIn) -> Any:
    """Open an attempt: somebody is paying.

    Until it succeeds, fails or ends, the order's deadline passes without effect, within bounds. Send it
    before you send the payer to the provider. Repeating it, with the same provider and reference, returns
    the attempt.
    """
    opened = services().attempts.open(caller(), str(order_id), **body.model_dump())
    return opened.attempt, HTTPStatus.CREATED, replay_header(opened.replayed)


@attempts.get("/orders/<uuid:order_id>/payment-attempts")
@attempts.auth_required(auth, roles=["orders", "payments", "ops"])
@attempts.input(AttemptsQuery, location="query", arg_name="query")
@attempts.output(AttemptsOut)
@raises(OrderNotFound)
def list_attempts(order_id: object, query: AttemptsQuery) -> Any:
    """An order's payment attempts, oldest first."""
    order = services().orders.order(reader(), str(order_id))
    found = services().attempts.of_order(order.id, page_size=query.limit, after=query.after)
    return page(found, query)
