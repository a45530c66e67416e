"""``workers``"""

import argparse
from collections.abc import Sequence
from typing import Any

from ..queue.replies import WorkerStatus
from . import arguments
from .commands import Commands
from .output import print_json, print_table, terminal

COLUMNS = ("queue", "worker", "started", "heard", "holds", "for", "handled", "")


def add_to(commands: Commands) -> None:
    commands.add("workers", _workers, examples="workers\nworkers --json | jq 'select(.silent)'")


def _workers(options: argparse.Namespace) -> None:
    """List live workers and those that fell silent within the last hour."""
    queues = arguments.queues(options)
    found = [(queue.name, worker) for queue in queues for worker in queue.workers()]
    if options.json:
        for queue, worker in found:
            print_json(_row(queue, worker))
    elif not found and terminal():
        print(f"No worker is running for {', '.join(queue.name for queue in queues)}.")
    else:
        print_table(COLUMNS, [cells(queue, worker) for queue, worker in found])


def cells(queue: str, worker: WorkerStatus) -> Sequence[object]:
    """A worker's line in a table with these `COLUMNS`."""
    row = _row(queue, worker)
    return (
        row["queue"],
        row["worker"],
        row["started_at"],
        f"{row['heard_ms_ago'] // 1000} s ago",
        row["holds"],
        f"{row['oldest_seconds']} s" if row["holds"] else "",
        row.get("handled"),  # workers of the previous version do not report it
        "silent" if row["silent"] else "" if row["up"] else "down",
    )


def _row(queue: str, worker: WorkerStatus) -> dict[str, Any]:
    return {
        "queue": queue,
        "worker": worker.id,
        "silent": worker.silent,
        "heard_ms_ago": worker.heard_ms_ago,
        **worker.details,
    }
