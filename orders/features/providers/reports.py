"""What becomes of a provider's signed message: it is recorded, or waits for a person. None is lost."""

from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from werkzeug.exceptions import BadRequest

from orders.errors import (
    AlreadyPaid,
    AlreadyRefunded,
    OrderCancelled,
    OrderError,
    OrderNotFound,
    PaymentNotFound,
    ReferenceReused,
    RefundTooLarge,
    StorageUnavailable,
)
from orders.features.providers.attempts.service import Attempts
from orders.features.providers.domain import Sender
from orders.features.providers.entries import Entries
from orders.features.providers.errors import AttemptTooLate, TooManyAttempts
from orders.features.providers.schemas import (
    ENTRIES,
    AnyReference,
    OrderId,
    OtherMessage,
    PaymentFailed,
    PaymentPending,
    PaymentSucceeded,
    ReportIn,
)
from orders.features.providers.service import Message, Providers
from orders.http.strict_json import parse_object
from orders.log import log
from orders.wiring import Services

#: A refund may overtake its payment, or the failure of another refund.
EARLY = (AlreadyRefunded, OrderNotFound, PaymentNotFound, RefundTooLarge)
#: By the name of a field of any message, what it is if it names what the message is about.
NAMES: dict[str, TypeAdapter[str]] = {
    "order_id": TypeAdapter(OrderId),
    "payment_reference": TypeAdapter(AnyReference),
}


class Outcome(NamedTuple):
    """What became of a message, and which payment it was about."""

    outcome: str
    payment_id: str | None = None
    #: Of a type that is ignored.
    unknown_type: str | None = None


def receive(services: Services, sender: Sender, webhook_id: str, body: bytes) -> Outcome:
    """Record what a signed message reports. What cannot be recorded is kept, and waits for a person.

    Keeps the message, then raises, where a retry may succeed: EARLY, and
    unexpected errors. Raises StorageUnavailable, and InboxFull if it would have to wait, without keeping it.
    """
    keep = partial(services[Providers].keep, sender, webhook_id, body)
    named: dict[str, str] = {}
    try:
        message = parse_object(body)
        named = _named(message.get("data"))
        found = _recorded(services, sender, ReportIn.model_validate(message))
    except StorageUnavailable:
        raise
    except Exception as error:
        name = type(error).__name__
        log.warning("webhook refused", error=name, webhook_id=webhook_id, **sender._asdict())
        keep(_reason(error), waits=True, **named)
        if isinstance(error, EARLY) or not isinstance(
            error, OrderError | BadRequest | ValidationError
        ):
            raise
        return Outcome("waiting")
    kind = found.unknown_type
    note = f"unknown type {kind}" if kind else found.outcome
    keep(note, waits=kind is not None, unknown_type=kind, **named)
    return found


def replay(services: Services, message_id: str) -> Message:
    """Try again to record what a message reports. Raises MessageNotFound."""
    message = services[Providers].message(message_id)
    if message.body is not None:
        sender = Sender(message.endpoint_id, message.client_id, message.provider)
        with suppress(*EARLY):
            receive(services, sender, message.webhook_id, message.body)
    return services[Providers].message(message_id)


def _named(data: Any) -> dict[str, str]:
    """The order and the payment that a message names, even if it says nothing else that makes sense."""
    named: dict[str, str] = {}
    if isinstance(data, dict):
        data = {"payment_reference": data.get("reference"), **data}
        for name, kind in NAMES.items():
            with suppress(ValidationError):
                named[name] = kind.validate_python(data.get(name))
    return named


def _recorded(services: Services, sender: Sender, report: ReportIn) -> Outcome:
    message = report.root
    if isinstance(message, OtherMessage):
        return Outcome("ignored", unknown_type=message.type)
    data = message.data.model_dump()
    if isinstance(message, PaymentPending | PaymentFailed):
        return Outcome(_noted(services, sender, message))
    if isinstance(message, PaymentSucceeded):
        paid = services.orders.pay(sender.client_id, provider=sender.provider, **data)
        outcome = str(paid.payment.status)
    else:
        kind = ENTRIES[message.type]
        paid = services[Entries].enter(sender.client_id, sender.provider, kind, **data)
        outcome = {"refund": "refunded", "failed": "failed"}.get(kind, "disputed")
    return Outcome("replayed" if paid.replayed else outcome, paid.payment.id)


def _noted(services: Services, sender: Sender, message: PaymentPending | PaymentFailed) -> str:
    """What became of a payment that is under way, or is no longer."""
    of = {"provider": sender.provider, **message.data.model_dump()}
    if isinstance(message, PaymentFailed):
        paid = services.orders.payments_with(sender.client_id, sender.provider, of["reference"])
        if any(payment.order_id != of["order_id"] for payment in paid):
            raise ReferenceReused
        return "failed" if services[Attempts].fail(sender.client_id, **of) else "ignored"
    with suppress(AlreadyPaid, AttemptTooLate, OrderCancelled, TooManyAttempts):
        opened = services[Attempts].open(sender.client_id, **of)
        return "replayed" if opened.replayed else "pending"
    return "ignored"


def _reason(error: Exception) -> str:
    """Why a message waits, in one line."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
    if isinstance(error, BadRequest):
        return str(error.description)
    return str(error) if isinstance(error, OrderError) else type(error).__name__
