"""The flow that cancels orders which were not paid in time, and what a worker runs beside it."""

import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from orders.attempts.flow import attempt_flow
from orders.bootstrap import Services, bootstrap, counting, guard_of, tracing
from orders.config import Settings
from orders.errors import StorageUnavailable
from orders.freezes.flow import frozen, thaw_flow
from orders.freezes.guard import Guard
from orders.log import log
from orders.order.domain import CancelledOrder
from orders.order.service import Report
from orders.order.sparing import spared
from orders.outages import outages
from orders.retention.flow import retention_flow
from orders.sql.database import session_settings
from orders.sql.errors import LOCK_NOT_AVAILABLE, sqlstate
from orders.sql.freeze_tables import queue_pauses
from orders.sql.tables import unpaid_orders
from orders.watch.doctor import Doctor
from orders.watch.locked import LockLog
from orders.watch.traces import NO_TRACES, Traces
from orders.webhooks.flow import webhook_flow
from worker import Backoff, DeadLetter, Flow, Outcome, Task, Unavailable
from worker.records import Records

#: Larger batches, which only a backlog makes, log each order only at LOG_LEVEL=debug: writing 500
#: lines takes as long as cancelling 500 orders.
MOST_LINES = 50
HAS_PAYLOAD = DeadLetter("an order's check has no payload")


def flows(services: Services | None = None) -> list[Flow]:
    """What ``python -m worker run orders.timeouts:flows`` runs, and the page's doctor examines. Raises SettingsInvalid."""
    services = services or bootstrap(Settings.from_env(os.environ), counting())
    traces = tracing(os.environ)
    doctor = Doctor(services.engine, session=session_settings(services.settings))
    timeouts = timeout_flow(services, doctor, traces, guard_of(services))
    webhooks, attempts = webhook_flow(services, traces=traces), attempt_flow(services)
    return [timeouts, webhooks, thaw_flow(services), attempts, retention_flow(services)]


def timeout_flow(
    services: Services,
    doctor: Doctor | None = None,
    traces: Traces = NO_TRACES,
    guard: Guard | None = None,
) -> Flow:
    """Cancel unpaid orders at their deadline, a batch at a time."""
    settings, orders = services.settings, services.orders
    locks = LockLog(services.watching)

    def decide(
        connection: sa.Connection, tasks: Mapping[str, Task]
    ) -> Mapping[str, float | Outcome]:
        odd = {id_: HAS_PAYLOAD for id_, task in tasks.items() if task.payload}
        report, ids = _report(tasks.values(), traces, time.time_ns()), [*(tasks.keys() - odd)]
        not_after = None
        try:
            if guard is not None:
                not_after = guard.not_after()
            left = orders.expire(connection, ids, report, not_after)
        except StorageUnavailable as error:
            raise Unavailable(str(error)) from error
        except sa.exc.OperationalError as error:
            if sqlstate(error) == LOCK_NOT_AVAILABLE:
                locks.suspect()
            raise
        if any(ms <= 0 for ms in left.values()):
            locks.suspect()
        return {**left, **odd}

    def tick() -> None:
        locks.tick()
        if guard is not None:
            guard.look()

    return Records(
        services.engine,
        id=unpaid_orders.c.order_id,
        due=unpaid_orders.c.expires_at,
        pending=~spared(unpaid_orders),
        decide=decide,
        queue=services.queue,
        timeout_seconds=settings.statement_timeout_seconds,
        pauses=queue_pauses,
    ).flow(
        probe=outages()(orders.check_ready),
        held=lambda: frozen(services),
        tick=tick,
        checks=None if doctor is None else doctor.examine,
        batch_size=settings.batch_size,
        backoff=Backoff(settings.retry_base_seconds, settings.retry_cap_seconds),
        **settings.of_each_flow,
    )


def _report(tasks: Collection[Task], traces: Traces, began_ns: int) -> Report | None:
    """What reports the cancelled orders of a batch, each in a line of the log and, with tracing, a span;
    None if that would go nowhere.
    """
    is_small = len(tasks) <= MOST_LINES
    lines = logging.getLogger("orders").isEnabledFor(logging.INFO if is_small else logging.DEBUG)
    if not lines and not traces.on:
        return None
    attempts = {task.id: task.attempt for task in tasks}

    def report(cancelled: Sequence[CancelledOrder]) -> None:
        if lines:
            write = log.info if is_small else log.debug
            for each in cancelled:
                facts = {"late_ms": each.late_ms, "attempt": attempts[each.id]}
                write("order cancelled", order=each.id, **facts, **each.origin.fields())
        traces.cancelled(cancelled, began_ns)

    return report
