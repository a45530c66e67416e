"""Why an order is still unpaid: the one answer, for the command, the operators' page and the API."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from orders.bootstrap import Services
from orders.errors import QueueUnavailable
from orders.freezes.domain import Freeze, FreezeState
from orders.freezes.service import Freezes
from orders.order.sparing import kept
from orders.order.states import client_of
from orders.queues import ATTEMPT_QUEUE, FREEZE_QUEUE, QUEUE, answering
from orders.sql.database import reading
from orders.sql.expressions import Id, ms_until, text_literal
from orders.sql.freeze_tables import payment_attempts
from orders.sql.tables import unpaid_orders
from orders.watch.locked import locked_rows
from worker import DelayQueue, Place, TaskState
from worker.console import duration
from worker.runtime import pauses

_attempt = payment_attempts.c.reference + text_literal(" at ") + payment_attempts.c.provider
# The attempts that keep an order beyond its deadline.
_open = (
    payment_attempts.c.order_id == unpaid_orders.c.order_id,
    payment_attempts.c.settled_at.is_(None),
    kept(unpaid_orders),
    unpaid_orders.c.kept_until > unpaid_orders.c.expires_at,
)
_attempts = sa.select(sa.func.string_agg(_attempt, text_literal(", "))).where(*_open)
_attempt_ids = sa.select(payment_attempts.c.id).where(*_open)
# An unpaid order's deadline, and what is known of who is paying it.
GET_UNPAID = sa.select(
    client_of(unpaid_orders.c.client_id),
    unpaid_orders.c.expires_at,
    ms_until(unpaid_orders.c.expires_at).label("ms"),
    unpaid_orders.c.kept_until,
    _attempts.scalar_subquery().label("attempts"),
    sa.func.array(_attempt_ids.scalar_subquery(), type_=ARRAY(Id)).label("attempt_ids"),
).where(unpaid_orders.c.order_id == sa.bindparam("for_order", type_=Id))


def why(services: Services, order_id: str, engine: sa.Engine | None = None) -> list[str]:
    """Whatever keeps an order from being cancelled, now or at its deadline; nothing once it has ended.

    Raises StorageUnavailable.
    """
    with reading(engine or services.engine) as connection:
        row = connection.execute(GET_UNPAID, {"for_order": order_id}).one_or_none()
        if row is None:
            return []
        # A freeze that ends before the deadline does not matter, unless the order is overdue: then it waits until the
        # freeze has given back.
        freezes = [
            each
            for each in Freezes(connection).in_force()
            if each.client in (None, row.client) and (each.deadline > row.expires_at or row.ms <= 0)
        ]
        found = [*_sparing(row, freezes), *map(str, locked_rows(connection, order_id))]
    if problem := services.readiness.get().problem:
        found.append(f"nothing is cancelled: {problem}")
    thawing = [each.id for each in freezes if each.state is not FreezeState.OPEN]
    try:
        with answering():
            found += _held_up(services, QUEUE, "its check", [order_id])
            found += _held_up(services, ATTEMPT_QUEUE, "closing its attempt", row.attempt_ids)
            found += _held_up(services, FREEZE_QUEUE, "giving back time", thawing)
            found += _check(services.queue.look_up(order_id), is_overdue=row.ms <= 0)
    except QueueUnavailable:
        found.append("Redis does not answer: workers cancel from the database, if any is running")
    return found or [f"overdue by {duration(-row.ms)}: the next free worker cancels it"]


def _sparing(row: sa.Row[Any], freezes: Sequence[Freeze]) -> Iterator[str]:
    if row.ms > 0:
        yield f"not due yet: its deadline is {_time(row.expires_at)}, in {duration(row.ms)}"
    if row.attempts:
        until = f"until {_time(row.kept_until)} at the latest"
        yield f"kept by payment attempt {row.attempts} {until}"
    for freeze in freezes:
        over = "" if freeze.state is FreezeState.OPEN else " (giving back time)"
        yield f"stopped by freeze {freeze.id} of {freeze}{over}"


def _held_up(services: Services, name: str, what: str, ids: Sequence[str]) -> Iterator[str]:
    """What holds up the tasks, if there are any, that the order waits for."""
    if not ids:
        return
    queue = DelayQueue(services.redis, name)
    if pause := pauses.find(queue, services.pauses[name]):
        yield f"the queue {name} is {pause}"
    for letter in queue.letters(ids, with_payloads=False):
        since = _time(datetime.fromtimestamp(letter.story["died_at_ms"] / 1000, UTC))
        said = ": ".join(filter(None, (letter.story["reason"], letter.story["error"])))
        yield f"{what} is a dead letter since {since}: {said}"
    for state in queue.look_up_many(ids).values():
        if state.place is Place.SCHEDULED and (state.failures or state.error):
            yield f"{what} {state}"
    live = [each for each in queue.workers() if not each.silent]
    if not live:
        yield f"no worker of {name} is running, or none reaches Redis"
    elif not any(each.details.get("up", True) for each in live):
        yield f"every worker of {name} is down: its log says why"


def _check(state: TaskState | None, *, is_overdue: bool) -> Iterator[str]:
    if state is None and is_overdue:
        yield "Redis has lost its check: the next sweep of a worker restores it"
    elif state is not None and state.place is Place.LEASED:
        yield "a worker has its check in hand"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
