"""The flow that gives back the time which a freeze took."""

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from orders.db.tables import queue_pauses
from orders.features.freezes.domain import FREEZE_QUEUE
from orders.features.freezes.service import SQL, Freezes
from orders.features.freezes.tables import freezes
from orders.log import log
from orders.order.domain import EventType
from orders.wiring import Services
from worker import DelayQueue, Flow, NoOp, Outcome, Retry, Task
from worker.records import Records

#: More freezes are not named.
MOST_NAMED = 3
#: How many deadlines one statement moves.
BATCH_SIZE = 500


def thaw_flow(services: Services) -> Flow:
    """Give back time after each freeze, a batch of orders at a time."""
    settings = services.settings

    def decide(
        connection: sa.Connection, tasks: Mapping[str, Task]
    ) -> Mapping[str, float | Outcome]:
        until = time.monotonic() + settings.statement_timeout_seconds / 2
        left = {id_: _give_all_back(services, connection, id_, until) for id_ in tasks}
        return {id_: when for id_, when in left.items() if when is not None}

    return Records(
        services.engine,
        id=freezes.c.id,
        due=freezes.c.ends_at,
        pending=freezes.c.given_back_at.is_(None),
        decide=decide,
        queue=DelayQueue(services.redis, FREEZE_QUEUE),
        # A call may begin its last statement at half of a statement's time.
        timeout_seconds=2 * settings.statement_timeout_seconds,
        pauses=queue_pauses,
    ).flow(probe=services.check_ready, threads=1, batch_size=1, **settings.of_each_flow)


def frozen(services: Services) -> str:
    """What stops orders at the moment, in a sentence. Raises StorageUnavailable."""
    found = "; ".join(map(str, services[Freezes].in_force(MOST_NAMED)))
    return f"frozen: {found}" if found else ""


def give_back(
    services: Services, connection: sa.Connection, freeze_id: str
) -> tuple[dict[str, float], sa.Row[Any] | None]:
    """Give some orders their time back, in one statement, on a connection that commits it by itself.

    Repeat it until it extends none; interrupting it loses nothing. Returns in how many milliseconds each of them
    expires, and the freeze's row, None if it is no longer in force.
    """
    values = {"id": freeze_id, "most": BATCH_SIZE, "kept_ms": services.timeouts.kept_ms}
    rows = SQL.give_back(connection, **values).all()
    moved = [row for row in rows if row.kind == "extended"]
    for row in moved:
        services.scheduler.schedule(row.id, delay_ms=row.ms)
    services.hooks.tell({row.client_id for row in moved}, connection)
    services.hooks.observe(EventType.EXTENDED, "", len(moved))
    freeze = next((row for row in rows if row.kind != "extended"), None)
    return {row.id: row.ms for row in moved}, freeze


def _give_all_back(
    services: Services, connection: sa.Connection, freeze_id: str, until: float
) -> float | Outcome | None:
    """Give back as much as can be until then, on the monotonic clock; return when to look again."""
    while True:
        extended, freeze = give_back(services, connection, freeze_id)
        if not extended:
            break
        log.info("time given back", freeze=freeze_id, orders=len(extended))
        if time.monotonic() > until:
            return Retry(0)
    if freeze is None:
        return NoOp()
    if freeze.kind == "left":
        return float(freeze.ms)
    log.warning("freeze over", freeze=freeze_id)
    return None
