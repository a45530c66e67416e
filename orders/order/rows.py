"""What is made of the rows of the statements, which are in ``sql/``.

An operation is one statement. It locks existing orders by id, then stock by SKU, and decides by rows that it has
locked: one that was changed since it began is read as it is by then, and compared with the conditions again. One that
was deleted meanwhile is not found, and how the order ended is seen only by the next statement.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from orders.db.files import Room
from orders.db.statements import made_of
from orders.errors import (
    KeyReused,
    MixedCurrencies,
    OrderError,
    OutOfStock,
    TotalTooLarge,
    UnknownSku,
)
from orders.order.domain import (
    EventType,
    Item,
    NewOrder,
    Order,
    OrderEvent,
    OrderStatus,
    Payment,
    PaymentStatus,
)
from orders.stock.domain import MAX_MINOR

SQL = Room("orders.order")
PAYMENT = made_of(Payment, status=PaymentStatus)
ORDER = made_of(
    Order, status=OrderStatus, items=lambda items: tuple(Item(**each) for each in items)
)
EVENT = made_of(OrderEvent, type=EventType)


def is_same(new: NewOrder, fingerprint: str, placed: Order) -> bool:
    """Whether an order was placed by the same request. If another version made the fingerprint, or if it was erased,
    the items decide.
    """
    if new.fingerprint.rpartition(":")[0] == fingerprint.rpartition(":")[0]:
        return new.fingerprint == fingerprint
    return dict(new.quantities) == {item.sku: item.quantity for item in placed.items}


def placed_order(new: NewOrder, rows: Sequence[sa.Row[Any]]) -> Order:
    """What ``place.sql`` placed. Raises KeyReused, UnknownSku, OutOfStock, MixedCurrencies, TotalTooLarge."""
    if not rows or rows[0].id is None:
        raise _refusal(new.quantities, rows)
    placed, prices = rows[0], {row.sku: row.price_minor for row in rows}
    return Order(
        id=placed.id,
        status=OrderStatus.UNPAID if placed.total else OrderStatus.PAID,
        currency=placed.currency,
        total_minor=int(placed.total),
        items=tuple(Item(sku, n, prices[sku]) for sku, n in sorted(new.quantities.items())),
        created_at=placed.created_at,
        expires_at=placed.expires_at,
        paid_at=None if placed.total else placed.created_at,
        client=placed.client,
        client_reference=new.client_reference,
        metadata=new.metadata,
    )


def _refusal(quantities: Mapping[str, int], rows: Sequence[sa.Row[Any]]) -> OrderError:
    """Why nothing was placed, with the first SKU that cannot be had."""
    lines = {row.sku: row for row in rows}
    for sku in sorted(quantities):
        if sku not in lines:
            return UnknownSku(sku, sku=sku)
        if (spare := lines[sku].spare) < 0:
            return OutOfStock(sku, sku=sku, available=spare + quantities[sku])
    if rows[0].refusal == "mixed_currencies":
        return MixedCurrencies(f"These have {', '.join(sorted({row.currency for row in rows}))}.")
    if rows[0].refusal == "total_too_large":
        return TotalTooLarge(f"It may be {MAX_MINOR} at most.")
    return KeyReused()
