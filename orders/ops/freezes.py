"""The freezes as the page shows them: at its top, because they stop every cancellation."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from orders.caches import SharedRead
from orders.errors import StorageUnavailable
from orders.freezes.domain import Freeze
from orders.freezes.service import MOST_COUNTED, Freezes
from orders.http.schemas.types import rfc3339
from orders.ops.repository import NAMES_OF_KEYS
from orders.sql.database import reading
from orders.sql.expressions import later, now

Json = dict[str, Any]

#: How long the freezes in force are shared by all who ask this process.
FRESH_SECONDS = 1.0
#: More are not shown.
MOST_SHOWN = 20
KEY = "key "


class ShownFreezes(Freezes):
    """Raises StorageUnavailable from every method while the database does not answer."""

    def __init__(self, engine: sa.Engine, watching: sa.Engine) -> None:
        super().__init__(engine)
        self._watching = watching
        #: The freezes in force, the one that ends first at the top; None if they are not known.
        self.state = SharedRead(self._read_state, FRESH_SECONDS)

    def concerned(self, seconds: int) -> Json:
        """How many orders would be cancelled within so many seconds, or a freeze's time to give back."""
        with reading(self._watching) as connection:
            until = later(now(), sa.literal(1000 * seconds, sa.BigInteger))
            before = connection.execute(sa.select(until)).scalar_one()
            count = Freezes(connection).count(None, before)
        return {"count": count, "most": MOST_COUNTED}

    def _read_state(self) -> list[Json] | None:
        try:
            with reading(self._watching) as connection:
                service = Freezes(connection)
                found = service.in_force(MOST_SHOWN)
                keys = [each.opened_by.removeprefix(KEY) for each in found if _is_key(each)]
                rows = connection.execute(NAMES_OF_KEYS, {"ids": keys}) if keys else ()
                names = {row.id: row.client for row in rows}
                shown = [_shown(each, service, names) for each in found]
        except (StorageUnavailable, sa.exc.DBAPIError):
            return None
        counts = zip_longest(shown, self._counts(found))
        return [facts | {"orders": count} for facts, count in counts]

    def _counts(self, found: list[Freeze]) -> Iterator[int]:
        """How many orders each stops; it ends at the first that takes too long to count."""
        with suppress(StorageUnavailable, sa.exc.DBAPIError):
            for each in found:
                yield Freezes(self._watching).count(each.client, each.deadline)


def _is_key(freeze: Freeze) -> bool:
    return freeze.opened_by.startswith(KEY)


def _shown(freeze: Freeze, service: Freezes, names: dict[str, str]) -> Json:
    name = names.get(freeze.opened_by.removeprefix(KEY))
    return {
        "id": freeze.id,
        "scope": freeze.scope,
        "reason": freeze.reason,
        "opened_by": f"{name}, {freeze.opened_by}" if name else freeze.opened_by,
        "opened_at": rfc3339(freeze.opened_at),
        "ends_at": rfc3339(freeze.ends_at),
        "left_ms": max(0, service.left_ms(freeze.id) or 0),
        "state": freeze.state,
        "most": MOST_COUNTED,
        "given_back": freeze.given_back,
    }
