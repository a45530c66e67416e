"""What can be done with stock: one method, one transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.errors import (
    KeyReused,
    OrderError,
    PreconditionFailed,
    PreconditionRequired,
    SkuNotFound,
    StockReserved,
    StockTooLarge,
)
from orders.sql.acting import KEY_ID
from orders.sql.database import Bind
from orders.sql.errors import retried
from orders.sql.transactions import Service
from orders.stock import repository
from orders.stock.domain import (
    ANYTHING,
    KEEP_TIMEOUT,
    MAX_INT,
    Adjustment,
    Expected,
    StockItem,
)

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

    Orders reserve and sell stock by operations of their own: see `orders.order.operations`.
    """

    def __init__(
        self, bind: Bind, check_timeout: Callable[[float], object] = lambda _: None
    ) -> None:
        """``check_timeout`` raises TimeoutOutOfRange for one that no order may have."""
        super().__init__(bind)
        self._check_timeout = check_timeout

    def get(self, sku: str) -> StockItem:
        """Raises SkuNotFound."""
        return self._one(repository.ITEM, SkuNotFound, repository.GET_STOCK, for_sku=sku)

    def retire(self, sku: str) -> None:
        """Sell no more of a SKU, until it is set again. What orders reserve stays theirs.

        Raises SkuNotFound.
        """
        with self._autocommit() as sql:
            sql.run(repository.RETIRE_STOCK, for_sku=sku)
        self.get(sku)

    def items(self, *, page_size: int, after: str | None = None) -> list[StockItem]:
        """SKUs in byte order, those that follow ``after``."""
        values = {"last_sku": after or "", "page_size": page_size}
        return self._all(repository.ITEM, repository.LIST_STOCK, **values)

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
        values = {
            "for_sku": sku,
            "for_on_hand": on_hand,
            "for_price": price_minor,
            "for_currency": currency,
            "for_timeout": timeout_seconds or None,
            "keep_timeout": timeout_seconds == KEEP_TIMEOUT,
            "for_client": client_id,
            "by_key": KEY_ID.get(),
            "any_version": expected.versions is None,
            "versions": dict.fromkeys(expected.versions or (), 1),
            "may_create": expected.exists is not True and on_hand is not None,
        }
        with self._autocommit() as sql:
            for _ in range(2):
                rows = {bool(row.is_after): row for row in sql.do(repository.set_stock, **values)}
                # None: another request created the SKU while the statement ran. So the second try
                # finds it.
                if rows or expected.exists:
                    break
        before = repository.ITEM(rows[False]) if False in rows else None
        if True in rows:
            return SetStock(repository.ITEM(rows[True]), created=before is None)
        if before is None:
            raise SkuNotFound if on_hand is None else PreconditionFailed
        if rows[False].refusal == "reserved":
            raise StockReserved(f"They reserve {before.reserved} of {before.on_hand}.")
        if expected.exists is not None:
            raise PreconditionFailed
        given = {"on_hand": on_hand, "price_minor": price_minor, "currency": currency}
        if before.version != _as_set(before, timeout_seconds, given).version:
            raise PreconditionRequired(
                f"To add or remove some, POST to /v1/stock/{sku}/adjustments."
            )
        return SetStock(before, created=False)

    @retried
    def adjust(self, sku: str, *, client_id: str, key: str, delta: int, reason: str) -> Adjusted:
        """Add to what is on hand of a SKU, or remove from it, once for each idempotency key.

        Raises SkuNotFound, StockReserved, StockTooLarge, KeyReused.
        """
        key_of = {"for_client": client_id, "for_key": key}
        values = {"for_sku": sku, "by_key": KEY_ID.get(), "for_delta": delta, "for_reason": reason}
        with self._autocommit() as sql:
            rows = sql.do(repository.adjust, **key_of, **values)
            if rows and rows[0].id is not None:
                return Adjusted(repository.ADJUSTMENT(rows[0]), replayed=False)
            # Whatever the reason, a known key gets its original response.
            known = sql.one(repository.ADJUSTMENT, repository.GET_ADJUSTMENT, **key_of)
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
        values = {"for_sku": sku, "before_id": last, "page_size": page_size}
        return self._all(repository.ADJUSTMENT, repository.LIST_ADJUSTMENTS, **values)


def _as_set(item: StockItem, timeout_seconds: int | None, given: Mapping[str, Any]) -> StockItem:
    """What a SKU is once it is set."""
    changes = {name: value for name, value in given.items() if value is not None}
    if changes:
        changes["retired_at"] = None
    if timeout_seconds != KEEP_TIMEOUT:
        changes["timeout_seconds"] = timeout_seconds
    return replace(item, **changes)


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
