"""Webhook subscriptions and deliveries."""

from typing import Any

from flask import url_for

from orders import errors
from orders.features.signing.errors import WebhookUrlNotAllowed
from orders.features.webhooks.errors import DeliveryNotFound, TooManyWebhooks, WebhookNotFound
from orders.features.webhooks.schemas import (
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
from orders.features.webhooks.service import Webhooks
from orders.http.auth import caller, location, page, reader, replay_header, services
from orders.http.routing import Routes, answers
from orders.http.schemas.orders import OptionalKeyIn

webhooks = Routes("webhooks", "Webhooks", "Where events are sent to, and what became of each.")
ROLES = ["orders", "ops"]


@webhooks.post("/webhooks", returns=WebhookWithSecretOut, status=201, scopes=ROLES)
@answers(
    *(errors.KeyReused, TooManyWebhooks, WebhookUrlNotAllowed),
    sends=["Location", "Idempotent-Replayed"],
)
def create_webhook(header: OptionalKeyIn, body: WebhookIn) -> Any:
    """Subscribe a URL to your events.

    The secret that signs them is shown only now, and to whoever repeats the request with the same
    Idempotency-Key.
    """
    made, secret, replayed = services()[Webhooks].subscribe(
        caller(), url=body.url, events=body.events, key=header.idempotency_key
    )
    headers = location(made["id"]) | replay_header(replayed)
    return {**made, "secret": secret}, headers


@webhooks.get("/webhooks", returns=WebhooksOut, scopes=ROLES)
def list_webhooks(query: WebhooksQuery) -> Any:
    """Your webhook subscriptions, oldest first."""
    found = services()[Webhooks].subscriptions(caller(), page_size=query.limit, after=query.after)
    return page(found, query)


@webhooks.get("/webhooks/<uuid:webhook_id>", returns=WebhookOut, scopes=ROLES)
@answers(WebhookNotFound)
def get_webhook(webhook_id: str) -> Any:
    """One webhook subscription.

    With the scope `ops`, any client's.
    """
    return services()[Webhooks].subscription(reader(), webhook_id)


@webhooks.patch("/webhooks/<uuid:webhook_id>", returns=WebhookOut, scopes=ROLES)
@answers(WebhookNotFound, WebhookUrlNotAllowed)
def change_webhook(webhook_id: str, body: WebhookChangeIn) -> Any:
    """Change a webhook subscription, pause it or resume it.

    While it is paused its deliveries are kept; a new URL gets those, too. With the scope `ops`, any
    client's can be paused and resumed.
    """
    changes = body.model_dump(exclude_unset=True)
    owner = reader() if changes.keys() == {"paused"} else caller()
    return services()[Webhooks].change(owner, webhook_id, changes)


@webhooks.delete(
    "/webhooks/<uuid:webhook_id>", status=204, description="It is deleted.", scopes=ROLES
)
@answers(WebhookNotFound)
def delete_webhook(webhook_id: str) -> Any:
    """Delete a webhook subscription.

    Nothing more is sent, not even what is waiting.
    """
    services()[Webhooks].unsubscribe(caller(), webhook_id)


@webhooks.post(
    "/webhooks/<uuid:webhook_id>/rotate-secret", returns=WebhookWithSecretOut, scopes=ROLES
)
@answers(WebhookNotFound)
def rotate_webhook_secret(webhook_id: str) -> Any:
    """Make another secret, shown only now.

    For a day, messages are also signed with the previous ones.
    """
    found, secret = services()[Webhooks].rotate_secret(caller(), webhook_id)
    return {**found._asdict(), "secret": secret}


@webhooks.get("/webhooks/<uuid:webhook_id>/deliveries", returns=DeliveriesOut, scopes=ROLES)
@answers(WebhookNotFound)
def list_deliveries(webhook_id: str, query: DeliveriesQuery) -> Any:
    """A subscription's deliveries, newest first.

    `status=dead` lists those that were given up. With the scope `ops`, any client's.
    """
    found = services()[Webhooks].deliveries(
        reader(),
        webhook_id,
        status=query.status,
        page_size=query.limit,
        after=query.created_after,
        before=query.before,
    )
    return page(found, query)


@webhooks.post("/webhooks/<uuid:webhook_id>/ping", returns=DeliveryOut, status=202, scopes=ROLES)
@answers(WebhookNotFound, sends=["Location"])
def ping_webhook(webhook_id: str) -> Any:
    """Send a test message.

    Its type is `webhook.ping`. The delivery shows what the endpoint answers.
    """
    made = services()[Webhooks].ping(caller(), webhook_id)
    location = url_for("webhooks.get_delivery", delivery_id=made.id)
    return made, {"Location": location}


@webhooks.get("/webhooks/deliveries/<uuid:delivery_id>", returns=DeliveryOut, scopes=ROLES)
@answers(DeliveryNotFound)
def get_delivery(delivery_id: str) -> Any:
    """One delivery.

    With the scope `ops`, any client's.
    """
    return services()[Webhooks].delivery(reader(), delivery_id)


@webhooks.post(
    "/webhooks/deliveries/<uuid:delivery_id>/redeliver", returns=DeliveryOut, scopes=ROLES
)
@answers(DeliveryNotFound)
def redeliver(delivery_id: str) -> Any:
    """Send a delivery again, under the same id.

    With the scope `ops`, any client's.
    """
    return services()[Webhooks].redeliver(reader(), delivery_id)
