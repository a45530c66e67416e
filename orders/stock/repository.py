"""The SQL statements on stock, each with a name and a sentence.

The operations lock one SKU, and decide by the row that they have locked.
"""

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.errors import KeyReused, SkuNotFound, StockReserved, StockTooLarge
from orders.sql.acting import KEY_ID
from orders.sql.expressions import clock, text_literal, unindexed
from orders.sql.statements import Statements
from orders.sql.steps import Operation, Step
from orders.sql.tables import api_clients, stock_adjustments, stock_items
from orders.stock import repairs
from orders.stock.domain import KEEP_TIMEOUT, MAX_INT, Adjustment, Expected, Repair, StockItem

p = sa.bindparam

WITH_KEY = (
    stock_adjustments.c.client_id == p("for_client"),
    stock_adjustments.c.idempotency_key == p("for_key"),
)
_of_sku = stock_items.c.sku == p("for_sku")
_wanted = {
    "on_hand": p("for_on_hand", type_=stock_items.c.on_hand.type),
    "price_minor": p("for_price", type_=stock_items.c.price_minor.type),
    "currency": p("for_currency", type_=stock_items.c.currency.type),
    "timeout_seconds": p("for_timeout", type_=stock_items.c.timeout_seconds.type),
}


class Written(NamedTuple):
    """A SKU as it was found and as it was written; None when it was not."""

    before: StockItem | None
    after: StockItem | None
    #: Why it was not written: version or reserved.
    refusal: str | None


def _number(value: int) -> sa.ColumnClause[int]:
    return sa.literal_column(str(value), sa.Integer)


