"""Placing an order instead of one that is not paid yet, with the pieces that this one holds."""

from typing import Any

import sqlalchemy as sa

from orders.order.domain import CancelReason, EventType
from orders.order.operations import (
    REMINDERS,
    WITH_KEY,
    ZERO,
    add_events,
    end,
    ending_of,
    event_of,
    first_events,
    held_by,
    hold,
    in_sku_order,
    insert_order,
    line_of,
    outcome,
    wanted_skus,
)
from orders.order.waiting import end_attempts
from orders.sql.expressions import one_of, text_literal, unindexed
from orders.sql.steps import Operation, Step
from orders.sql.tables import orders, stock_items, unpaid_orders

p = sa.bindparam


def _lock_stock(step: Step, own: sa.FromClause) -> sa.FromClause:
    """The SKUs of both orders: what is wanted of each, or null, and what the old order holds."""
    held = held_by(step, own)
    wanted, quantity = wanted_skus()
    of_either = sa.union(sa.select(wanted.c.key.label("sku")), sa.select(held.c.sku)).subquery()
    back = sa.func.coalesce(held.c.quantity, ZERO)
    free = stock_items.c.on_hand - stock_items.c.reserved + back
    return step(
        "shelf",
        sa.select(*line_of(quantity, free), stock_items.c.retired_at, back.label("returned"))
        .join_from(stock_items, wanted, wanted.c.key == stock_items.c.sku, isouter=True)
        .join(held, held.c.sku == stock_items.c.sku, isouter=True)
        .where(
            one_of(stock_items.c.sku, sa.select(of_either.c.sku)),
            sa.exists(sa.select(own.c.order_id)),
        )
        .order_by(in_sku_order(stock_items))
        .with_for_update(key_share=True, of=stock_items),
    )


@Operation
def replace(step: Step) -> sa.Select[Any]:
    """Like `operations.place`, and cancel a client's own unpaid order if the new one is placed.

    The old order is locked before any stock, as everywhere, and then all SKUs of both orders. Returns
    no rows, too, if the old order is not unpaid any more.
    """
    own = step(
        "own",
        sa.select(unpaid_orders.c.order_id)
        .where(
            unpaid_orders.c.order_id == p("for_replaced"),
            unindexed(unpaid_orders.c.client_id == p("for_client")),
            ~sa.exists(sa.select(orders.c.id).where(*WITH_KEY)),
        )
        .with_for_update(),
    )
    shelf = _lock_stock(step, own)
    lines = step(
        "lines",
        sa.select(shelf).where(shelf.c.quantity.is_not(None), shelf.c.retired_at.is_(None)),
    )
    basket, placed = insert_order(step, lines)
    old = sa.select(own.c.order_id).join_from(own, placed, sa.true())
    moment = sa.select(placed.c.created_at).scalar_subquery()
    replaced = step("replaced", end(moment).where(one_of(unpaid_orders.c.order_id, old)))
    end_attempts(step, replaced)
    because = {
        "reason": text_literal(CancelReason.REPLACED),
        "replaced_by": sa.cast(sa.select(placed.c.order_id).scalar_subquery(), sa.String),
    }
    cancelled = event_of(
        replaced, EventType.CANCELLED, replaced.c.at, because, ending=ending_of(replaced)
    )
    deliveries = add_events(step, *first_events(placed), cancelled, reminders=REMINDERS)
    moved = sa.select(
        shelf.c.sku, sa.func.coalesce(shelf.c.quantity, ZERO).label("quantity"), shelf.c.returned
    )
    both = moved.subquery("both_orders")
    hold(step, both, placed, returned=both.c.returned)
    return outcome(lines, basket, placed, deliveries)
