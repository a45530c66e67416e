"""Why an order is still unpaid: the one answer, for the command, the operators' page and the API."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from orders.db.database import reading
from orders.errors import RowLocked
from orders.feature import features
from orders.features.operators import QueueUnavailable, answering
from orders.features.parts import time_of
from orders.features.why.locked import SQL, lockers
from orders.queues import QUEUE
from orders.wiring import Services
from worker import DelayQueue, Place, TaskState, Unavailable, WorkerStatus
from worker.console import duration
from worker.runtime import pauses


def why(services: Services, order_id: str, engine: sa.Engine) -> list[str]:
    """Whatever keeps an order from being cancelled, now or at its deadline; nothing once it has ended.

    While a table that has to be read is locked, only that is known. Raises StorageUnavailable.
    """
    try:
        with reading(engine) as connection:
            locked = lockers(connection)
            row = SQL.get_unpaid(connection, order_id=order_id).one_or_none()
            if row is None:
                return []
            causes = [cause for each in features() for cause in each.causes(connection, row)]
    except RowLocked:
        with reading(engine) as connection:
            locked = lockers(connection, long_ms=0)
        if not locked:
            raise
        return [*map(str, locked)]
    found = [*_sparing(row), *(each.said for each in causes), *map(str, locked)]
    if problem := services.readiness.get().problem:
        found.append(f"nothing is cancelled: {problem}")
    try:
        with answering():
            found += _held_up(services, QUEUE, "its check", [order_id], is_overdue=row.ms <= 0)
            tasks = defaultdict[tuple[str, str], list[str]](list)
            for each in causes:
                tasks[each.queue, each.what] += each.task_ids
            for (queue, what), ids in tasks.items():
                found += _held_up(services, queue, what, ids)
    except QueueUnavailable:
        found.append("Redis does not answer: workers cancel from the database, if any is running")
    return found or [f"overdue by {duration(-row.ms)}: the next free worker cancels it"]


def _sparing(row: sa.Row[Any]) -> Iterator[str]:
    if row.ms > 0:
        yield f"not due yet: its deadline is {time_of(row.expires_at)}, in {duration(row.ms)}"
    if row.kept_until:
        yield f"kept until {time_of(row.kept_until)} at the latest"


def _held_up(
    services: Services, name: str, what: str, ids: Sequence[str], *, is_overdue: bool = False
) -> Iterator[str]:
    """What holds up the tasks, if there are any, that the order waits for; ``is_overdue``: they should be there."""
    if not ids:
        return
    queue = DelayQueue(services.redis, name)
    try:
        if pause := pauses.find(queue, services.pauses_of(name)):
            yield f"the queue {name} is {pause}"
    except Unavailable as error:
        yield f"whether the queue {name} is paused is not known: {error}"
    for letter in queue.letters(ids, with_payloads=False):
        since = time_of(datetime.fromtimestamp(letter.story["died_at_ms"] / 1000, UTC))
        said = ": ".join(filter(None, (letter.story["reason"], letter.story["error"])))
        yield f"{what} is a dead letter since {since}: {said}"
    workers, states = queue.workers(), queue.look_up_many(ids)
    yield from (f"{what} {said}" for state in states.values() if (said := _said(state, workers)))
    live = [each for each in workers if not each.silent]
    if not live:
        yield f"no worker of {name} is running, or none reaches Redis"
    elif not any(each.details.get("up", True) for each in live):
        yield f"every worker of {name} is down: its log says why"
    if is_overdue and not states:
        yield "Redis has lost its check: the next sweep of a worker restores it"


def _said(state: TaskState, workers: Sequence[WorkerStatus]) -> str:
    if state.place is Place.LEASED:
        holders = (each for each in workers if state.lease in each.details.get("leases", ()))
        holder = next((f"worker {each.id}" for each in holders), "a worker")
        since = time_of(datetime.now(UTC) - timedelta(milliseconds=state.held_ms))
        return f"has been held by {holder} since {since}"
    is_put_off = state.place is Place.SCHEDULED and (state.failures or state.error)
    return str(state) if is_put_off else ""
