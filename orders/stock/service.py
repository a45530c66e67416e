"""What can be done with stock: one method, one transaction."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.db.acting import KEY_ID
from orders.db.database import Bind
from orders.db.errors import retried
from orders.db.files import Room
from orders.db.statements import Service, made_of, one
from orders.errors import (
    KeyReused,
    OrderError,
    PreconditionFailed,
    PreconditionRequired,
    SkuNotFound,
    StockReserved,
    StockTooLarge,
)
from orders.stock.domain import ANYTHING, KEEP_TIMEOUT, MAX_INT, Adjustment, Expected, StockItem

SQL = Room("orders.stock")
ITEM, ADJUSTMENT = made_of(StockItem), made_of(Adjustment)
#: After any adjustment.
LAST = 2**63 - 1


class Adjusted(NamedTuple):
    """An adjustment, and whether it was made before."""

    adjustment: Adjustment
    replayed: bool


class SetStock(NamedTuple):
    """A SKU as it was set, and whether it is new."""

    item: StockItem
    created: bool


class StockService(Service):
    """What is in stock, and what changed it.

    Orders reserve and sell stock by statements of their own, in ``orders/order/sql/``.
    """

    def __init__(
        self, bind: Bind, check_timeout: Callable[[float], object] = lambda _: None
    ) -> None:
        """``check_timeout`` raises TimeoutOutOfRange for one that no order may have."""
        super().__init__(bind)
        self._check_timeout = check_timeout

    def get(self, sku: str) -> StockItem:
        """Raises SkuNotFound."""
        return self._one(ITEM, SkuNotFound, SQL.get, sku=sku)

    def retire(self, sku: str) -> None:
        """Sell no more of a SKU, until it is set again. What orders reserve stays theirs.

        Raises SkuNotFound.
        """
        with self._autocommit() as sql:
            SQL.retire(sql, sku=sku)
        self.get(sku)

    def items(self, *, page_size: int, after: str | None = None) -> list[StockItem]:
        """SKUs in byte order, those that follow ``after``."""
        return self._all(ITEM, SQL.list, after=after or "", page_size=page_size)

    @retried
    def set(
        self,
        sku: str,
        *,
        on_hand: int | None = None,
        price_minor: int | None = None,
        currency: str | None = None,
        timeout_seconds: int | None = KEEP_TIMEOUT,
        client_id: str | None = None,
        expected: Expected = ANYTHING,
    ) -> SetStock:
        """Set a SKU's stock and price, its timeout, or all of them, if it is as expected.

        Setting exactly what is there needs no version, so that repeating a request is harmless.
        Raises PreconditionRequired, PreconditionFailed, StockReserved, TimeoutOutOfRange; and SkuNotFound
        without stock and price, which a new SKU needs.
        """
        if timeout_seconds:
            self._check_timeout(timeout_seconds)
        with self._autocommit() as sql:
            for _ in range(2):
                found = SQL.set(
                    sql,
                    sku=sku,
                    on_hand=on_hand,
                    price_minor=price_minor,
                    currency=currency,
                    timeout_seconds=timeout_seconds,
                    versions=expected.versions,
                    may_repeat=expected.exists is None,
                    may_create=expected.exists is not True and on_hand is not None,
                    client_id=client_id,
                    key_id=KEY_ID.get(),
                )
                rows = {row.is_after: row for row in found}
                # None: another request created the SKU while the statement ran. So the second try
                # finds it.
                if rows or expected.exists:
                    break
        if True in rows:
            return SetStock(ITEM(rows[True]), created=False not in rows)
        if False not in rows:
            raise SkuNotFound if on_hand is None else PreconditionFailed
        before = rows[False]
        if before.refusal == "reserved":
            raise StockReserved(f"They reserve {before.reserved} of {before.on_hand}.")
        if expected.exists is not None:
            raise PreconditionFailed
        raise PreconditionRequired(f"To add or remove some, POST to /v1/stock/{sku}/adjustments.")

    @retried
    def adjust(self, sku: str, *, client_id: str, key: str, delta: int, reason: str) -> Adjusted:
        """Add to what is on hand of a SKU, or remove from it, once for each idempotency key.

        Raises SkuNotFound, StockReserved, StockTooLarge, KeyReused.
        """
        own = {"client_id": client_id, "key": key}
        values = {"sku": sku, "key_id": KEY_ID.get(), "delta": delta, "reason": reason}
        with self._autocommit() as sql:
            rows = SQL.adjust(sql, **own, **values).all()
            if rows and rows[0].id is not None:
                return Adjusted(ADJUSTMENT(rows[0]), replayed=False)
            # Whatever the reason, a known key gets its original response.
            known = one(ADJUSTMENT, SQL.get_adjustment(sql, **own))
        if known is None:
            raise _not_adjusted(rows, delta)
        if (known.sku, known.delta, known.reason) != (sku, delta, reason):
            raise KeyReused
        return Adjusted(known, replayed=True)

    def adjustments(
        self, sku: str, *, page_size: int, before_id: int | None = None
    ) -> list[Adjustment]:
        """Changes of a SKU's stock on hand that orders did not make, newest first.

        Raises SkuNotFound.
        """
        self.get(sku)
        last = LAST if before_id is None else before_id
        return self._all(
            ADJUSTMENT, SQL.list_adjustments, sku=sku, before_id=last, page_size=page_size
        )


def _not_adjusted(rows: Sequence[sa.Row[Any]], delta: int) -> OrderError:
    """Why nothing was added to what is on hand, although the key is new."""
    if not rows:
        return SkuNotFound()
    on_hand, reserved = rows[0].was_on_hand, rows[0].was_reserved
    if on_hand + delta > MAX_INT:
        return StockTooLarge(f"It may be {MAX_INT} at most.")
    if on_hand + delta < reserved:
        return StockReserved(f"They reserve {reserved} of {on_hand}.")
    return KeyReused()
