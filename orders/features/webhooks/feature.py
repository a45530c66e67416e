"""Webhooks: clients subscribe to what happens to their orders."""

from collections.abc import Iterator

from orders.feature import Feature
from orders.features.parts import Counted, OrderData, Sent
from orders.features.signing.schemas import WebhookHeaders
from orders.features.signing.settings import SendingSettings
from orders.features.webhooks import checks, tables
from orders.features.webhooks.domain import WEBHOOK_QUEUE, WEBHOOK_TYPES
from orders.features.webhooks.flow import webhook_flow
from orders.features.webhooks.routes import webhooks
from orders.features.webhooks.schemas import MessageOut
from orders.features.webhooks.sending import Sending
from orders.features.webhooks.service import SQL, Webhooks, messages_about
from orders.features.webhooks.settings import WebhookSettings
from orders.features.webhooks.steps import steps
from orders.wiring import Services


def wire(services: Services) -> Iterator[object]:
    scheduler = services.scheduler_of(WEBHOOK_QUEUE)
    made = Webhooks(services.engine, scheduler, services.settings)
    services.hooks.committed.append(made.committed)
    yield made
    yield Sending(services.engine, scheduler, services.settings, services.hooks.observe)


FEATURE = Feature(
    name="webhooks",
    tables=tables,
    settings=(WebhookSettings, SendingSettings),
    queues=(WEBHOOK_QUEUE,),
    wire=wire,
    flows=lambda services: [webhook_flow(services)],
    routes=(webhooks,),
    sent=(
        Sent(
            *("Webhooks", WEBHOOK_TYPES, WebhookHeaders, MessageOut),
            "Sent at least once, until any 2xx comes back; 410 pauses the subscription.",
            {
                "2XX": "The message was accepted.",
                "410": "Send no more: the subscription is paused.",
            },
        ),
    ),
    # Erased by the trigger `webhooks_forget`.
    order_data=lambda: OrderData(
        name="webhooks", export=SQL.list_sent, delete=SQL.delete_of_orders
    ),
    messages=messages_about,
    checks=((checks.webhooks, "orders.webhooks"),),
    steps=steps,
    counters=(
        Counted(
            *("webhook", "orders_webhooks", "Attempts to send a webhook, by outcome."),
            label="outcome",
            known=("delivered", "failed", "dead"),
        ),
    ),
)
