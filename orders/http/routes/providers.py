"""Webhooks of payment providers, which have no key: their messages are signed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

import structlog
from apiflask import APIBlueprint
from flask import request

from orders.errors import (
    AlreadyRefunded,
    NotRefundable,
    OrderNotFound,
    PaymentNotFound,
    ReferenceReused,
    SignatureInvalid,
    StorageUnavailable,
    TooManyRequests,
)
from orders.http.auth import replay_header, services
from orders.http.contract import raises, sends
from orders.http.schemas.providers import (
    OtherMessage,
    OutcomeOut,
    PaymentSucceeded,
    ReportIn,
    WebhookHeaders,
)
from orders.http.strict_json import StrictRequest
from orders.order.service import Paid
from orders.providers.service import Sender

log = structlog.get_logger("orders")
providers = APIBlueprint(
    "providers",
    __name__,
    url_prefix="/v1",
    tag={"name": "Providers", "description": "What payment providers report, in signed webhooks."},
)


@contextmanager
def _limited(endpoint: str = "") -> Iterator[None]:
    """Limit an address's wrong signatures, for one endpoint or for all unknown ones.

    Raises TooManyRequests.
    """
    limits, address = services().rate_limits, request.remote_addr
    limits.admit_stranger(address, endpoint)
    try:
        yield
    except SignatureInvalid:
        limits.count_stranger(address, endpoint)
        raise


def signed(view: Callable[..., Any]) -> Callable[..., Any]:
    """Verify a message's signature before anything else reads the message.

    The view gets its sender. A signed message that the view refuses is logged: it may report money
    that this service does not know of.
    """

    @wraps(view)
    def authenticated(endpoint_id: object, **arguments: Any) -> Any:
        headers = {name.lower(): value for name, value in request.headers}
        endpoint = str(endpoint_id)
        if not services().providers.knows(endpoint):
            with _limited():
                # Only its provider knows an endpoint's id: nobody else gets a body read.
                services().providers.check(endpoint)
        # A provider sends for many clients: one's wrong secret must not shut out the others.
        with _limited(endpoint):
            body = cast("StrictRequest", request).whole_body(services().receiving_signed)
            sender = services().providers.authenticate(
                endpoint, headers, body, now_seconds=time.time()
            )
        try:
            return view(sender=sender, **arguments)
        except Exception as error:
            name, message = type(error).__name__, headers["webhook-id"]
            log.warning("webhook refused", error=name, webhook_id=message, **sender._asdict())
            raise

    return authenticated


@providers.post("/providers/<uuid:endpoint_id>/webhook")
@signed
@providers.input(WebhookHeaders, location="headers", arg_name="header")
@providers.input(ReportIn, arg_name="body")
@providers.output(OutcomeOut)
@raises(
    *(AlreadyRefunded, NotRefundable, OrderNotFound, PaymentNotFound),
    *(ReferenceReused, SignatureInvalid, StorageUnavailable, TooManyRequests),
)
@sends("Idempotent-Replayed")
def receive_webhook(sender: Sender, header: WebhookHeaders, body: ReportIn) -> Any:
    """Record a payment or a refund that its provider reports.

    The message is signed as Standard Webhooks specifies, and needs no API key. Reporting the same
    thing again changes nothing. A provider should retry after any status but 2xx.
    """
    message = body.root
    if isinstance(message, OtherMessage):
        services().providers.ignore(sender, message.type, header.webhook_id)
        return {"outcome": "ignored", "payment_id": None}
    recorded = _record(sender, message)
    outcome = "replayed" if recorded.replayed else recorded.payment.status
    report = {"outcome": outcome, "payment_id": recorded.payment.id}
    return report, 200, replay_header(recorded.replayed)


def _record(sender: Sender, message: Any) -> Paid:
    orders, data = services().orders, message.data
    if isinstance(message, PaymentSucceeded):
        return orders.pay(sender.client_id, provider=sender.provider, **data.model_dump())
    return orders.refund_by_reference(
        sender.client_id, sender.provider, data.payment_reference, reference=data.reference
    )
