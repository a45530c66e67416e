"""The SQL statements that delete old orders, and that erase a person's data, each with a name and a sentence."""

from typing import Any

import sqlalchemy as sa

from orders.order.details import DETAILS
from orders.sql.expressions import (
    Id,
    Instant,
    first_uuid7,
    ids,
    later,
    now,
    one_of,
    text_literal,
    unindexed,
)
from orders.sql.freeze_tables import payment_attempts
from orders.sql.steps import Operation, Step
from orders.sql.tables import (
    REFUND_DUE,
    TERMINAL,
    order_events,
    order_items,
    orders,
    payment_entries,
    payments,
    provider_endpoints,
    provider_messages,
    webhook_deliveries,
)

p = sa.bindparam
#: What has its order's id, and goes with it, besides payments and their entries.
OF_ORDER = (order_items, order_events, payment_attempts, webhook_deliveries)

# Orders from here on are kept. Neither a clock of the database's that jumped nor one of ours alone
# makes an order old.
_since = later(sa.func.least(now(), p("not_after", type_=Instant)), "kept_ms")
_waits = provider_messages.c.status == text_literal("waiting")


def _any_of(table: sa.Table, fact: Any, *conditions: Any) -> sa.ColumnElement[bool]:
    """Whether this is so for any of an order's rows in a table.

    An aggregate is looked up for each order; of EXISTS a planner may make a join with all rows.
    """
    fact = sa.func.coalesce(sa.func.bool_or(fact), sa.false())
    found = sa.select(fact).where(table.c.order_id == orders.c.id, *conditions)
    return found.correlate(orders).scalar_subquery()


_entry = payment_entries.c
_open_disputes = (
    sa.select(_entry.reference)
    .where(_entry.payment_id == payments.c.id)
    .group_by(_entry.provider, _entry.reference)
    .having(
        sa.func.bool_or(_entry.kind == text_literal("opened")),
        ~sa.func.bool_or(_entry.kind.in_([text_literal("won"), text_literal("lost")])),
    )
    .correlate(payments)
)
#: An order that has ended, to which nothing happened lately, and about which nothing is left to do.
MAY_GO = sa.and_(
    _any_of(order_events, TERMINAL),
    ~_any_of(order_events, order_events.c.at >= _since),
    sa.func.coalesce(orders.c.changed_at < _since, sa.true()),
    ~_any_of(
        payments,
        (payments.c.status == REFUND_DUE) | sa.exists(_open_disputes),
    ),
    ~_any_of(
        payment_attempts,
        sa.func.coalesce(payment_attempts.c.settled_at >= _since, sa.true()),
    ),
    ~_any_of(provider_messages, _waits),
)


@Operation
def lock(step: Step) -> sa.Select[Any]:
    """Lock those of the oldest orders after a position that may go, and their endings.

    Returns the orders of a page, and whether each is locked. What is locked by others is skipped; both
    are locked, because a change of an order's details locks its ending first.
    """
    page = step(
        "page",
        sa.select(orders.c.id)
        .where(
            orders.c.id > p("after_id", type_=Id),
            orders.c.id < first_uuid7(_since),
        )
        .order_by(orders.c.id)
        .limit(p("page_size", type_=sa.Integer)),
    )
    locked = step(
        "locked",
        sa.select(orders.c.id)
        .where(one_of(orders.c.id, sa.select(page.c.id)), MAY_GO)
        .with_for_update(skip_locked=True),
    )
    endings = step(
        "endings",
        sa.select(order_events.c.order_id)
        .where(one_of(order_events.c.order_id, sa.select(locked.c.id)), TERMINAL)
        .with_for_update(skip_locked=True),
    )
    is_locked = one_of(page.c.id, sa.select(endings.c.order_id))
    return sa.select(page.c.id, is_locked.label("is_locked")).order_by(page.c.id)


@Operation
def delete(step: Step) -> sa.Select[Any]:
    """Delete orders that are locked and may still go, with all that belongs to them. Returns their ids.

    It sees what was committed until they were locked.
    """
    is_gone = one_of(orders.c.id, ids("for_ids")) & MAY_GO
    gone = step("gone", sa.delete(orders).where(is_gone).returning(orders.c.id))
    for table in OF_ORDER:
        of_gone = one_of(table.c.order_id, sa.select(gone.c.id))
        step(f"gone_{table.name}", sa.delete(table).where(of_gone))
    of_gone = one_of(payments.c.order_id, sa.select(gone.c.id))
    paid = step("gone_payments", sa.delete(payments).where(of_gone).returning(payments.c.id))
    of_paid = one_of(payment_entries.c.payment_id, sa.select(paid.c.id))
    step("gone_entries", sa.delete(payment_entries).where(of_paid))
    return sa.select(gone.c.id)


# An order's client, and its details.
GET_DETAILS = sa.select(orders.c.client_id, *orders.c[DETAILS]).where(
    orders.c.id == p("for_id", type_=Id)
)
_sent = webhook_deliveries.c
# What was sent about an order, as far as it is kept, and what was answered.
GET_SENT = (
    sa.select(*_sent["id", "type", "created_at", "body", "last_body"])
    .where(
        _sent.order_id == p("for_id", type_=Id),
        _sent.body.is_not(None) | _sent.last_body.is_not(None),
    )
    .order_by(_sent.created_at, _sent.id)
)


def _of_endpoint(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    """A column of the endpoint that a message came to."""
    found = sa.select(column).where(provider_endpoints.c.id == provider_messages.c.endpoint_id)
    return found.correlate(provider_messages).scalar_subquery()


_named = (
    sa.select(payments.c.order_id)
    .where(
        payments.c.client_id == _of_endpoint(provider_endpoints.c.client_id),
        payments.c.provider == _of_endpoint(provider_endpoints.c.provider),
        payments.c.reference == provider_messages.c.payment_reference,
    )
    .correlate(provider_messages)
    .scalar_subquery()
)
_references = sa.select(payments.c.reference).where(payments.c.order_id == p("for_id", type_=Id))
# The messages about an order, and those that named a payment of it before that was known.
_about = sa.union_all(
    sa.select(provider_messages.c.id).where(provider_messages.c.order_id == p("for_id", type_=Id)),
    sa.select(provider_messages.c.id).where(
        one_of(provider_messages.c.payment_reference, _references),
        provider_messages.c.order_id.is_(None),
        unindexed(_named == p("for_id", type_=Id)),
    ),
).subquery("about")
_is_about = one_of(provider_messages.c.id, sa.select(_about.c.id))
# The messages about an order.
GET_MESSAGES = (
    sa.select(*provider_messages.c["id", "created_at", "status", "note", "body"])
    .where(_is_about)
    .order_by(provider_messages.c.created_at, provider_messages.c.id)
)
# Delete the messages about an order. Those that wait are left.
FORGET_MESSAGES = sa.delete(provider_messages).where(_is_about, unindexed(~_waits))
# How many of an order's messages wait for a person.
COUNT_WAITING = (
    sa.select(sa.func.count()).select_from(provider_messages).where(_is_about, unindexed(_waits))
)
