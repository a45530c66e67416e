"""Refunds and disputes of payments, which may come at any time and end no order. A refund may fail later."""

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
ZERO = sa.literal_column("0", sa.Integer)
#: The kind of an entry that is a refund; the others are disputes.
REFUND = text_literal("refund")


def _locked(step: Step) -> sa.FromClause:
    """A client's own payment, locked after its order, with what is left of it."""
    order_id = sa.select(payments.c.order_id).where(*OWN_PAYMENT).scalar_subquery()
    left = payments.c.amount_minor - payments.c.refunded_minor
    return step(
        "payment",
        sa.select(payments, left.label("left"))
        .where(*OWN_PAYMENT, lock(step, order_id).at_all)
        .with_for_update(),
    )


def _row(
    payment: sa.FromClause, kind: sa.ColumnElement[str], amount: sa.ColumnElement[int]
) -> dict[str, Any]:
    return {
        **{name: payment.c[name] for name in ("client_id", "provider")},
        "kind": kind,
        "reference": "for_reference",
        "payment_id": payment.c.id,
        "amount_minor": amount,
        "at": clock(),
        "key_id": BY_KEY,
    }


def _payment_of(entry: sa.FromClause, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """The payment of an entry, if that meets a condition."""
    found = sa.select(entry.c.payment_id).where(condition)
    return (payments.c.id == entry.c.payment_id) & one_of(payments.c.id, found)


def _in_currency(payment: sa.FromClause) -> sa.ColumnElement[bool]:
    currency = p("for_currency", type_=sa.String)
    return sa.func.coalesce(payment.c.currency == currency, sa.true())


@Operation
def enter(step: Step) -> sa.Select[Any]:
    """Record a refund or a dispute of a client's own payment, as ``for_kind`` says, and its event.

    The locks of the order and of the payment decide: what is left is what the refund before left. A
    refund without an amount is of all of it. Returns a row, unless there is no such payment, the
    reference is known, the currency is another one, or less is left.
    """
    payment = _locked(step)
    kind = p("for_kind", type_=sa.String)
    most = sa.case((kind == REFUND, payment.c.left), else_=payment.c.amount_minor)
    amount = sa.func.coalesce(p("for_amount", type_=sa.BigInteger), most)
    row = _row(payment, kind, amount)
    new = insertion(
        payment_entries, row, amount > ZERO, amount <= most, _in_currency(payment), source=payment
    )
    entry = step("entry", new.on_conflict_do_nothing().returning(payment_entries))
    is_refund = entry.c.kind == REFUND
    total = payments.c.refunded_minor + entry.c.amount_minor
    is_all, refunded = total == payments.c.amount_minor, text_literal(PaymentStatus.REFUNDED)
    step(
        "sum",
        sa.update(payments)
        .where(_payment_of(entry, is_refund))
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


@Operation
def fail(step: Step) -> sa.Select[Any]:
    """Record that a refund of a client's own payment has failed: what it sent back is there again.

    One that is not known yet is noted, with an amount of 0, so that it changes nothing when it is
    reported. Returns a row, unless there is no such payment, the refund has failed before, or it is of
    another payment, amount or currency.
    """
    payment = _locked(step)
    row = {**_row(payment, REFUND, ZERO), "failed_at": clock()}
    new = insertion(payment_entries, row, _in_currency(payment), source=payment)
    amount = sa.func.coalesce(p("for_amount", type_=sa.BigInteger), payment_entries.c.amount_minor)
    entry = step(
        "entry",
        new.on_conflict_do_update(
            index_elements=[*payment_entries.primary_key],
            set_={"failed_at": new.excluded.failed_at},
            where=sa.and_(
                payment_entries.c.failed_at.is_(None),
                payment_entries.c.payment_id == new.excluded.payment_id,
                payment_entries.c.amount_minor == amount,
            ),
        ).returning(payment_entries),
    )
    counted = entry.c.amount_minor > ZERO
    is_latest = payments.c.refund_reference == entry.c.reference
    was_applied = payments.c.reason.is_(None)
    step(
        "sum",
        sa.update(payments)
        .where(_payment_of(entry, counted))
        .values(
            status=sa.case(
                (was_applied, text_literal(PaymentStatus.APPLIED)),
                else_=text_literal(PaymentStatus.REFUND_DUE),
            ),
            refunded_minor=payments.c.refunded_minor - entry.c.amount_minor,
            refunded_at=sa.case((~is_latest, payments.c.refunded_at)),
            refund_reference=sa.case((~is_latest, payments.c.refund_reference)),
        ),
    )
    facts = {
        **money(payment),
        "refund_reference": entry.c.reference,
        "refund_amount_minor": entry.c.amount_minor,
        "refunded_minor": payment.c.refunded_minor - entry.c.amount_minor,
    }
    same = entry.c.payment_id == payment.c.id
    event = event_of(payment, EventType.REFUND_FAILED, entry.c.failed_at, facts, same, counted)
    return sa.select(entry.c.payment_id, ids_of(add_events(step, event)))
