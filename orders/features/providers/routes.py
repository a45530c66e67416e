"""Webhooks of payment providers, which have no key: their messages are signed."""

import time
from functools import partial
from typing import Any, cast

from flask import request

from orders import errors
from orders.features.operators import log_key
from orders.features.providers import reports
from orders.features.providers.domain import Sender
from orders.features.providers.errors import InboxFull, MessageNotFound
from orders.features.providers.schemas import (
    MessagesQuery,
    OutcomeOut,
    ProviderMessageOut,
    ProviderMessagesOut,
    ReportIn,
)
from orders.features.providers.service import Providers
from orders.features.signing.errors import SignatureInvalid
from orders.features.signing.schemas import WebhookHeaders
from orders.http.auth import page, replay_header, services
from orders.http.routing import Routes, answers
from orders.http.strict_json import StrictRequest

providers = Routes("providers", "Providers", "What payment providers report, in signed webhooks.")


def signed(endpoint_id: str) -> dict[str, Any]:
    """A message's sender and its body. Raises SignatureInvalid, TooManyRequests."""
    headers = {name.lower(): value for name, value in request.headers}
    known, hooks = services()[Providers], services().hooks
    if not known.knows(endpoint_id):
        # Only its provider knows an endpoint's id: nobody else gets a body read.
        hooks.check(partial(known.check, endpoint_id), request.remote_addr)

    def read() -> dict[str, Any]:
        body = cast("StrictRequest", request).whole_body("signatures")
        sender = known.authenticate(endpoint_id, headers, body, now_seconds=time.time())
        return {"sender": sender, "body": body}

    # A provider sends for many clients: one's wrong secret must not shut out the others.
    return hooks.check(read, request.remote_addr, endpoint_id)


@providers.post(
    "/providers/<uuid:endpoint_id>/webhook",
    guard=signed,
    reads=ReportIn,
    returns=OutcomeOut,
    also={
        202: "It cannot be recorded. It is kept for a person to look at, and need not be sent again."
    },
)
@answers(
    *(errors.AlreadyRefunded, InboxFull, errors.OrderNotFound, errors.PaymentNotFound),
    *(errors.RefundTooLarge, SignatureInvalid, errors.StorageUnavailable),
    errors.TooManyRequests,
    sends=["Idempotent-Replayed"],
)
def receive_webhook(sender: Sender, header: WebhookHeaders, body: bytes) -> Any:
    """Record a payment, a refund or a dispute that its provider reports.

    The message is signed as Standard Webhooks specifies, and needs no API key. Reporting the same
    thing again changes nothing. A provider should retry after any status but 2xx.
    """
    found = reports.receive(services(), sender, header.webhook_id, body)
    status = 202 if found.outcome == "waiting" else 200
    return found._asdict(), replay_header(found.outcome == "replayed"), status


@providers.get("/providers/messages", returns=ProviderMessagesOut, scopes=["ops"])
def list_provider_messages(query: MessagesQuery) -> Any:
    """Messages from all clients' providers, oldest first.

    `waiting` lists those that could not be recorded and need a person.
    """
    found = services()[Providers].messages(query.status, page_size=query.limit, after=query.after)
    return page(found, query)


@providers.post(
    "/providers/messages/<uuid:message_id>/replay", returns=ProviderMessageOut, scopes=["ops"]
)
@answers(MessageNotFound)
def replay_provider_message(message_id: str) -> Any:
    """Try again to record what a message reports.

    Its status and note say what became of it. What is recorded already does not change.
    """
    replayed = reports.replay(services(), message_id)
    log_key("replay", message=replayed.id, note=replayed.note)
    return replayed


@providers.post(
    "/providers/messages/<uuid:message_id>/dismiss", returns=ProviderMessageOut, scopes=["ops"]
)
@answers(MessageNotFound)
def dismiss_provider_message(message_id: str) -> Any:
    """Settle a message by hand: it is no longer listed as waiting."""
    dismissed = services()[Providers].dismiss(message_id)
    log_key("dismiss", message=dismissed.id)
    return dismissed
