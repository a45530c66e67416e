"""Webhook subscriptions and deliveries."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint
from flask import url_for

from orders.errors import (
    DeliveryNotFound,
    KeyReused,
    TooManyWebhooks,
    WebhookNotFound,
    WebhookUrlNotAllowed,
)
from orders.http.auth import auth, caller, page, reader, replay_header, services
from orders.http.contract import raises, sends
from orders.http.schemas.orders import OptionalKeyIn
from orders.http.schemas.webhooks import (
    DeliveriesOut,
    DeliveriesQuery,
    DeliveryOut,
    WebhookChangeIn,
    WebhookIn,
    WebhookOut,
    WebhooksOut,
    WebhooksQuery,
    WebhookWithSecretOut,
)
from orders.webhooks.domain import PING, Subscription

webhooks = APIBlueprint(
    "webhooks",
    __name__,
    url_prefix="/v1",
    tag={"name": "Webhooks", "description": "Where events are sent to, and what became of each."},
)
ROLES = ["orders", "ops"]
PINGED = {"order_id": None, "type": PING, "status": "pending", "attempts": 0}
PAUSED = {"paused_at": "2026-11-22T09:45:00.000Z", "pause_reason": "requested"}


def _with_secret(found: tuple[Subscription, str]) -> dict[str, Any]:
    subscription, secret = found
    return {**asdict(subscription), "secret": secret}


@webhooks.post("/webhooks")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.input(OptionalKeyIn, location="headers", arg_name="header")
@webhooks.input(WebhookIn, arg_name="body")
@webhooks.output(WebhookWithSecretOut, HTTPStatus.CREATED)
@raises(KeyReused, TooManyWebhooks, WebhookUrlNotAllowed)
@sends("Location", "Idempotent-Replayed")
def create_webhook(header: OptionalKeyIn, body: WebhookIn) -> Any:
    """Subscribe a URL to your events.

    The secret that signs them is shown only now, and to whoever repeats the request with the same
    Idempotency-Key.
    """
    made, secret, replayed = services().webhooks.subscribe(
        caller(), url=body.url, events=body.events, key=header.idempotency_key
    )
    location = {"Location": url_for("webhooks.get_webhook", webhook_id=made.id)}
    headers = location | replay_header(replayed)
    return _with_secret((made, secret)), HTTPStatus.CREATED, headers


@webhooks.get("/webhooks")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.input(WebhooksQuery, location="query", arg_name="query")
@webhooks.output(WebhooksOut)
def list_webhooks(query: WebhooksQuery) -> Any:
    """Your webhook subscriptions, oldest first."""
    found = services().webhooks.subscriptions(caller(), page_size=query.limit, after=query.after)
    return page(found, query)


@webhooks.get("/webhooks/<uuid:webhook_id>")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.output(WebhookOut)
@raises(WebhookNotFound)
def get_webhook(webhook_id: object) -> Any:
    """One webhook subscription.

    With the scope `ops`, any client's.
    """
    return services().webhooks.subscription(reader(), str(webhook_id))


@webhooks.patch("/webhooks/<uuid:webhook_id>")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.input(WebhookChangeIn, arg_name="body")
@webhooks.output(WebhookOut, example=PAUSED)
@raises(WebhookNotFound, WebhookUrlNotAllowed)
def change_webhook(webhook_id: object, body: WebhookChangeIn) -> Any:
    """Change a webhook subscription, pause it or resume it.

    While it is paused its deliveries are kept; a new URL gets those, too. With the scope `ops`, any
    client's can be paused and resumed.
    """
    subscriptions, one = services().webhooks, str(webhook_id)
    changes = body.model_dump(include={"url", "events"}, exclude_unset=True)
    if changes:
        subscriptions.change(caller(), one, changes)
    owner = caller() if changes else reader()
    if body.paused is None:
        return subscriptions.subscription(owner, one)
    return (subscriptions.pause if body.paused else subscriptions.resume)(owner, one)


@webhooks.delete("/webhooks/<uuid:webhook_id>")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.output({}, HTTPStatus.NO_CONTENT, description="It is deleted.")
@raises(WebhookNotFound)
def delete_webhook(webhook_id: object) -> Any:
    """Delete a webhook subscription.

    Nothing more is sent, not even what is waiting.
    """
    services().webhooks.unsubscribe(caller(), str(webhook_id))
    return "", HTTPStatus.NO_CONTENT


@webhooks.post("/webhooks/<uuid:webhook_id>/rotate-secret")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.output(WebhookWithSecretOut)
@raises(WebhookNotFound)
def rotate_webhook_secret(webhook_id: object) -> Any:
    """Make another secret, shown only now.

    For a day, messages are also signed with the previous ones.
    """
    return _with_secret(services().webhooks.rotate_secret(caller(), str(webhook_id)))


@webhooks.get("/webhooks/<uuid:webhook_id>/deliveries")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.input(DeliveriesQuery, location="query", arg_name="query")
@webhooks.output(DeliveriesOut)
@raises(WebhookNotFound)
def list_deliveries(webhook_id: object, query: DeliveriesQuery) -> Any:
    """A subscription's deliveries, newest first.

    `status=dead` lists those that were given up. With the scope `ops`, any client's.
    """
    found = services().webhooks.deliveries(
        reader(),
        str(webhook_id),
        status=query.status,
        page_size=query.limit,
        after=query.created_after,
        before=query.before,
    )
    return page(found, query)


@webhooks.post("/webhooks/<uuid:webhook_id>/ping")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.output(DeliveryOut, HTTPStatus.ACCEPTED, example=PINGED)
@raises(WebhookNotFound)
@sends("Location")
def ping_webhook(webhook_id: object) -> Any:
    """Send a test message.

    Its type is `webhook.ping`. The delivery shows what the endpoint answers.
    """
    made = services().webhooks.ping(caller(), str(webhook_id))
    location = url_for("webhooks.get_delivery", delivery_id=made.id)
    return made, HTTPStatus.ACCEPTED, {"Location": location}


@webhooks.get("/webhooks/deliveries/<uuid:delivery_id>")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.output(DeliveryOut)
@raises(DeliveryNotFound)
def get_delivery(delivery_id: object) -> Any:
    """One delivery.

    With the scope `ops`, any client's.
    """
    return services().webhooks.delivery(reader(), str(delivery_id))


@webhooks.post("/webhooks/deliveries/<uuid:delivery_id>/redeliver")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.output(DeliveryOut)
@raises(DeliveryNotFound)
def redeliver(delivery_id: object) -> Any:
    """Send a delivery again, under the same id.

    With the scope `ops`, any client's.
    """
    return services().webhooks.redeliver(reader(), str(delivery_id))
