"""The freezes on the operators' page: at its top, because they stop every cancellation."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

import sqlalchemy as sa

from orders.db.database import reading
from orders.db.ids import array_of
from orders.errors import StorageUnavailable
from orders.features.freezes.domain import Freeze, FreezeState
from orders.features.freezes.service import MOST_COUNTED, SQL, Freezes
from orders.features.parts import Panel, not_known, up_to
from orders.wiring import Services

#: More are not shown.
MOST_SHOWN = 20
KEY = "key "


class ShownFreeze(NamedTuple):
    """A freeze, who opened it, and how many orders it stops, if they could be counted."""

    freeze: Freeze
    opened_by: str
    orders: int | None

    @property
    def counted(self) -> str:
        if self.orders is None:
            return "orders not counted"
        return f"{up_to(self.orders, MOST_COUNTED)} {'order' if self.orders == 1 else 'orders'}"

    @property
    def stops_all(self) -> bool:
        return self.freeze.client is None and self.freeze.state is FreezeState.OPEN


def panel(services: Services) -> Panel:
    """The freezes in force, the one that ends first at the top; shows None if they are not known."""
    try:
        with reading(services.watching) as connection:
            found = Freezes(connection).in_force(MOST_SHOWN)
            keys = [each.opened_by.removeprefix(KEY) for each in found if _is_key(each)]
            rows = SQL.list_owners(connection, ids=array_of(keys)) if keys else ()
            names = {row.id: row.client for row in rows}
    except (StorageUnavailable, sa.exc.DBAPIError):
        return Panel(None, [not_known("whether cancellations are stopped")])
    counts = zip_longest(found, _counts(Freezes(services.watching), found))
    shown = [ShownFreeze(each, _opener(each, names), count) for each, count in counts]
    if any(each.client is None for each in found):
        return Panel(shown, status=("bad", "Stopped"))
    return Panel(shown, status=("warn", "Partly stopped") if found else None)


def _counts(freezes: Freezes, found: list[Freeze]) -> Iterator[int]:
    """How many orders each stops; it ends at the first that takes too long to count."""
    with suppress(StorageUnavailable, sa.exc.DBAPIError):
        for each in found:
            yield freezes.count(each.client, each.deadline)


def _is_key(freeze: Freeze) -> bool:
    return freeze.opened_by.startswith(KEY)


def _opener(freeze: Freeze, names: dict[str, str]) -> str:
    name = names.get(freeze.opened_by.removeprefix(KEY))
    return f"{name}, {freeze.opened_by}" if name else freeze.opened_by
