"""What is wrong, and the counters, by what was read."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from orders.features.ops.filters import ago, countdown, money
from orders.features.ops.lookups import MOST_OVERDUE, MOST_REFUNDS, MOST_UNPAID, Rows, ShownOrders
from orders.features.ops.queues import ShownQueue
from orders.features.parts import Panel, Problem, not_known, up_to
from orders.queues import QUEUE
from worker import TaskState
from worker.console import duration
from worker.findings import quantity

#: Tasks and orders that are overdue by more are a problem.
LATE_MS = 5000
#: An order that is overdue by less has probably been cancelled since it was read.
GRACE_MS = 1000

UNKNOWN = "\N{EN DASH}"


class Seen(NamedTuple):
    """What was read; None: it does not answer."""

    orders: ShownOrders | None
    queues: Sequence[ShownQueue] | None
    #: Of the oldest overdue orders' checks, those that are to be tried again later.
    put_off: Sequence[TaskState]
    #: What features show, by their names.
    panels: Mapping[str, Panel | None]

    @property
    def checks(self) -> ShownQueue | None:
        """The queue of the orders' checks."""
        return next((each for each in self.queues or () if each.name == QUEUE), None)

    @property
    def dead(self) -> int:
        """How many dead letters there are."""
        return sum(each.stats.dead for each in self.queues or ())

    @property
    def refunds_due(self) -> int:
        return sum(row.payments for row in (self.orders and self.orders.refunds) or ())


class Tile(NamedTuple):
    """A counter."""

    name: str
    value: str
    note: str
    level: str = ""


# -- what is wrong -------------------------------------------------------------------------


def status(seen: Seen, found: Sequence[Problem]) -> tuple[str, str]:
    """How bad all of it is, and what to call it."""
    told = (each.status for each in seen.panels.values() if each and each.status)
    level, text = next(told, ("good", "On time"))
    levels = {level, *(each.level for each in found)}
    worst = next((each for each in ("bad", "warn") if each in levels), "good")
    return worst, quantity(len(found), "problem") if found else text


def problems(seen: Seen) -> list[Problem]:
    """What is wrong, one for each cause, the worst first."""
    found = [problem for each in seen.panels.values() if each for problem in each.problems]
    found += _of_orders(seen.orders) if seen.orders else [DATABASE]
    explained = set[str]()  # queues whose backlog needs no other explanation
    found += [REDIS] if seen.queues is None else _of_queues(seen.queues, seen.orders, explained)
    late = seen.orders and seen.orders.overdue
    if late and late[0].ms > LATE_MS and QUEUE not in explained:
        found.append(_overdue(late, seen.put_off))
    return sorted(found, key=lambda each: each.level != "bad")


DATABASE = Problem(
    "bad",
    "The database does not answer. Nothing is cancelled until it does; overdue orders then go first.",
    "DatabaseUnavailable",
)
REDIS = Problem(
    "bad",
    "Redis does not answer. Meanwhile workers cancel orders from the database. "
    "Queues, dead letters and workers cannot be shown.",
    "RedisUnavailable",
)


def _of_orders(orders: ShownOrders) -> Iterator[Problem]:
    for each in orders.locked:
        yield Problem("bad", f"{each[0].upper()}{each[1:]}.", "OrdersOverdue")
    if orders.overdue is None:
        yield not_known("how many orders are overdue")


def _of_queues(
    queues: Sequence[ShownQueue], orders: ShownOrders | None, explained: set[str]
) -> Iterator[Problem]:
    """Without the database a handler is down, and late, for that reason."""
    if idle := [each.name for each in queues if not each.live]:
        text = f"No worker for {', '.join(idle)} is running, or none can reach Redis."
        yield Problem("bad", text, "NoWorker")
    down = [each.name for each in queues if each.is_down]
    if down and orders:
        text = f"Every worker for {', '.join(down)} is down: a dependency of its handler does not answer."
        yield Problem("bad", text, "WorkerFailing")
    explained.update(idle, down)
    for queue in queues:
        if queue.is_paused:
            explained.add(queue.name)
            text = f"{queue.name} is {queue.pause or 'paused'}. Its tasks are neither claimed nor swept."
            yield Problem(pause_level(queue.name), text, "QueuePaused")
    for queue in queues:
        stats = queue.stats
        if orders and stats.oldest_due_age_ms > LATE_MS and queue.name not in explained:
            explained.add(queue.name)
            are, age = "is" if stats.due == 1 else "are", duration(stats.oldest_due_age_ms)
            text = f"{quantity(stats.due, 'task')} in {queue.name} {are} due but not claimed, the oldest for {age}."
            yield Problem("bad", text, "QueueBacklog")


