"""Puts right what is reserved of a SKU when it is not what unpaid orders hold."""

from typing import Any

import sqlalchemy as sa

from orders.sql.expressions import Instant, clock, one_of
from orders.sql.steps import Operation, Step, insertion
from orders.sql.tables import order_items, stock_items, stock_repairs, unpaid_orders
from orders.stock.repository import add_to_stock

p = sa.bindparam


def _number(value: int) -> sa.ColumnClause[int]:
    return sa.literal_column(str(value), sa.Integer)


@Operation
def repair(step: Step) -> sa.Select[Any]:
    """Add to what is reserved of a SKU what is missing from it, and record that.

    By how much it is wrong is read from one snapshot, the statement's; orders that are placed and end
    meanwhile change both sides alike. That is added to the row as it is once it is locked. Repairs are
    numbered, so that two at once do not both add it. Returns the SKU, what it has on hand, what was
    reserved, and what is held; and the number of the repair if there was one.
    """
    of_sku = stock_items.c.sku == p("for_sku")
    of_unpaid = one_of(order_items.c.order_id, sa.select(unpaid_orders.c.order_id))
    total = sa.func.coalesce(sa.func.sum(order_items.c.quantity), _number(0))
    seen = step(
        "seen",
        sa.select(
            stock_items.c.reserved,
            sa.select(total)
            .where(of_unpaid, order_items.c.sku == p("for_sku"))
            .scalar_subquery()
            .label("held"),
            sa.select(sa.func.count())
            .where(stock_repairs.c.sku == p("for_sku"))
            .scalar_subquery()
            .label("repairs"),
        ).where(of_sku),
    )
    missing = seen.c.held - seen.c.reserved
    found = step(
        "found",  # what is held has been added up by now, so the row is not locked for that long
        sa.select(stock_items)
        .where(of_sku, sa.exists(sa.select(seen.c.held).where(missing != _number(0))))
        .with_for_update(key_share=True),
    )
    reserved = found.c.reserved + missing
    row = {
        "sku": found.c.sku,
        "number": seen.c.repairs + _number(1),
        "reserved_before": found.c.reserved,
        "reserved": sa.cast(reserved, sa.Integer),
        "at": sa.type_coerce(clock(), Instant),
    }
    repaired = step(
        "repaired",
        insertion(
            stock_repairs,
            row,
            reserved.between(_number(0), found.c.on_hand),
            source=found.join(seen, sa.true()),
        )
        .on_conflict_do_nothing()
        .returning(stock_repairs),
    )
    added = sa.select(repaired.c.reserved - repaired.c.reserved_before).scalar_subquery()
    add_to_stock(step, repaired, reserved=added)
    return sa.select(
        seen.c.held,
        seen.c.reserved.label("was_reserved"),
        found.c.on_hand,
        repaired.c.number,
        repaired.c.reserved_before,
        repaired.c.reserved,
    ).select_from(seen.join(found, sa.true(), isouter=True).join(repaired, sa.true(), isouter=True))
