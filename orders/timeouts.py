"""The flow that cancels orders which were not paid in time, and what a worker runs beside it."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial

import structlog

from orders.bootstrap import bootstrap, counting, tracing
from orders.config import Settings
from orders.deliveries import webhook_flow
from orders.order.domain import CancelledOrder
from orders.order.service import OrderService, Report
from orders.outages import outages
from orders.queues import QUEUE
from orders.sql.ids import is_uuid
from orders.watch.doctor import Doctor
from orders.watch.traces import NO_TRACES, Traces
from worker import Backoff, DeadLetter, Due, Flow, Outcome, Retry, Task

log = structlog.get_logger("orders")

#: Larger batches, which only a backlog makes, log each order only at LOG_LEVEL=debug: writing 500
#: lines takes as long as cancelling 500 orders.
MOST_LINES = 50


def flows() -> list[Flow]:
    """What ``python -m worker run orders.timeouts:flows`` runs. Raises SettingsInvalid."""
    settings = Settings.from_env(os.environ)
    services = bootstrap(settings, counting())
    traces = tracing(os.environ)
    timeouts = timeout_flow(services.orders, settings, Doctor(services.engine), traces)
    return [timeouts, webhook_flow(services, traces=traces)]


def timeout_flow(
    orders: OrderService,
    settings: Settings,
    doctor: Doctor | None = None,
    traces: Traces = NO_TRACES,
) -> Flow:
    """Cancel unpaid orders at their deadline, a batch at a time."""

    def waiting(after_seconds: float | None, before_seconds: float) -> Iterator[list[Due]]:
        with outages():
            for page in orders.waiting(after_seconds, before_seconds, settings.batch_size):
                yield [Due(order.id, order.expires_in_ms) for order in page]

    def probe() -> None:
        with outages():
            orders.check_ready()

    return Flow(
        name=QUEUE,
        handler=partial(_expire, orders, traces),
        sweep=waiting,
        without_redis="handle",  # several workers may: each order's UPDATE decides
        probe=probe,
        checks=None if doctor is None else doctor.examine,
        batch_size=settings.batch_size,
        lease_seconds=settings.lease_seconds,
        max_failures=settings.max_failures,
        max_deliveries=settings.max_deliveries,
        backoff=Backoff(settings.retry_base_seconds, settings.retry_cap_seconds),
        sweep_seconds=settings.sweep_seconds,
        lookahead_seconds=settings.lookahead_seconds,
    )


def _expire(orders: OrderService, traces: Traces, tasks: Sequence[Task]) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for task in tasks:
        if not is_uuid(task.id):
            outcomes[task.id] = DeadLetter("its id is not an order's")
        elif task.payload:
            outcomes[task.id] = DeadLetter("an order's check has no payload")
    order_ids = [task.id for task in tasks if task.id not in outcomes]
    if order_ids:
        with outages():
            again = orders.expire(order_ids, _report(tasks, traces, time.time_ns()))
        outcomes |= {order_id: Retry(delay_ms) for order_id, delay_ms in again.items()}
    return outcomes


def _report(tasks: Sequence[Task], traces: Traces, began_ns: int) -> Report | None:
    """What reports the cancelled orders of a batch; None if that would go nowhere.

    Each order has a line in the log and, with tracing, a span.
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
