"""What can be done with stock: one method, one transaction."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa

from orders.errors import (
    KeyReused,
    OrderError,
    PreconditionFailed,
    PreconditionRequired,
    SkuNotFound,
    StockReserved,
)
from orders.sql.errors import retried
from orders.sql.transactions import Transactional
from orders.stock.domain import ANYTHING, KEEP_TIMEOUT, Adjustment, Expected, Repair, StockItem
from orders.stock.repository import StockRepository


class Adjusted(NamedTuple):
    """An adjustment, and whether it was made before."""

    adjustment: Adjustment
    replayed: bool


class SetStock(NamedTuple):
    """A SKU as it was set, and whether it is new."""

    item: StockItem
    created: bool


class StockService(Transactional[StockRepository]):
    """What is in stock, and what changed it.

    Orders hold and sell stock by operations of their own: see `orders.order.operations`.

    Raises StorageUnavailable from every method while the database does not answer.
    """

    _repository = StockRepository

    def __init__(
        self, engine: sa.Engine, check_timeout: Callable[[float], object] = lambda _: None
    ) -> None:
        """``check_timeout`` raises TimeoutOutOfRange for one that no order may have."""
        super().__init__(engine)
        self._check_timeout = check_timeout

    def get(self, sku: str) -> StockItem:
        """Raises SkuNotFound."""
        with self._reading() as repository:
            item = repository.item(sku)
        if item is None:
            raise SkuNotFound
        return item

    def retire(self, sku: str) -> None:
        """Sell no more of a SKU, until it is set again. What orders hold stays theirs.

        Raises SkuNotFound.
        """
        with self._autocommit() as repository:
            repository.retire(sku)
        self.get(sku)

    def items(self, *, page_size: int, after: str | None = None) -> list[StockItem]:
        """SKUs in byte order, those that follow ``after``."""
        with self._reading() as repository:
            return repository.items(page_size=page_size, after=after)

    @retried
    def set(
        self,
        sku: str,
        *,
        on_hand: int,
        price_minor: int,
        currency: str,
        timeout_seconds: int | None = KEEP_TIMEOUT,
        client_id: str | None = None,
        expected: Expected = ANYTHING,
    ) -> SetStock:
        """Set a SKU's stock, price and timeout, if it is as expected.

        Setting exactly what is there needs no version, so that repeating a request is harmless.
        Raises PreconditionRequired, PreconditionFailed, StockReserved, TimeoutOutOfRange.
        """
        if timeout_seconds:
            self._check_timeout(timeout_seconds)
        item = StockItem(sku, on_hand, 0, price_minor, currency, timeout_seconds=timeout_seconds)
        with self._autocommit() as repository:
            for _ in range(2):
                written = repository.set(item, client_id, expected)
                # Neither: another request created the SKU while the statement ran. So the second
                # try finds it.
                if written.before or written.after or expected.exists:
                    break
        before, after, refusal = written
        if after is not None:
            return SetStock(after, created=before is None)
        if refusal == "reserved" and before is not None:
            raise StockReserved(f"They hold {before.reserved} of {before.on_hand}.")
        if before is None or expected.exists is not None:
            raise PreconditionFailed
        if timeout_seconds == KEEP_TIMEOUT:
            item = replace(item, timeout_seconds=before.timeout_seconds)
        if before.version != item.version:
            raise PreconditionRequired(
                f"To add or remove some, POST to /v1/stock/{sku}/adjustments."
            )
        return SetStock(before, created=False)

    @retried
    def adjust(self, sku: str, *, client_id: str, key: str, delta: int, reason: str) -> Adjusted:
        """Add to what is on hand of a SKU, or remove from it, once for each idempotency key.

        Raises SkuNotFound, StockReserved, StockTooLarge, KeyReused.
        """
        with self._autocommit() as repository:
            try:
                adjustment = repository.adjust(
                    sku, client_id=client_id, key=key, delta=delta, reason=reason
                )
            except OrderError:
                # Whatever the reason, a known key gets its original response.
                known = repository.adjustment(client_id, key)
                if known is None:
                    raise
                if (known.sku, known.delta, known.reason) != (sku, delta, reason):
                    raise KeyReused from None
                return Adjusted(known, replayed=True)
        return Adjusted(adjustment, replayed=False)

    def repair(self, sku: str) -> Repair:
        """Make what is reserved of a SKU what unpaid orders hold, whatever is sold meanwhile.

        Raises SkuNotFound, StockReserved.
        """
        with self._autocommit() as repository:
            while (repair := repository.repair(sku)) is None:
                pass  # another repair was faster: it may have done all
        return repair

    def adjustments(
        self, sku: str, *, page_size: int, before_id: int | None = None
    ) -> list[Adjustment]:
        """Changes of a SKU's stock on hand that orders did not make, newest first.

        Raises SkuNotFound.
        """
        with self._reading() as repository:
            if repository.item(sku) is None:
                raise SkuNotFound
            return repository.adjustments(sku, page_size=page_size, before_id=before_id)
