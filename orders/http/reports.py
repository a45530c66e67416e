"""What becomes of a provider's signed message: it is recorded, or waits for a person. None is lost.

What a provider answers is read in the same way.
"""

from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from werkzeug.exceptions import BadRequest

from orders.attempts.domain import Closed, Paid, Reply, Unknown
from orders.bootstrap import Services
from orders.errors import (
    AlreadyPaid,
    AttemptTooLate,
    GatewayUnavailable,
    OrderCancelled,
    OrderError,
    OrderNotFound,
    PaymentNotFound,
    StorageUnavailable,
    TooManyAttempts,
)
from orders.http.schemas.providers import (
    ENTRIES,
    AnyReference,
    CloseReply,
    OrderId,
    OtherMessage,
    PaidReply,
    PaymentFailed,
    PaymentPending,
    PaymentSucceeded,
    ReportIn,
)
from orders.http.strict_json import parse_object
from orders.log import log
from orders.order.domain import Entry
from orders.providers.domain import ProviderMessage, Sender

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
    """Record what a signed message reports, and keep the message.

    What cannot be recorded waits. Keeps the message, then raises, where a retry may succeed: OrderNotFound
    and PaymentNotFound, as a refund may overtake its payment, and unexpected errors. Raises
    StorageUnavailable, and InboxFull if it would have to wait, without keeping it.
    """
    keep = partial(services.providers.keep, sender, webhook_id, body)
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
        if isinstance(error, OrderNotFound | PaymentNotFound) or not isinstance(
            error, OrderError | BadRequest | ValidationError
        ):
            raise
        return Outcome("waiting")
    kind = found.unknown_type
    note = f"unknown type {kind}" if kind else found.outcome
    keep(note, waits=kind is not None, unknown_type=kind, **named)
    return found


def reply_of(body: str) -> Reply:
    """What a provider answers when it is asked to close an attempt. Raises GatewayUnavailable."""
    try:
        reply = CloseReply.model_validate(parse_object(body.encode())).root
    except (BadRequest, ValidationError) as error:
        # Not what it says, which may be about a person: errors are kept with their tasks.
        wrong = error.errors(include_url=False) if isinstance(error, ValidationError) else []
        where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in wrong)
        raise GatewayUnavailable(f"It makes no sense: {where or 'no JSON object'}"[:200]) from None
    if isinstance(reply, PaidReply):
        return Paid(**reply.model_dump(exclude={"outcome"}))
    return Closed() if reply.outcome == "closed" else Unknown()


def replay(services: Services, message_id: str) -> ProviderMessage:
    """Try again to record what a message reports. Raises MessageNotFound."""
    message = services.providers.message(message_id)
    with suppress(OrderNotFound, PaymentNotFound):
        receive(services, message.sender, message.webhook_id, message.body)
    return services.providers.message(message_id)


def _named(data: Any) -> dict[str, str]:
    """The order and the payment that a message names, even if it says nothing else that makes sense."""
    named: dict[str, str] = {}
    for name, kind in NAMES.items() if isinstance(data, dict) else ():
        with suppress(ValidationError):
            named[name] = kind.validate_python(data.get(name))
    return named


def _recorded(services: Services, sender: Sender, report: ReportIn) -> Outcome:
    message = report.root
    if isinstance(message, OtherMessage):
        return Outcome("ignored", unknown_type=message.type)
    orders, data = services.orders, message.data.model_dump()
    if isinstance(message, PaymentPending | PaymentFailed):
        return Outcome(_noted(services, sender, message))
    if isinstance(message, PaymentSucceeded):
        paid = orders.pay(sender.client_id, provider=sender.provider, **data)
        outcome = str(paid.payment.status)
    else:
        of = (sender.client_id, sender.provider, data.pop("payment_reference"))
        entry = Entry(**data, kind=ENTRIES[message.type])
        paid = orders.enter_by_reference(*of, entry)
        outcome = {"refund": "refunded", "failed": "failed"}.get(entry.kind, "disputed")
    return Outcome("replayed" if paid.replayed else outcome, paid.payment.id)


def _noted(services: Services, sender: Sender, message: PaymentPending | PaymentFailed) -> str:
    """What became of a payment that is under way, or is no longer."""
    of = {"provider": sender.provider, **message.data.model_dump()}
    if isinstance(message, PaymentFailed):
        return "failed" if services.attempts.fail(sender.client_id, **of) else "ignored"
    with suppress(AlreadyPaid, AttemptTooLate, OrderCancelled, TooManyAttempts):
        opened = services.attempts.open(sender.client_id, **of)
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
