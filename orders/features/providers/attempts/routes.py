"""Payments under way."""

from typing import Any

from orders import errors
from orders.features.providers.attempts.schemas import (
    AttemptIn,
    AttemptOut,
    AttemptsOut,
    AttemptsQuery,
)
from orders.features.providers.attempts.service import Attempts
from orders.features.providers.errors import AttemptTooLate, TooManyAttempts, UnknownProvider
from orders.http.auth import caller, page, reader, replay_header, services
from orders.http.routing import Routes, answers

attempts = Routes(
    "attempts", "Payment attempts", "Somebody is paying: their order is not cancelled meanwhile."
)


@attempts.post(
    "/orders/<uuid:order_id>/payment-attempts", returns=AttemptOut, status=201, scopes=["orders"]
)
@answers(
    *(errors.AlreadyPaid, AttemptTooLate, errors.OrderCancelled, errors.OrderNotFound),
    *(errors.ReferenceReused, TooManyAttempts, UnknownProvider),
    sends=["Idempotent-Replayed"],
)
def open_attempt(order_id: str, body: AttemptIn) -> Any:
    """Open an attempt: somebody is paying.

    Until it succeeds, fails or ends, the order's deadline passes without effect, within bounds. Send it
    before you send the payer to the provider. Repeating it, with the same provider and reference, returns
    the attempt.
    """
    opened = services()[Attempts].open(caller(), order_id, **body.model_dump())
    return opened.attempt, replay_header(opened.replayed)


@attempts.get(
    "/orders/<uuid:order_id>/payment-attempts",
    returns=AttemptsOut,
    scopes=["orders", "payments", "ops"],
)
@answers(errors.OrderNotFound)
def list_attempts(order_id: str, query: AttemptsQuery) -> Any:
    """An order's payment attempts, oldest first."""
    found = services()[Attempts].of_order(order_id, page_size=query.limit, after=query.after)
    services().orders.order(reader(), order_id)  # last, as in `Reads`
    return page(found, query)
