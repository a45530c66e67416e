"""``stats``, once or until Ctrl-C, ``upcoming`` and ``workers``"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click
import redis
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..console import AS_JSON, duration, print_json, print_table, table, terminal
from ..errors import Unavailable
from ..flow import Flow
from ..queue.delay_queue import DelayQueue
from ..queue.replies import WorkerStatus
from ..runtime.cron import EPOCH, MILLISECOND
from ..runtime.recurring import Recurring
from .options import Chosen, examples, of_flows


@click.command(
    epilog=examples("""
        stats
        stats --queue emails
        stats --watch                            Ctrl-C ends it
        stats --json | jq .due""")
)
@of_flows
@AS_JSON
@click.option("--watch", is_flag=True, help="redraw every second, with the workers, until Ctrl-C")
def stats(named: Chosen, *, as_json: bool, watch: bool) -> None:
    """Count the tasks that are scheduled, due, leased and dead."""
    found = named.queues_and_flows()
    if watch:
        screen = terminal()
        if screen is None or as_json:
            raise ValueError("--watch redraws a terminal: for programs, repeat stats --json")
        _watch(screen, found)
        return
    rows = [_counts(queue, flow) for queue, flow in found]
    if as_json:
        for row in rows:
            print_json(row)
    else:
        print_table(COUNTS, map(_count_cells, rows))


def _watch(screen: Console, found: Sequence[tuple[DelayQueue, Flow | None]]) -> None:
    """Show counts and workers until Ctrl-C. An outage of Redis is an error only for the first."""
    tables: list[Any] = []
    with Live(console=screen, auto_refresh=False) as drawn, suppress(KeyboardInterrupt):
        while True:
            at, note = datetime.now().astimezone().strftime("%H:%M:%S"), "Ctrl-C ends"
            try:
                counts = [_count_cells(_counts(queue, flow)) for queue, flow in found]
                known = [_cells(queue.name, each) for queue, _ in found for each in queue.workers()]
                tables = [table(COUNTS, counts), table(COLUMNS, known) if known else NO_WORKER]
            except redis.RedisError as error:
                if not tables:
                    raise
                note = f"Redis: {error}"
            drawn.update(Group(*tables, Text(f"{at}  {note}", style="dim")), refresh=True)
            time.sleep(1.0)


NO_WORKER = Text("No worker is running: no task is handled.\n")
COUNTS = ("queue", "scheduled", "due", "in 1 min", "leased", "dead", "next", "oldest")


def _counts(queue: DelayQueue, flow: Flow | None) -> dict[str, Any]:
    """A queue's counts; by whom and why it is paused, too, and what else holds its tasks up."""
    row = {"queue": queue.name, **dataclasses.asdict(queue.stats())}
    pause, held = queue.find_pause() if row["paused"] else None, ""
    with suppress(Unavailable):
        held = flow.held() if flow and flow.held else ""
    return row | ({"pause": str(pause)} if pause else {}) | ({"held": held} if held else {})


def _count_cells(row: Mapping[str, Any]) -> Sequence[object]:
    """A queue's line in a table with `COUNTS`."""
    return (
        row["queue"] + "".join(f" ({row[why]})" for why in ("pause", "held") if why in row),
        *(row[name] for name in ("scheduled", "due", "due_within_minute", "leased", "dead")),
        "now" if row["due"] else _in(row["next_due_in_ms"]),
        duration(row["oldest_due_age_ms"]) if row["due"] else None,
    )


def _in(ms: int | None) -> str | None:
    if ms is None:
        return None
    return f"in {duration(ms)}" if ms >= 0 else f"{duration(-ms)} ago"


# -- workers -------------------------------------------------------------------------------

COLUMNS = ("queue", "worker", "started", "heard", "holds", "for", "")


@click.command(epilog=examples("workers\nworkers --json | jq 'select(.silent)'"))
@of_flows
@AS_JSON
def workers(named: Chosen, *, as_json: bool) -> None:
    """List live workers and those that fell silent within the last hour."""
    queues = named.queues()
    found = [(queue.name, worker) for queue in queues for worker in queue.workers()]
    if as_json:
        for queue, worker in found:
            print_json(_worker(queue, worker))
    elif not found and terminal():
        click.echo(f"No worker is running for {', '.join(queue.name for queue in queues)}.")
    else:
        print_table(COLUMNS, [_cells(queue, worker) for queue, worker in found])


def _worker(queue: str, worker: WorkerStatus) -> dict[str, Any]:
    return {
        "queue": queue,
        "worker": worker.id,
        "silent": worker.silent,
        "heard_ms_ago": worker.heard_ms_ago,
        **worker.details,
    }


def _cells(queue: str, worker: WorkerStatus) -> Sequence[object]:
    """A worker's line in a table with these `COLUMNS`."""
    row = _worker(queue, worker)
    return (
        row["queue"],
        row["worker"],
        row["started_at"],
        f"{row['heard_ms_ago'] // 1000} s ago",
        row["holds"],
        f"{row['oldest_seconds']} s" if row["holds"] else "",
        "silent" if row["silent"] else "" if row["up"] else "down",
    )


# -- what is due next ----------------------------------------------------------------------


@click.command(
    epilog=examples("""
        upcoming
        upcoming nightly:flows --limit 30        the runs of the next thirty nights
        upcoming --queue emails --json | jq .id""")
)
@of_flows
@AS_JSON
@click.option("--limit", type=click.IntRange(1), default=10, help="for each queue (default: 10)")
def upcoming(named: Chosen, *, as_json: bool, limit: int) -> None:
    """List the tasks that are due next, and the next runs of recurring flows.

    A recurring flow's times are in its own time zone, others in this machine's. Of its runs only the next one is
    scheduled; those after it are planned, unless its schedule changes.
    """
    rows = []
    for queue, flow in named.queues_and_flows():
        now_ms = queue.server_time_ms()
        for due_at_ms, task_id, state in _next(queue, flow, now_ms, limit):
            local, zone = _local(due_at_ms, flow)
            if as_json:
                print_json(
                    {
                        "queue": queue.name,
                        "id": task_id,
                        "state": state,
                        "due_at": local and local.isoformat(),
                        "due_at_ms": due_at_ms,
                        "timezone": zone,
                    }
                )
            at = local and f"{local:%A} {local.day} {local:%B %Y, %H:%M:%S}, {zone}"
            rows.append((queue.name, task_id, state, _in(due_at_ms - now_ms), at))
    if not as_json:
        print_table(("queue", "id", "state", "due", "at"), rows)


def _next(
    queue: DelayQueue, flow: Flow | None, now_ms: int, limit: int
) -> list[tuple[int, str, str]]:
    """The due time, id and state of what is due next, the first one first; as many as ``limit``, or fewer."""
    found = [(due_at_ms, task_id, "scheduled") for task_id, due_at_ms in queue.upcoming(limit)]
    if isinstance(flow, Recurring):
        # What was seeded is scheduled, or was cancelled.
        last_ms = max(now_ms, queue.last_seeded_ms() or 0)
        for _ in range(limit):
            run = flow.schedule.after(last_ms)
            found.append((run.due_at_ms, run.id, "planned"))
            last_ms = run.due_at_ms
    return sorted(found)[:limit]


def _local(due_at_ms: int, flow: Flow | None) -> tuple[datetime | None, str | None]:
    """The time and its time zone; None after the year 9999."""
    try:
        if isinstance(flow, Recurring):
            return flow.schedule.local(due_at_ms), flow.schedule.zone.key
        local = (EPOCH + due_at_ms * MILLISECOND).astimezone()
    except OverflowError:
        return None, None
    return local, local.tzname()
