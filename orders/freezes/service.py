"""What can be done with freezes. While one holds, no order in its scope is cancelled by timeout.

    freezes = Freezes(engine)
    freeze, _ = freezes.open(Scope(sku="tea"), reason="no card terminal", by="door", seconds=600)
    freezes.thaw(freeze.id, by="door")

The statement that cancels reads them (see `orders.order.waiting`), so a freeze holds from its commit
on, whatever becomes of Redis and the workers. When it has ended, a flow gives the time back (see
`orders.thaws`).
"""

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from orders.errors import FreezeEnded, FreezeNotFound, FreezeOutOfRange, KeyReused
from orders.freezes.domain import GIVE_BACK_SECONDS, MAX_SECONDS, Freeze, Scope
from orders.freezes.repository import FreezeRepository
from orders.sql.errors import retried
from orders.sql.ids import new_id
from orders.sql.statements import Position
from orders.sql.transactions import Transactional

log = structlog.get_logger("orders")

EVERYTHING = Scope()
#: Orders beyond this number are not counted.
MOST_COUNTED = 10_000
#: Freezes that hold at a time, of which more are not shown.
MOST_HOLDING = 100


class Opened(NamedTuple):
    """A freeze, and whether an earlier call opened it."""

    freeze: Freeze
    replayed: bool


class Freezes(Transactional[FreezeRepository]):
    """Raises StorageUnavailable from every method while the database does not answer."""

    _repository = FreezeRepository

    @retried
    def open(
        self,
        scope: Scope = EVERYTHING,
        *,
        reason: str,
        by: str,
        seconds: float,
        give_back_seconds: int = GIVE_BACK_SECONDS,
        made_id: str | None = None,
    ) -> Opened:
        """Freeze orders for some time, up to a day; once for each id, if one is given.

        ``by`` says who opens it. Orders that would expire before ``give_back_seconds`` after its end
        expire then. Raises FreezeOutOfRange, ClientNotFound, SkuNotFound, KeyReused.
        """
        if not 0 <= give_back_seconds <= MAX_SECONDS:
            raise FreezeOutOfRange("Up to a day can be given back.")
        ms, give_back_ms = _ms(seconds), 1000 * give_back_seconds
        freeze_id = made_id or new_id()
        with self._autocommit() as repository:
            is_new = repository.open(
                freeze_id, scope, reason=reason, by=by, ms=ms, give_back_ms=give_back_ms
            )
            freeze = repository.get(freeze_id)
        if freeze is None:
            raise FreezeNotFound
        same = (freeze.scope, freeze.reason, freeze.asked_ms, freeze.give_back_seconds)
        if not is_new and same != (scope, reason, ms, give_back_seconds):
            raise KeyReused
        if is_new:
            log.warning("freeze opened", **_facts(freeze), seconds=seconds)
        return Opened(freeze, not is_new)

    @retried
    def prolong(self, freeze_id: str, *, by: str, seconds: float) -> Freeze:
        """Have an open freeze end so many seconds from now, later or earlier, up to a day.

        Raises FreezeOutOfRange, FreezeNotFound, FreezeEnded.
        """
        with self._autocommit() as repository:
            prolonged = repository.prolong(freeze_id, _ms(seconds))
            freeze = repository.get(freeze_id)
        if freeze is None:
            raise FreezeNotFound
        if not prolonged:
            raise FreezeEnded
        log.warning("freeze prolonged", **_facts(freeze), by=by, seconds=seconds)
        return freeze

    @retried
    def thaw(self, freeze_id: str, *, by: str) -> Freeze:
        """End a freeze now. One that has ended stays as it is. Raises FreezeNotFound."""
        with self._autocommit() as repository:
            thawed = repository.thaw(freeze_id, by)
            freeze = repository.get(freeze_id)
        if freeze is None:
            raise FreezeNotFound
        if thawed:
            log.warning("freeze thawed", **_facts(freeze), by=by)
        return freeze

    def get(self, freeze_id: str) -> Freeze:
        """Raises FreezeNotFound."""
        with self._reading() as repository:
            freeze = repository.get(freeze_id)
        if freeze is None:
            raise FreezeNotFound
        return freeze

    def holding(self) -> list[Freeze]:
        """The freezes that hold orders: open and thawing ones, the one that ends first at the top."""
        with self._reading() as repository:
            return repository.holding(MOST_HOLDING)

    def page(self, *, page_size: int, after: Position | None = None) -> list[Freeze]:
        """All freezes, the latest first; ``after`` is when the last one before was opened, and its id."""
        with self._reading() as repository:
            return repository.page(page_size=page_size, after=after)

    def count(self, scope: Scope, before: datetime, most: int = MOST_COUNTED) -> int:
        """How many unpaid orders in a scope expire before a moment, such as a freeze's `deadline`.

        Counts ``most`` at most.
        """
        with self._reading() as repository:
            return repository.count(scope, before, most)

    def left_ms(self, connection: sa.Connection, freeze_id: str) -> int | None:
        """In how many milliseconds a freeze ends; None if it no longer holds."""
        return self._opened(connection).left_ms(freeze_id)


def _ms(seconds: float) -> int:
    """Raises FreezeOutOfRange."""
    if not 0 < seconds <= MAX_SECONDS:
        raise FreezeOutOfRange
    return round(1000 * seconds)


def _facts(freeze: Freeze) -> dict[str, str]:
    """What the log says of a freeze."""
    facts = {"freeze": freeze.id, "scope": str(freeze.scope), "reason": freeze.reason}
    return {**facts, "opened_by": freeze.opened_by}
