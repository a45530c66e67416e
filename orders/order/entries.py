"""Refunds and disputes of payments, which may come at any time and end no order."""

from typing import Any

import sqlalchemy as sa

from orders.order.domain import EventType, PaymentStatus
from orders.order.operations import (
    BY_KEY,
    OWN_PAYMENT,
    add_events,
    event_of,
    ids_of,
    lock,
    money,
)
from orders.sql.expressions import clock, one_of, text_literal
from orders.sql.steps import Operation, Step, insertion
from orders.sql.tables import payment_entries, payments

p = sa.bindparam
#: The kind of an entry that is a refund; the others are disputes.
REFUND = text_literal("refund")


@Operation
def enter(step: Step) -> sa.Select[Any]:
    """Record a refund or a dispute of a client's own payment, as ``for_kind`` says, and its event.

    The locks of the order and of the payment decide: what is left is what the refund before left. A
    refund without an amount is of all of it. Returns a row, unless there is no such payment, the
    reference is known, the currency is another one, or less is left.
    """
    order_id = sa.select(payments.c.order_id).where(*OWN_PAYMENT).scalar_subquery()
    left = payments.c.amount_minor - payments.c.refunded_minor
    payment = step(
        "payment",
        sa.select(payments, left.label("left"))
        .where(*OWN_PAYMENT, lock(step, order_id).at_all)
        .with_for_update(),
    )
    kind, zero = p("for_kind", type_=sa.String), sa.literal_column("0", sa.Integer)
    most = sa.case((kind == REFUND, payment.c.left), else_=payment.c.amount_minor)
    amount = sa.func.coalesce(p("for_amount", type_=sa.BigInteger), most)
    row = {
        **{name: payment.c[name] for name in ("client_id", "provider")},
        "kind": kind,
        "reference": "for_reference",
        "payment_id": payment.c.id,
        "amount_minor": amount,
        "at": clock(),
        "key_id": BY_KEY,
    }
    currency = p("for_currency", type_=sa.String)
    same_currency = sa.func.coalesce(payment.c.currency == currency, sa.true())
    new = insertion(
        payment_entries, row, zero < amount, amount <= most, same_currency, source=payment
    )
    entry = step("entry", new.on_conflict_do_nothing().returning(payment_entries))
    is_refund = entry.c.kind == REFUND
    total = payments.c.refunded_minor + entry.c.amount_minor
    is_all, refunded = total == payments.c.amount_minor, text_literal(PaymentStatus.REFUNDED)
    step(
        "sum",
        sa.update(payments)
        .where(
            payments.c.id == entry.c.payment_id,
            one_of(payments.c.id, sa.select(entry.c.payment_id).where(is_refund)),
        )
        .values(
            status=sa.case((is_all, refunded), else_=payments.c.status),
            refunded_minor=total,
            refunded_at=entry.c.at,
            refund_reference=entry.c.reference,
        ),
    )
    back = {
        "refund_reference": entry.c.reference,
        "refund_amount_minor": entry.c.amount_minor,
        "refunded_minor": payment.c.refunded_minor + entry.c.amount_minor,
    }
    dispute = {
        "dispute": entry.c.kind,
        "dispute_reference": entry.c.reference,
        "dispute_amount_minor": entry.c.amount_minor,
    }
    same, was_applied = entry.c.payment_id == payment.c.id, payment.c.reason.is_(None)
    deliveries = add_events(
        step,
        *(
            event_of(payment, kind, entry.c.at, {**money(payment), **facts}, same, *conditions)
            for kind, facts, conditions in (
                (EventType.ORDER_REFUNDED, back, (is_refund, was_applied)),
                (EventType.REFUNDED, back, (is_refund, ~was_applied)),
                (EventType.DISPUTED, dispute, (~is_refund,)),
            )
        ),
    )
    return sa.select(entry.c.payment_id, ids_of(deliveries))
