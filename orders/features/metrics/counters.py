"""What happens to orders, counted for Prometheus in the API and in the worker. Needs prometheus-client.

Each process counts what it did: add them up.
"""

from prometheus_client import Counter, disable_created_metrics

from orders.feature import features
from orders.features.parts import Counted
from orders.order.domain import CancelReason, EventType, PaymentStatus

COUNTED = (
    Counted(EventType.CREATED, "orders_created", "Orders placed."),
    Counted(EventType.PAID, "orders_paid", "Orders that were paid, or cost nothing."),
    Counted(
        *(EventType.CANCELLED, "orders_cancelled", "Orders cancelled, by reason."),
        label="reason",
        known=tuple(CancelReason),
    ),
    Counted(
        "payment",
        "orders_payments",
        "Payments by the status that they got; refunds, and those that failed; disputes.",
        label="status",
        known=(*PaymentStatus, "refund_failed", "disputed"),
    ),
    *(each for feature in features() for each in feature.counters),
)
# Otherwise each counter comes with a second metric, the time of its creation.
disable_created_metrics()  # type: ignore[no-untyped-call]
COUNTERS = {
    each.event: (Counter(each.name, each.help, [each.label] if each.label else []), each.label)
    for each in COUNTED
}
PAID_IN_TIME = Counter(
    "orders_paid_in_time",
    "Payments that their provider took before the deadline of an order that was cancelled at it.",
)
for each in COUNTED:
    for value in each.known:
        COUNTERS[each.event][0].labels(value)


def count(event: str, reason: str = "", times: int = 1, /) -> None:
    """Count what happened: see `Hooks.observers`. Ignores events that no counter is for."""
    family, _, rest = event.partition(".")
    for key, value in ((event, reason), (family, rest)):
        if key in COUNTERS:
            counter, label = COUNTERS[key]
            (counter.labels(value) if label else counter).inc(times)
    if reason == "paid_in_time":
        PAID_IN_TIME.inc(times)
