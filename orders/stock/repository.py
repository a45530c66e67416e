"""The SQL statements on stock, each with a name and a sentence.

The operations lock one SKU, and decide by the row that they have locked.
"""

from typing import Any

import sqlalchemy as sa

from orders.sql.expressions import clock, text_literal, unindexed
from orders.sql.statements import made_of
from orders.sql.steps import Operation, Step, insertion
from orders.sql.tables import api_clients, stock_adjustments, stock_items
from orders.stock.domain import MAX_INT, Adjustment, StockItem

p = sa.bindparam
ITEM, ADJUSTMENT = made_of(StockItem), made_of(Adjustment)

WITH_KEY = (
    stock_adjustments.c.client_id == p("for_client"),
    stock_adjustments.c.idempotency_key == p("for_key"),
)
_of_sku = stock_items.c.sku == p("for_sku")
#: What an operator sets, and the parameter of each; null: it stays as it is.
_WANTED = {"on_hand": "for_on_hand", "price_minor": "for_price", "currency": "for_currency"}
_on_hand = p("for_on_hand", type_=stock_items.c.on_hand.type)


def _number(value: int) -> sa.ColumnClause[int]:
    return sa.literal_column(str(value), sa.Integer)


def _version() -> sa.ColumnElement[str]:
    """`StockItem.version`"""
    on_hand, price, currency, timeout = (
        sa.cast(stock_items.c[name], sa.String) for name in (*_WANTED, "timeout_seconds")
    )
    sold = on_hand + text_literal("-") + price + text_literal("-") + currency
    sold += sa.func.coalesce(text_literal("-") + timeout + text_literal("s"), text_literal(""))
    return sa.case(
        (stock_items.c.retired_at.is_(None), sold), else_=sold + text_literal("-retired")
    )


def _with_name(adjustments: sa.FromClause) -> tuple[sa.ColumnElement[Any], ...]:
    """The columns of adjustments, and the name of each one's client."""
    name = sa.select(api_clients.c.name).where(api_clients.c.id == adjustments.c.client_id)
    return (*adjustments.c, name.scalar_subquery().label("client"))


def _by_client(sku: sa.ColumnElement[str]) -> dict[str, Any]:
    """What every adjustment has: its SKU, its client, and its time, which is after the SKU was locked."""
    return {"sku": sku, "client_id": "for_client", "at": clock(), "key_id": "by_key"}


def _refusal() -> sa.ColumnElement[str]:
    """Why an existing SKU is not set; null if it is."""
    versions = sa.func.json_each_text(p("versions", type_=sa.JSON)).table_valued(
        sa.column("key", sa.String), name="versions"
    )
    is_expected = p("any_version", type_=sa.Boolean) | sa.exists(
        sa.select(versions.c.key).where(versions.c.key == _version())
    )
    return sa.case(
        (~is_expected, text_literal("version")),
        (stock_items.c.reserved > _on_hand, text_literal("reserved")),
    )


def _note_change(step: Step, found: sa.FromClause, written: sa.FromClause) -> None:
    """Setting stock is an adjustment too, if it changes what is on hand."""
    delta = written.c.on_hand - sa.func.coalesce(found.c.on_hand, _number(0))
    row = {
        **_by_client(written.c.sku),
        "delta": delta,
        "reason": text_literal("set"),
        "on_hand": written.c.on_hand,
    }
    both = written.join(found, sa.true(), isouter=True)
    step("noted", insertion(stock_adjustments, row, delta != _number(0), source=both))


# -- operations ----------------------------------------------------------------------------


