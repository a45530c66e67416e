"""Webhook subscriptions and deliveries."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint
from flask import url_for

from orders.errors import (
    DeliveryNotFound,
    TooManyWebhooks,
    WebhookNotFound,
    WebhookUrlNotAllowed,
)
from orders.http.auth import auth, caller, may, page, services
from orders.http.contract import raises, sends
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
from orders.webhooks.domain import Subscription

webhooks = APIBlueprint(
    "webhooks",
    __name__,
    url_prefix="/v1",
    tag={"name": "Webhooks", "description": "Where events are sent to, and what became of each."},
)
ROLES = ["orders", "ops"]
PAUSED = {"paused_at": "2026-11-22T09:45:00.000Z", "pause_reason": "requested"}


def _with_secret(found: tuple[Subscription, str]) -> dict[str, Any]:
    subscription, secret = found
    return {**asdict(subscription), "secret": secret}


@webhooks.post("/webhooks")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.input(WebhookIn, arg_name="body")
@webhooks.output(WebhookWithSecretOut, HTTPStatus.CREATED)
@raises(TooManyWebhooks, WebhookUrlNotAllowed)
@sends("Location")
def create_webhook(body: WebhookIn) -> Any:
    """Subscribe a URL to your events.

    The secret that signs them is shown only now.
    """
    made = services().webhooks.subscribe(caller(), url=body.url, events=body.events)
    location = url_for("webhooks.get_webhook", webhook_id=made[0].id)
    return _with_secret(made), HTTPStatus.CREATED, {"Location": location}


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
    """One webhook subscription."""
    return services().webhooks.subscription(caller(), str(webhook_id))


@webhooks.patch("/webhooks/<uuid:webhook_id>")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.input(WebhookChangeIn, arg_name="body")
@webhooks.output(WebhookOut, example=PAUSED)
@raises(WebhookNotFound)
def change_webhook(webhook_id: object, body: WebhookChangeIn) -> Any:
    """Pause a webhook subscription or resume it.

    While it is paused its deliveries are kept.
    """
    change = services().webhooks.pause if body.paused else services().webhooks.resume
    return change(caller(), str(webhook_id))


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

    For a day messages are signed with both.
    """
    return _with_secret(services().webhooks.rotate_secret(caller(), str(webhook_id)))


@webhooks.get("/webhooks/<uuid:webhook_id>/deliveries")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.input(DeliveriesQuery, location="query", arg_name="query")
@webhooks.output(DeliveriesOut)
@raises(WebhookNotFound)
def list_deliveries(webhook_id: object, query: DeliveriesQuery) -> Any:
    """A subscription's deliveries, oldest first.

    `status=dead` lists those that were given up.
    """
    found = services().webhooks.deliveries(
        caller(), str(webhook_id), status=query.status, page_size=query.limit, after=query.after
    )
    return page(found, query)


@webhooks.post("/webhooks/deliveries/<uuid:delivery_id>/redeliver")
@webhooks.auth_required(auth, roles=ROLES)
@webhooks.output(DeliveryOut)
@raises(DeliveryNotFound)
def redeliver(delivery_id: object) -> Any:
    """Send a delivery again, under the same id.

    With the scope `ops`, any client's.
    """
    owner = None if may("ops") else caller()
    return services().webhooks.redeliver(owner, str(delivery_id))
