"""What happens to orders and their webhooks, counted for Prometheus in the API and in the worker. Needs prometheus-client.

Each process counts what it did: add them up.
"""

from prometheus_client import Counter, disable_created_metrics

from orders.order.domain import CancelReason, EventType, PaymentStatus

# Otherwise each counter comes with a second metric, the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]
CREATED = Counter("orders_created", "Orders placed.")
PAID = Counter("orders_paid", "Orders that were paid, or cost nothing.")
CANCELLED = Counter("orders_cancelled", "Orders cancelled, by reason.", ["reason"])
EXTENDED = Counter("orders_extended", "Deadlines moved to give time back after a freeze.")
PAYMENTS = Counter(
    "orders_payments",
    "Payments by the status that they got; refunds, and those that failed; disputes.",
    ["status"],
)
PAID_IN_TIME = Counter(
    "orders_paid_in_time",
    "Payments that their provider took before the deadline of an order that was cancelled at it.",
)
WEBHOOKS = Counter("orders_webhooks", "Attempts to send a webhook, by outcome.", ["outcome"])

# Zero, rather than absent, before the first event of a kind: otherwise a rate misses that event.
for reason in CancelReason:
    CANCELLED.labels(reason)
for status in (*PaymentStatus, "refund_failed", "disputed"):
    PAYMENTS.labels(status)
for outcome in ("delivered", "failed", "dead"):
    WEBHOOKS.labels(outcome)


def count(event: str, reason: str = "", times: int = 1, /) -> None:
    """Count what happened: an `Observer`. Ignores events that no counter is for."""
    match event:
        case EventType.CREATED:
            CREATED.inc(times)
        case EventType.PAID:
            PAID.inc(times)
        case EventType.CANCELLED:
            CANCELLED.labels(reason).inc(times)
        case EventType.EXTENDED:
            EXTENDED.inc(times)
        case _:
            if reason == "paid_in_time":
                PAID_IN_TIME.inc(times)
            family, _, outcome = event.partition(".")
            if counter := {"payment": PAYMENTS, "webhook": WEBHOOKS}.get(family):
                counter.labels(outcome).inc(times)