def _overdue(late: Rows, put_off: Sequence[TaskState]) -> Problem:
    are = "order is" if len(late) == 1 else "orders are"
    text = f"{up_to(len(late), MOST_OVERDUE)} unpaid {are} overdue, the oldest by {duration(late[0].ms)}."
    if put_off:
        text += f" {up_to(len(put_off), MOST_OVERDUE)} put off: {put_off[0]}."
    return Problem(_overdue_level(late, put_off), text, "OrdersOverdue")


def _overdue_level(late: Rows, put_off: Sequence[TaskState]) -> str:
    """Nothing is amiss with workers if each overdue order is to be tried again."""
    return "bad" if len(put_off) < len(late) else "warn"


def pause_level(queue: str) -> str:
    """While the orders' checks are paused nothing is cancelled."""
    return "bad" if queue == QUEUE else "warn"


# -- counters ------------------------------------------------------------------------------


def tiles(seen: Seen) -> Iterator[Tile]:
    if seen.orders:
        yield from _of_sql(seen.orders, seen.put_off)
    else:
        yield from (Tile(name, UNKNOWN, "no database") for name in ("Unpaid", "Overdue"))
    if seen.queues is None or seen.checks is None:
        for name in ("Scheduled", "Due", "Leased", "Workers", "Dead letters"):
            yield Tile(name, UNKNOWN, "no Redis")
    else:
        yield from _of_redis(seen.queues, seen.checks, seen.dead)
    if not seen.orders:
        yield Tile("Refunds due", UNKNOWN, "no database")
    elif seen.orders.refunds is not None:
        count, sums = seen.refunds_due, seen.orders.refunds[:2]
        note = ", ".join(money(each.amount_minor, each.currency) for each in sums) or "none"
        yield Tile("Refunds due", up_to(count, MOST_REFUNDS), note, "warn" if count else "")


def _of_sql(orders: ShownOrders, put_off: Sequence[TaskState]) -> Iterator[Tile]:
    unpaid, late = orders.unpaid, orders.overdue
    yield Tile("Unpaid", UNKNOWN if unpaid is None else up_to(unpaid, MOST_UNPAID), "orders")
    if late is None:
        yield Tile("Overdue", UNKNOWN, "not known")
    elif not late:
        yield Tile("Overdue", "0", "none")
    else:
        count, note = up_to(len(late), MOST_OVERDUE), f"oldest by {duration(late[0].ms)}"
        level = _overdue_level(late, put_off) if late[0].ms > LATE_MS else ""
        yield Tile("Overdue", count, note, level)


def _of_redis(queues: Sequence[ShownQueue], checks: ShownQueue, dead: int) -> Iterator[Tile]:
    stats, live, known = checks.stats, len(checks.live), len(checks.workers)
    age = stats.oldest_due_age_ms
    note = f"next {next_due(checks)}" if stats.scheduled else "none"
    yield Tile("Scheduled", f"{stats.scheduled:,}", note)
    note = f"oldest for {duration(age)}" if stats.due else "none"
    yield Tile("Due", f"{stats.due:,}", note, "bad" if age > LATE_MS else "")
    yield Tile("Leased", f"{stats.leased:,}", "being handled")
    note = "live" if live == known else f"{known - live} silent"
    yield Tile("Workers", f"{live:,}", note, "" if live else "bad")
    oldest = ago(max(each.stats.oldest_dead_age_ms for each in queues))
    note, level = (f"oldest {oldest}", "warn") if dead else ("none", "")
    yield Tile("Dead letters", f"{dead:,}", note, level)


def next_due(queue: ShownQueue) -> str:
    ms = queue.stats.next_due_in_ms
    if ms is None:
        return "never"
    return "now" if queue.stats.due else f"in {countdown(ms)}"
