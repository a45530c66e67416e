"""Giving back the time that a freeze took, a batch of orders to a statement."""

from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa

from orders.features.freezes.service import SQL
from orders.hooks import CheckScheduler, Hooks
from orders.order.domain import EventType, Timeouts

#: How many deadlines one statement moves.
BATCH_SIZE = 500


class GivenBack(NamedTuple):
    """What one statement did."""

    #: By order, in how many milliseconds it expires.
    extended: dict[str, float]
    #: Whether it ended the freeze.
    is_over: bool
    #: In how many milliseconds the freeze ends, 0 or less if it has; None if it is no longer in force.
    left_ms: float | None


@dataclass(frozen=True, slots=True)
class GivingBack:
    scheduler: CheckScheduler
    timeouts: Timeouts
    hooks: Hooks = field(default_factory=Hooks)

    def batch(self, connection: sa.Connection, freeze_id: str) -> GivenBack:
        """Give some orders their time back, in one statement, on a connection that commits it by itself.

        Repeat it until nothing is extended. Interrupting it loses nothing.
        """
        values = {"id": freeze_id, "most": BATCH_SIZE, "kept_ms": self.timeouts.kept_ms}
        rows = SQL.give_back(connection, **values).all()
        moved = [row for row in rows if row.kind == "extended"]
        extended = {row.id: row.ms for row in moved}
        for order_id, ms in extended.items():
            self.scheduler.schedule(order_id, delay_ms=ms)
        self.hooks.tell({row.client_id for row in moved}, connection)
        self.hooks.observe(EventType.EXTENDED, "", len(extended))
        freeze = {row.kind: row.ms for row in rows}
        return GivenBack(extended, "over" in freeze, freeze.get("left"))
