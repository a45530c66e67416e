"""Why an order is still unpaid: the one answer, for the command, the operators' page and the API."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from orders.bootstrap import Services
from orders.errors import QueueUnavailable
from orders.freezes.domain import FreezeState
from orders.freezes.service import Freezes
from orders.order.sparing import kept
from orders.order.states import client_of
from orders.queues import QUEUE, answering
from orders.sql.database import reading
from orders.sql.expressions import Id, ms_until, text_literal
from orders.sql.freeze_tables import payment_attempts
from orders.sql.tables import unpaid_orders
from orders.watch.locked import locked_rows
from worker import Place
from worker.console import duration
from worker.runtime import pauses

_of_order = sa.bindparam("for_order", type_=Id)
_attempt = payment_attempts.c.reference + text_literal(" at ") + payment_attempts.c.provider
_attempts = sa.select(sa.func.string_agg(_attempt, text_literal(", "))).where(
    payment_attempts.c.order_id == _of_order, payment_attempts.c.settled_at.is_(None)
)
# An unpaid order's deadline, and what is known of who is paying it.
GET_UNPAID = sa.select(
    client_of(unpaid_orders.c.client_id),
    unpaid_orders.c.expires_at,
    ms_until(unpaid_orders.c.expires_at).label("ms"),
    sa.case((kept(unpaid_orders), unpaid_orders.c.kept_until)).label("kept_until"),
    _attempts.scalar_subquery().label("attempts"),
).where(unpaid_orders.c.order_id == _of_order)


def why(services: Services, order_id: str, engine: sa.Engine | None = None) -> list[str]:
    """Whatever keeps an order from being cancelled, now or at its deadline; nothing once it has ended.

    Raises StorageUnavailable.
    """
    with reading(engine or services.engine) as connection:
        row = connection.execute(GET_UNPAID, {"for_order": order_id}).one_or_none()
        if row is None:
            return []
        found = [*_sparing(connection, row), *map(str, locked_rows(connection, order_id))]
    if problem := services.readiness.get().problem:
        found.append(f"nothing is cancelled: {problem}")
    found += _check(services, order_id, is_overdue=row.ms <= 0)
    return found or [f"overdue by {duration(-row.ms)}: the next free worker cancels it"]


def _sparing(connection: sa.Connection, row: sa.Row[Any]) -> Iterator[str]:
    if row.ms > 0:
        yield f"not due yet: its deadline is {_time(row.expires_at)}, in {duration(row.ms)}"
    if row.kept_until is not None and row.kept_until > row.expires_at:
        until = f"until {_time(row.kept_until)} at the latest"
        yield f"kept by payment attempt {row.attempts} {until}"
    for freeze in Freezes(connection).in_force():
        if freeze.client in (None, row.client) and freeze.deadline > row.expires_at:
            over = "" if freeze.state is FreezeState.OPEN else " (giving back time)"
            yield f"stopped by freeze {freeze.id} of {freeze}{over}"


def _check(services: Services, order_id: str, *, is_overdue: bool) -> Iterator[str]:
    """What holds up the order's check in the queue."""
    queue = services.queue
    try:
        with answering():
            pause = pauses.find(queue, services.pauses[QUEUE])
            state = queue.look_up(order_id)
            letters = queue.letters([order_id], with_payloads=False)
            live = [each for each in queue.workers() if not each.silent]
    except QueueUnavailable:
        yield "Redis does not answer: workers cancel from the database, if any is running"
        return
    if pause is not None:
        yield f"the queue {QUEUE} is {pause}"
    for _, _, story in letters:
        since = _time(datetime.fromtimestamp(story["died_at_ms"] / 1000, UTC))
        said = ": ".join(filter(None, (story["reason"], story["error"])))
        yield f"its check is a dead letter since {since}: {said}"
    if state is None and is_overdue:
        yield "Redis has lost its check: the next sweep of a worker restores it"
    elif state is not None and state.place is Place.LEASED:
        yield "a worker has its check in hand"
    elif state is not None and state.place is Place.SCHEDULED and (state.failures or state.error):
        yield f"its check {state}"
    if not live:
        yield f"no worker of {QUEUE} is running, or none reaches Redis"
    elif not any(each.details.get("up", True) for each in live):
        yield f"every worker of {QUEUE} is down: its log says why"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
