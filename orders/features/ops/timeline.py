"""What happened to an order, as steps. See `orders.features.parts`."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from operator import attrgetter

from orders.features.ops.filters import money
from orders.features.parts import Step
from orders.order.domain import CancelReason, EventType, Order, OrderEvent, Payment
from worker.console import duration


def timeline(
    order: Order, events: Iterable[OrderEvent], payments: Iterable[Payment], others: Iterable[Step]
) -> list[Step]:
    """In the order of time; ``others`` are of features."""
    steps = [_of_event(event, order) for event in events]
    steps += [step for payment in payments for step in _of_payment(payment)]
    return sorted([*steps, *others], key=attrgetter("at"))


def _of_event(event: OrderEvent, order: Order) -> Step:
    text, then = "", None
    if event.type is EventType.CANCELLED:
        late = duration((event.at - order.expires_at).total_seconds() * 1000)
        text = f"not paid in time; cancelled {late} after the deadline"
        if event.data["reason"] != CancelReason.EXPIRED:
            text = "on request"
    if event.type is EventType.EXTENDED and (to := event.data.get("expires_at")):
        text, then = "to", datetime.fromisoformat(to)
    return Step(event.at, "event", event.type, text, then)


def _of_payment(payment: Payment) -> Iterator[Step]:
    amount = money(payment.amount_minor, payment.currency)
    text = f"{amount} by {payment.provider}, {payment.reference}"
    status = payment.status.replace("_", " ")
    yield Step(payment.created_at, "payment", f"payment {status}", text)
    if payment.refunded_at:
        text = f"{money(payment.refunded_minor, payment.currency)}, {payment.refund_reference}"
        yield Step(payment.refunded_at, "payment", "payment refunded", text)
