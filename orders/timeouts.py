"""The flow that cancels orders which were not paid in time, and what a worker runs beside it."""

import logging
import math
import os
import time
from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from orders.config import Settings
from orders.db.tables import queue_pauses, unpaid_orders
from orders.feature import features
from orders.hooks import Hooks
from orders.log import log
from orders.order.domain import CancelledOrder
from orders.order.service import Report
from orders.origin import Origin
from orders.wiring import Services, bootstrap
from worker import Backoff, DeadLetter, Flow, NoOp, Outcome, Task
from worker.records import Records

#: Larger batches, which only a backlog makes, log each order only at LOG_LEVEL=debug: writing 500
#: lines takes as long as cancelling 500 orders.
MOST_LINES = 50
#: Those that nothing keeps and nobody stops, as in ``order/sql/expire.sql``. Each query is evaluated once.
PENDING: sa.ColumnElement[bool] = sa.literal_column(
    "coalesce(kept_until <= statement_timestamp(), true)"
    " AND NOT EXISTS (SELECT FROM stops WHERE client_id IS NULL)"
    " AND client_id <> ALL (ARRAY(SELECT client_id FROM stops WHERE client_id IS NOT NULL))",
    sa.Boolean,
)
HAS_PAYLOAD = DeadLetter("an order's check has no payload")


def flows(services: Services | None = None) -> list[Flow]:
    """What ``python -m worker run orders.timeouts:flows`` runs, and the page's doctor examines. Raises SettingsInvalid."""
    services = services or bootstrap(Settings.from_env(os.environ))
    return [timeout_flow(services), *(flow for each in features() for flow in each.flows(services))]


def timeout_flow(services: Services) -> Flow:
    """Cancel unpaid orders at their deadline, a batch at a time."""
    settings, orders, hooks = services.settings, services.orders, services.hooks

    def decide(
        connection: sa.Connection, tasks: Mapping[str, Task]
    ) -> Mapping[str, float | Outcome]:
        odd = {id_: HAS_PAYLOAD for id_, task in tasks.items() if task.payload}
        report, ids = _report(tasks.values(), hooks, time.time_ns()), [*(tasks.keys() - odd)]
        left = orders.expire(connection, ids, report, hooks.not_after())
        return {id_: NoOp() if ms == math.inf else ms for id_, ms in left.items()} | odd

    return Records(
        services.engine,
        id=unpaid_orders.c.order_id,
        due=unpaid_orders.c.expires_at,
        pending=PENDING,
        decide=decide,
        queue=services.queue,
        timeout_seconds=settings.statement_timeout_seconds,
        pauses=queue_pauses,
    ).flow(
        probe=services.check_ready,
        held=lambda: "; ".join(filter(None, (hook() for hook in hooks.stopped))),
        tick=hooks.tick,
        checks=lambda: (found for each in features() for found in each.examine(services)),
        batch_size=settings.batch_size,
        claims_ahead=True,
        backoff=Backoff(settings.retry_base_seconds, settings.retry_cap_seconds),
        **settings.of_each_flow,
    )


def _report(tasks: Collection[Task], hooks: Hooks, began_ns: int) -> Report | None:
    """What reports the cancelled orders of a batch, each in a line of the log and, with tracing, a span;
    None if that would go nowhere.
    """
    is_small = len(tasks) <= MOST_LINES
    lines = logging.getLogger("orders").isEnabledFor(logging.INFO if is_small else logging.DEBUG)
    if not lines and not hooks.cancelled:
        return None
    attempts = {task.id: task.attempt for task in tasks}

    def report(cancelled: Sequence[CancelledOrder]) -> None:
        if lines:
            write = log.info if is_small else log.debug
            for each in cancelled:
                facts = {"late_ms": each.late_ms, "attempt": attempts[each.id]}
                write(
                    "order cancelled", order=each.id, **facts, **Origin.parse(each.origin).fields()
                )
        for told in hooks.cancelled:
            told(cancelled, began_ns)

    return report
