"""What can be done with freezes. While one is in force, no order, or none of one client, is cancelled by timeout.

    freezes = Freezes(engine)
    freeze, _ = freezes.open("a client", reason="no card terminal", by="a key", seconds=600)
    freezes.thaw(freeze.id, by="a key")

The statement that cancels reads them (see `orders.order.sparing`), so a freeze is in force from its commit
on, whatever becomes of Redis and the workers. When it has ended, a flow gives the time back (see
`orders.freezes.flow`).
"""

from datetime import datetime
from typing import NamedTuple

from orders.errors import (
    ClientNotFound,
    FreezeEnded,
    FreezeNotFound,
    FreezeOutOfRange,
    KeyReused,
)
from orders.freezes import repository
from orders.freezes.domain import GIVE_BACK_SECONDS, MAX_SECONDS, Freeze
from orders.log import log
from orders.sql.errors import retried
from orders.sql.ids import new_id
from orders.sql.statements import LAST, Position
from orders.sql.transactions import Service

#: Orders beyond this number are not counted.
MOST_COUNTED = 10_000
#: Freezes in force at a time, of which more are not shown.
MOST_IN_FORCE = 100


class Opened(NamedTuple):
    """A freeze, and whether an earlier call opened it."""

    freeze: Freeze
    replayed: bool


class Freezes(Service):
    @retried
    def open(
        self,
        client: str | None = None,
        *,
        reason: str,
        by: str,
        seconds: float,
        give_back_seconds: int = GIVE_BACK_SECONDS,
        made_id: str | None = None,
    ) -> Opened:
        """Freeze all orders, or one client's, for some time, up to a day; once for each id, if one is given.

        ``by`` says who opens it. Orders that would expire before ``give_back_seconds`` after its end
        expire then. Raises FreezeOutOfRange, ClientNotFound, KeyReused.
        """
        if not 0 <= give_back_seconds <= MAX_SECONDS:
            raise FreezeOutOfRange("Up to a day can be given back.")
        ms = _ms(seconds)
        freeze_id, give_back_ms = made_id or new_id(), 1000 * give_back_seconds
        times = {"for_ms": ms, "for_give_back_ms": give_back_ms}
        row = {"for_client": client, "for_id": freeze_id, "for_reason": reason, "for_whom": by}
        with self._autocommit() as sql:
            is_new = sql.run(repository.OPEN, **row, **times).one_or_none() is not None
            if not is_new and not sql.run(repository.IS_CLIENT, for_client=client).scalar_one():
                raise ClientNotFound
            freeze = sql.one(repository.FREEZE, repository.GET_FREEZE, for_id=freeze_id)
        if freeze is None:
            raise FreezeNotFound
        same = (freeze.client, freeze.reason, freeze.asked_ms, freeze.give_back_seconds)
        if not is_new and same != (client, reason, ms, give_back_seconds):
            raise KeyReused
        if is_new:
            log.warning("freeze opened", **_facts(freeze), seconds=seconds)
        return Opened(freeze, not is_new)

    @retried
    def prolong(self, freeze_id: str, *, by: str, seconds: float) -> Freeze:
        """Have an open freeze end so many seconds from now, later or earlier, up to a day.

        Raises FreezeOutOfRange, FreezeNotFound, FreezeEnded.
        """
        with self._autocommit() as sql:
            prolonged = sql.run(repository.PROLONG, for_id=freeze_id, for_ms=_ms(seconds)).rowcount
        freeze = self.get(freeze_id)
        if not prolonged:
            raise FreezeEnded
        log.warning("freeze prolonged", **_facts(freeze), by=by, seconds=seconds)
        return freeze

    @retried
    def thaw(self, freeze_id: str, *, by: str) -> Freeze:
        """End a freeze now. One that has ended stays as it is. Raises FreezeNotFound."""
        with self._autocommit() as sql:
            thawed = sql.run(repository.THAW, for_id=freeze_id, for_whom=by).rowcount
        freeze = self.get(freeze_id)
        if thawed:
            log.warning("freeze thawed", **_facts(freeze), by=by)
        return freeze

    def get(self, freeze_id: str) -> Freeze:
        """Raises FreezeNotFound."""
        return self._one(repository.FREEZE, FreezeNotFound, repository.GET_FREEZE, for_id=freeze_id)

    def in_force(self, most: int = MOST_IN_FORCE) -> list[Freeze]:
        """The freezes in force: open and thawing ones, the one that ends first at the top."""
        return self._all(repository.FREEZE, repository.LIST_IN_FORCE, most=most)

    def open_ones(self, by: str) -> list[str]:
        """The open freezes that were opened by ``by``, such as a rule."""
        found = self._all(repository.FREEZE, repository.LIST_OPEN, for_whom=by)
        return [each.id for each in found]

    def thaw_all(self, by: str) -> None:
        """End the open freezes of a rule."""
        for freeze_id in self.open_ones(by):
            self.thaw(freeze_id, by=by)

    def page(self, *, page_size: int, after: Position | None = None) -> list[Freeze]:
        """All freezes, the latest first; ``after`` is when the last one before was opened, and its id."""
        return self._page(repository.FREEZE, repository.LIST_FREEZES, page_size, after or LAST)

    def count(self, client: str | None, before: datetime, most: int = MOST_COUNTED) -> int:
        """How many unpaid orders of a client, or of all, expire before a moment, such as a freeze's
        `deadline`. Counts ``most`` at most.
        """
        values = {"for_client": client, "before": before, "most": most}
        return int(self._value(repository.COUNT_CONCERNED, **values))

    def left_ms(self, freeze_id: str) -> int | None:
        """In how many milliseconds a freeze ends; None if it is no longer in force."""
        left: int | None = self._value(repository.GET_LEFT_MS, for_id=freeze_id)
        return left


def _ms(seconds: float) -> int:
    """Raises FreezeOutOfRange."""
    if not 0 < seconds <= MAX_SECONDS:
        raise FreezeOutOfRange
    return round(1000 * seconds)


def _facts(freeze: Freeze) -> dict[str, str]:
    """What the log says of a freeze."""
    facts = {"freeze": freeze.id, "scope": freeze.scope, "reason": freeze.reason}
    return {**facts, "opened_by": freeze.opened_by}
