"""Webhooks of payment providers, which have no key: their messages are signed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from http import HTTPStatus
from typing import Any, cast

from apiflask import APIBlueprint
from flask import request

from orders.errors import (
    MessageNotFound,
    OrderNotFound,
    PaymentNotFound,
    SignatureInvalid,
    StorageUnavailable,
    TooManyRequests,
)
from orders.http import reports
from orders.http.auth import auth, log_key, page, replay_header, services
from orders.http.contract import also, raises, reads, sends
from orders.http.schemas.providers import (
    MessagesQuery,
    OutcomeOut,
    ProviderMessageOut,
    ProviderMessagesOut,
    ReportIn,
    WebhookHeaders,
)
from orders.http.strict_json import StrictRequest
from orders.providers.domain import Sender

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

    The view gets its sender and its body.
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
        return view(sender=sender, body=body, **arguments)

    return authenticated


@providers.post("/providers/<uuid:endpoint_id>/webhook")
@signed
@providers.input(WebhookHeaders, location="headers", arg_name="header")
@providers.output(OutcomeOut)
@providers.doc(
    responses=also(
        HTTPStatus.ACCEPTED,
        "It cannot be recorded. It is kept for a person to look at, and need not be sent again.",
        {"outcome": "waiting", "payment_id": None},
    )
)
@reads(ReportIn)
@raises(OrderNotFound, PaymentNotFound, SignatureInvalid, StorageUnavailable, TooManyRequests)
@sends("Idempotent-Replayed")
def receive_webhook(sender: Sender, header: WebhookHeaders, body: bytes) -> Any:
    """Record a payment, a refund or a dispute that its provider reports.

    The message is signed as Standard Webhooks specifies, and needs no API key. Reporting the same
    thing again changes nothing. A provider should retry after any status but 2xx.
    """
    found = reports.receive(services(), sender, header.webhook_id, body)
    status = HTTPStatus.ACCEPTED if found.outcome == "waiting" else HTTPStatus.OK
    return found._asdict(), status, replay_header(found.outcome == "replayed")


@providers.get("/providers/messages")
@providers.auth_required(auth, roles=["ops"])
@providers.input(MessagesQuery, location="query", arg_name="query")
@providers.output(ProviderMessagesOut)
def list_provider_messages(query: MessagesQuery) -> Any:
    """Messages from all clients' providers, oldest first.

    `waiting` lists those that could not be recorded and need a person.
    """
    found = services().providers.messages(query.status, page_size=query.limit, after=query.after)
    return page(found, query)


@providers.post("/providers/messages/<uuid:message_id>/replay")
@providers.auth_required(auth, roles=["ops"])
@providers.output(ProviderMessageOut)
@raises(MessageNotFound)
def replay_provider_message(message_id: object) -> Any:
    """Try again to record what a message reports.

    Its status and note say what became of it. What is recorded already does not change.
    """
    replayed = reports.replay(services(), str(message_id))
    log_key("replay", message=replayed.id, note=replayed.note)
    return replayed


@providers.post("/providers/messages/<uuid:message_id>/dismiss")
@providers.auth_required(auth, roles=["ops"])
@providers.output(ProviderMessageOut)
@raises(MessageNotFound)
def dismiss_provider_message(message_id: object) -> Any:
    """Settle a message by hand: it is no longer listed as waiting."""
    dismissed = services().providers.dismiss(str(message_id))
    log_key("dismiss", message=dismissed.id)
    return dismissed
