"""The flow that gives back the time which a freeze took."""

import time
from collections.abc import Mapping

import sqlalchemy as sa

from orders.db.tables import queue_pauses
from orders.features.freezes.domain import FREEZE_QUEUE
from orders.features.freezes.giving_back import GivingBack
from orders.features.freezes.service import Freezes
from orders.features.freezes.tables import freezes
from orders.log import log
from orders.wiring import Services
from worker import DelayQueue, Flow, NoOp, Outcome, Retry, Task
from worker.records import Records

#: More freezes are not named.
MOST_NAMED = 3


def thaw_flow(services: Services) -> Flow:
    """Give back time after each freeze, a batch of orders at a time."""
    settings = services.settings

    def decide(
        connection: sa.Connection, tasks: Mapping[str, Task]
    ) -> Mapping[str, float | Outcome]:
        until = time.monotonic() + settings.statement_timeout_seconds / 2
        left = {id_: _give_back(services, connection, id_, until) for id_ in tasks}
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


def _give_back(
    services: Services, connection: sa.Connection, freeze_id: str, until: float
) -> float | Outcome | None:
    """Give back as much as can be until then, on the monotonic clock; return when to look again."""
    while (batch := services[GivingBack].batch(connection, freeze_id)).extended:
        log.info("time given back", freeze=freeze_id, orders=len(batch.extended))
        if time.monotonic() > until:
            return Retry(0)
    if batch.is_over:
        log.warning("freeze over", freeze=freeze_id)
        return None
    return NoOp() if batch.left_ms is None else batch.left_ms
