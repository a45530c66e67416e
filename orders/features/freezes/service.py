"""What can be done with freezes. While one is in force, no order, or none of one client, is cancelled by timeout.

    freezes = Freezes(engine)
    freeze, _ = freezes.open("a client", reason="no card terminal", by="a key", seconds=600)
    freezes.thaw(freeze.id, by="a key")

The statement that cancels reads ``stops``, where a freeze has a row from its commit on, whatever becomes of Redis
and the workers. When it has ended, a flow gives the time back and deletes that row (see `orders.features.freezes.flow`).
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.db.errors import retried
from orders.db.files import Room
from orders.db.ids import new_id
from orders.db.statements import LAST, Position, Service, made_of, one
from orders.errors import ClientNotFound, KeyReused
from orders.features.freezes.domain import (
    FREEZE_QUEUE,
    GIVE_BACK_SECONDS,
    MAX_SECONDS,
    Freeze,
    FreezeState,
)
from orders.features.freezes.errors import FreezeEnded, FreezeNotFound, FreezeOutOfRange
from orders.features.parts import Cause
from orders.log import log

SQL = Room("orders.features.freezes")
FREEZE = made_of(Freeze)
#: Orders beyond this number are not counted.
MOST_COUNTED = 10_000


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
        freeze_id = made_id or new_id()
        with self._autocommit() as sql:
            opened = SQL.open(
                sql,
                id=freeze_id,
                client=client,
                reason=reason,
                opened_by=by,
                ms=ms,
                give_back_seconds=give_back_seconds,
            )
            freeze = one(FREEZE, SQL.get(sql, id=freeze_id))
        if freeze is None:
            raise ClientNotFound
        is_new = bool(opened.rowcount)
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
            prolonged = SQL.move_end(sql, id=freeze_id, ms=_ms(seconds), thawed_by=None)
        freeze = self.get(freeze_id)
        if not prolonged.rowcount:
            raise FreezeEnded
        log.warning("freeze prolonged", **_facts(freeze), by=by, seconds=seconds)
        return freeze

    @retried
    def thaw(self, freeze_id: str, *, by: str) -> Freeze:
        """End a freeze now. One that has ended stays as it is. Raises FreezeNotFound."""
        with self._autocommit() as sql:
            thawed = SQL.move_end(sql, id=freeze_id, ms=0, thawed_by=by)
        freeze = self.get(freeze_id)
        if thawed.rowcount:
            log.warning("freeze thawed", **_facts(freeze), by=by)
        return freeze

    def get(self, freeze_id: str) -> Freeze:
        """Raises FreezeNotFound."""
        return self._one(FREEZE, FreezeNotFound, SQL.get, id=freeze_id)

    def in_force(self, most: int | None = None) -> list[Freeze]:
        """The freezes in force: open and thawing ones, the one that ends first at the top."""
        return self._all(FREEZE, SQL.list_in_force, most=most)

    def page(self, *, page_size: int, after: Position | None = None) -> list[Freeze]:
        """All freezes, the latest first; ``after`` is when the last one before was opened, and its id."""
        return self._page(FREEZE, SQL.list_latest, page_size, after or LAST)

    def count(self, client: str | None, before: datetime, most: int = MOST_COUNTED) -> int:
        """How many unpaid orders of a client, or of all, expire before a moment, such as a freeze's
        `deadline`. Counts ``most`` at most.
        """
        return int(self._value(SQL.count_concerned, client=client, before=before, most=most))


def _ms(seconds: float) -> int:
    """Raises FreezeOutOfRange."""
    if not 0 < seconds <= MAX_SECONDS:
        raise FreezeOutOfRange
    return round(1000 * seconds)


def _facts(freeze: Freeze) -> dict[str, str]:
    """What the log says of a freeze."""
    facts = {"freeze": freeze.id, "scope": freeze.scope, "reason": freeze.reason}
    return {**facts, "opened_by": freeze.opened_by}


def causes(connection: sa.Connection, order: sa.Row[Any]) -> Iterator[Cause]:
    """The freezes that stop an order: see `orders.feature`.

    One that ends before the deadline does not matter, unless the order is overdue: then it waits until the freeze has
    given back.
    """
    for each in Freezes(connection).in_force():
        if each.client in (None, order.client) and (
            each.deadline > order.expires_at or order.ms <= 0
        ):
            said = f"stopped by freeze {each.id} of {each}"
            if each.state is FreezeState.OPEN:
                yield Cause(said)
            else:
                yield Cause(
                    f"{said} (giving back time)", FREEZE_QUEUE, "giving back time", [each.id]
                )
