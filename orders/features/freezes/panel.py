"""The freezes on the operators' page: at its top, because they stop every cancellation."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from orders.db.database import reading
from orders.db.ids import array_of
from orders.errors import StorageUnavailable
from orders.features.freezes.domain import Freeze
from orders.features.freezes.service import MOST_COUNTED, SQL, Freezes
from orders.http.schemas.types import rfc3339
from orders.wiring import Services

Json = dict[str, Any]

#: More are not shown.
MOST_SHOWN = 20
KEY = "key "


def panel(services: Services) -> list[Json] | None:
    """The freezes in force, the one that ends first at the top; None if they are not known."""
    try:
        with reading(services.watching) as connection:
            found = Freezes(connection).in_force(MOST_SHOWN)
            keys = [each.opened_by.removeprefix(KEY) for each in found if _is_key(each)]
            rows = SQL.list_owners(connection, ids=array_of(keys)) if keys else ()
            names = {row.id: row.client for row in rows}
            facts = [_shown(each, names) for each in found]
    except (StorageUnavailable, sa.exc.DBAPIError):
        return None
    counts = zip_longest(facts, _counts(Freezes(services.watching), found))
    return [each | {"orders": count} for each, count in counts]


def _counts(freezes: Freezes, found: list[Freeze]) -> Iterator[int]:
    """How many orders each stops; it ends at the first that takes too long to count."""
    with suppress(StorageUnavailable, sa.exc.DBAPIError):
        for each in found:
            yield freezes.count(each.client, each.deadline)


def _is_key(freeze: Freeze) -> bool:
    return freeze.opened_by.startswith(KEY)


def _shown(freeze: Freeze, names: dict[str, str]) -> Json:
    name = names.get(freeze.opened_by.removeprefix(KEY))
    return {
        "id": freeze.id,
        "scope": freeze.scope,
        "reason": freeze.reason,
        "opened_by": f"{name}, {freeze.opened_by}" if name else freeze.opened_by,
        "opened_at": rfc3339(freeze.opened_at),
        "ends_at": rfc3339(freeze.ends_at),
        "left_ms": max(0, freeze.left_ms),
        "state": freeze.state,
        "most": MOST_COUNTED,
        "given_back": freeze.given_back,
    }
