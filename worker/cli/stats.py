"""``stats``, once or until Ctrl-C, and ``workers``"""

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
from ..runtime import pauses
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
    with suppress(Unavailable):
        if pause := pauses.find(queue, flow.pauses if flow else None):
            row |= {"paused": True, "pause": str(pause)}
        if held := flow.held() if flow and flow.held else "":
            row["held"] = held
    return row


def _count_cells(row: Mapping[str, Any]) -> Sequence[object]:
    """A queue's line in a table with `COUNTS`."""
    upcoming = row["next_due_in_ms"]
    return (
        row["queue"] + "".join(f" ({row[why]})" for why in ("pause", "held") if why in row),
        *(row[name] for name in ("scheduled", "due", "due_within_minute", "leased", "dead")),
        "now" if row["due"] else None if upcoming is None else f"in {duration(upcoming)}",
        duration(row["oldest_due_age_ms"]) if row["due"] else None,
    )


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