def _version() -> sa.ColumnElement[str]:
    """`StockItem.version`"""
    on_hand, price, currency, timeout = (
        sa.cast(stock_items.c[name], sa.String) for name in _wanted
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


def _by_client(sku: sa.ColumnElement[str]) -> dict[str, sa.ColumnElement[Any]]:
    """What every adjustment has: its SKU, its client, and its time, which is after the SKU was locked."""
    client_id = p("for_client", type_=stock_adjustments.c.client_id.type)
    key_id = p("by_key", type_=stock_adjustments.c.key_id.type)
    return {"sku": sku, "client_id": client_id, "at": clock(), "key_id": key_id}


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
        (stock_items.c.reserved > _wanted["on_hand"], text_literal("reserved")),
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
    change = (
        sa.select(*row.values())
        .select_from(written.join(found, sa.true(), isouter=True))
        .where(delta != _number(0))
    )
    step("noted", insert(stock_adjustments).from_select([*row], change))


# -- operations ----------------------------------------------------------------------------


@Operation
def set_stock(step: Step) -> sa.Select[Any]:
    """Set a SKU's stock and price if it is as expected, and record by how much that changes what is
    on hand.

    Returns the SKU as it was found and as it was written. Returns neither if there is no such SKU
    and it may not be created, or if another request is creating it at this moment.
    """
    found = step(
        "found",
        sa.select(stock_items, _refusal().label("refusal"))
        .where(_of_sku)
        .with_for_update(key_share=True),
    )
    one_row = sa.select(_number(1)).subquery("one_row")
    new = insert(stock_items).from_select(
        ["sku", "reserved", *_wanted],
        sa.select(p("for_sku", type_=stock_items.c.sku.type), _number(0), *_wanted.values())
        .select_from(one_row.join(found, sa.true(), isouter=True))
        .where(
            found.c.refusal.is_(None),
            found.c.sku.is_not(None) | p("may_create", type_=sa.Boolean),
        ),
    )
    written = step(
        "written",
        new.on_conflict_do_update(
            index_elements=["sku"],
            set_={
                **{name: new.excluded[name] for name in (*_wanted, "retired_at")},
                "timeout_seconds": sa.case(
                    (p("keep_timeout", type_=sa.Boolean), stock_items.c.timeout_seconds),
                    else_=new.excluded.timeout_seconds,
                ),
            },
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
    """Add to what is on hand of a SKU if that leaves enough for what orders hold, and if its key is
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
        "reason": p("for_reason", type_=sa.String),
        "on_hand": sa.cast(on_hand, sa.Integer),
        "idempotency_key": p("for_key", type_=sa.String),
    }
    is_possible = on_hand.between(found.c.reserved, _number(MAX_INT))
    adjusted = step(
        "adjusted",
        insert(stock_adjustments)
        .from_select([*row], sa.select(*row.values()).where(is_possible))
        .on_conflict_do_nothing()
        .returning(stock_adjustments),
    )
    # An insert that always conflicts. An update would first check the constraints of the row as it was
    # when the statement began, and raise if the adjustment would not have been possible then.
    zero = _number(0)
    change = insert(stock_items).from_select(
        ["sku", "on_hand", "price_minor", "currency"],
        sa.select(adjusted.c.sku, zero, zero, text_literal("")),
    )
    step(
        "stock",
        change.on_conflict_do_update(
            index_elements=["sku"], set_={"on_hand": stock_items.c.on_hand + delta}
        ),
    )
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
#: After any adjustment.
LAST = 2**63 - 1


class StockRepository(Statements):
    """Stock and what changed it."""

    def item(self, sku: str) -> StockItem | None:
        row = self._run(GET_STOCK, for_sku=sku).one_or_none()
        return None if row is None else stock_item(row)

    def retire(self, sku: str) -> None:
        """Sell no more of a SKU."""
        self._run(RETIRE_STOCK, for_sku=sku)

    def items(self, *, page_size: int, after: str | None) -> list[StockItem]:
        """SKUs in byte order."""
        rows = self._run(LIST_STOCK, last_sku=after or "", page_size=page_size)
        return [stock_item(row) for row in rows]

    def set(self, item: StockItem, client_id: str | None, expected: Expected) -> Written:
        """Set a SKU's stock and price if it is as expected, and if that leaves enough for what orders hold."""
        rows = set_stock(
            self._connection,
            for_sku=item.sku,
            for_on_hand=item.on_hand,
            for_price=item.price_minor,
            for_currency=item.currency,
            for_timeout=item.timeout_seconds or None,
            keep_timeout=item.timeout_seconds == KEEP_TIMEOUT,
            for_client=client_id,
            by_key=KEY_ID.get(),
            any_version=expected.versions is None,
            versions=dict.fromkeys(expected.versions or (), 1),
            may_create=expected.exists is not True,
        )
        found = {bool(row.is_after): row for row in rows}
        before, after = (stock_item(found[n]) if n in found else None for n in (False, True))
        return Written(before, after, None if before is None else found[False].refusal)

    def adjust(self, sku: str, *, client_id: str, key: str, delta: int, reason: str) -> Adjustment:
        """Add to what is on hand.

        Raises KeyReused when its key was used before; SkuNotFound, StockReserved and StockTooLarge
        whether or not it was.
        """
        rows = adjust(
            self._connection,
            for_sku=sku,
            for_client=client_id,
            by_key=KEY_ID.get(),
            for_key=key,
            for_delta=delta,
            for_reason=reason,
        )
        if not rows:
            raise SkuNotFound
        [row] = rows
        if row.id is not None:
            return _adjustment(row)
        if row.was_on_hand + delta > MAX_INT:
            raise StockTooLarge(f"It may be {MAX_INT} at most.")
        if row.was_on_hand + delta < row.was_reserved:
            raise StockReserved(f"They hold {row.was_reserved} of {row.was_on_hand}.")
        raise KeyReused

    def repair(self, sku: str) -> Repair | None:
        """Make what is reserved what unpaid orders hold; None if another repair was faster.

        Raises SkuNotFound, StockReserved.
        """
        rows = repairs.repair(self._connection, for_sku=sku)
        if not rows:
            raise SkuNotFound
        [row] = rows
        if row.number is not None:
            return Repair(row.reserved_before, row.reserved)
        if row.held == row.was_reserved:
            return Repair(row.held, row.held)
        if row.held > row.on_hand:
            raise StockReserved(f"They hold {row.held} of {row.on_hand}: correct on_hand first.")
        return None

    def adjustment(self, client_id: str, key: str) -> Adjustment | None:
        """What a key was used for before."""
        row = self._run(GET_ADJUSTMENT, for_client=client_id, for_key=key).one_or_none()
        return None if row is None else _adjustment(row)

    def adjustments(self, sku: str, *, page_size: int, before_id: int | None) -> list[Adjustment]:
        """A SKU's adjustments, newest first."""
        last = LAST if before_id is None else before_id
        rows = self._run(LIST_ADJUSTMENTS, for_sku=sku, before_id=last, page_size=page_size)
        return [_adjustment(row) for row in rows]


def _adjustment(row: sa.Row[Any]) -> Adjustment:
    fields = (row.id, row.sku, row.client, row.delta, row.reason, row.on_hand, row.at)
    return Adjustment(*fields, row.key_id)


def stock_item(row: sa.Row[Any]) -> StockItem:
    fields = (row.sku, row.on_hand, row.reserved, row.price_minor, row.currency, row.retired_at)
    return StockItem(*fields, row.timeout_seconds)