@Operation
def set_stock(step: Step) -> sa.Select[Any]:
    """Set a SKU's stock and price, or what is given of them and its timeout, if it is as expected, and
    record by how much that changes what is on hand.

    One that is retired is sold again if its stock is set. Returns the SKU as it was found and as it was written. Returns neither if there is no such SKU
    and it may not be created, or if another request is creating it at this moment.
    """
    found = step(
        "found",
        sa.select(stock_items, _refusal().label("refusal"))
        .where(_of_sku)
        .with_for_update(key_share=True),
    )
    one_row = sa.select(_number(1)).subquery("one_row")
    wanted: dict[str, sa.ColumnElement[Any]] = {
        name: sa.func.coalesce(p(parameter, type_=stock_items.c[name].type), found.c[name])
        for name, parameter in _WANTED.items()
    }
    timeout = p("for_timeout", type_=stock_items.c.timeout_seconds.type)
    wanted["timeout_seconds"] = sa.case(
        (p("keep_timeout", type_=sa.Boolean), found.c.timeout_seconds), else_=timeout
    )
    wanted["retired_at"] = sa.case((_on_hand.is_(None), found.c.retired_at))
    new = insertion(
        stock_items,
        {"sku": "for_sku", "reserved": _number(0), **wanted},
        found.c.refusal.is_(None),
        found.c.sku.is_not(None) | p("may_create", type_=sa.Boolean),
        source=one_row.join(found, sa.true(), isouter=True),
    )
    written = step(
        "written",
        new.on_conflict_do_update(
            index_elements=["sku"],
            set_={name: new.excluded[name] for name in wanted},
            # Only a row that was locked, not one that another request is creating.
            where=sa.exists(sa.select(found.c.sku)),
        ).returning(stock_items),
    )
    _note_change(step, found, written)
    both = sa.union_all(
        sa.select(_number(0).label("is_after"), found),
        sa.select(_number(1), written, sa.null()),
    )
    return sa.select(both.subquery("both"))


@Operation
def adjust(step: Step) -> sa.Select[Any]:
    """Add to what is on hand of a SKU if that leaves enough for what orders reserve, and if its key is
    new.

    Returns the SKU as it was found, with the adjustment or with nulls. Returns no row if there is
    no such SKU, or if the key is already known.
    """
    found = step(
        "found",
        sa.select(stock_items)
        .where(_of_sku, ~sa.exists(sa.select(stock_adjustments.c.id).where(*WITH_KEY)))
        .with_for_update(key_share=True),
    )
    delta = p("for_delta", type_=sa.Integer)
    # As a larger integer than the column's, so that no sum overflows.
    on_hand = sa.cast(found.c.on_hand, sa.BigInteger) + delta
    row = {
        **_by_client(found.c.sku),
        "delta": delta,
        "reason": "for_reason",
        "on_hand": sa.cast(on_hand, sa.Integer),
        "idempotency_key": "for_key",
    }
    is_possible = on_hand.between(found.c.reserved, _number(MAX_INT))
    adjusted = step(
        "adjusted",
        insertion(stock_adjustments, row, is_possible)
        .on_conflict_do_nothing()
        .returning(stock_adjustments),
    )
    # An insert that always conflicts. An update would first check the constraints of the row as it was
    # when the statement began, and raise if the change would not have been possible then.
    unused = {"on_hand": _number(0), "price_minor": _number(0), "currency": text_literal("")}
    changed = insertion(stock_items, {"sku": adjusted.c.sku, **unused}).on_conflict_do_update(
        index_elements=["sku"], set_={"on_hand": stock_items.c.on_hand + delta}
    )
    step("stock", changed)
    before = (found.c.on_hand.label("was_on_hand"), found.c.reserved.label("was_reserved"))
    return sa.select(*before, *_with_name(adjusted)).select_from(
        found.join(adjusted, sa.true(), isouter=True)
    )


# -- statements ----------------------------------------------------------------------------

# Retire a SKU, unless it is.
RETIRE_STOCK = (
    sa.update(stock_items)
    .where(_of_sku, unindexed(stock_items.c.retired_at.is_(None)))
    .values(retired_at=clock())
)
# One SKU.
GET_STOCK = sa.select(stock_items).where(_of_sku)
_in_bytes = sa.collate(stock_items.c.sku, "C")
# SKUs that are sold, in byte order, from a page's end on.
LIST_STOCK = (
    sa.select(stock_items)
    .where(_in_bytes > p("last_sku", type_=sa.String), stock_items.c.retired_at.is_(None))
    .order_by(_in_bytes)
    .limit(p("page_size"))
)
# The adjustment that was made with a client's key.
GET_ADJUSTMENT = sa.select(*_with_name(stock_adjustments)).where(*WITH_KEY)
# A SKU's adjustments, newest first, from a page's end on.
LIST_ADJUSTMENTS = (
    sa.select(*_with_name(stock_adjustments))
    .where(stock_adjustments.c.sku == p("for_sku"), stock_adjustments.c.id < p("before_id"))
    .order_by(stock_adjustments.c.id.desc())
    .limit(p("page_size"))
)
