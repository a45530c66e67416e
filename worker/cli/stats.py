"""``stats`` and ``workers``"""

import argparse
import dataclasses
from typing import Any

from . import arguments
from .commands import Commands
from .output import duration, print_json, print_table, shown, terminal


def add_to(commands: Commands) -> None:
    commands.add("stats", _stats, examples="stats\nstats --queue emails\nstats --json | jq .due")
    commands.add("workers", _workers, examples="workers\nworkers --json | jq 'select(.silent)'")


def _stats(options: argparse.Namespace) -> None:
    """Count the tasks that are scheduled, due, leased and dead."""
    rows = [
        {"queue": queue.name, **dataclasses.asdict(queue.stats())}
        for queue in arguments.queues(options)
    ]
    if not options.json and terminal():
        _print_stats(rows)
        return
    for row in rows:
        if options.json:
            print_json(row)
        else:
            print("\n".join(f"{name:>18}  {shown(value)}" for name, value in row.items()))


def _print_stats(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("queue", "scheduled", "due", "in 1 min", "leased", "dead", "next", "oldest"),
        [
            (
                row["queue"] + (" (paused)" if row["paused"] else ""),
                *(
                    row[name]
                    for name in ("scheduled", "due", "due_within_minute", "leased", "dead")
                ),
                "now" if row["due"] else _in(row["next_due_in_ms"]),
                duration(row["oldest_due_age_ms"]) if row["due"] else None,
            )
            for row in rows
        ],
    )


def _in(ms: int | None) -> str | None:
    return None if ms is None else f"in {duration(ms)}"


def _workers(options: argparse.Namespace) -> None:
    """List live workers and those that fell silent within the last hour."""
    rows = [
        {
            "queue": queue.name,
            "worker": worker.id,
            "silent": worker.silent,
            "heard_ms_ago": worker.heard_ms_ago,
            **worker.details,
        }
        for queue in arguments.queues(options)
        for worker in queue.workers()
    ]
    if options.json:
        for row in rows:
            print_json(row)
        return
    if not rows and terminal():
        print(f"No worker is running for {', '.join(arguments.queue_names(options))}.")
        return
    print_table(
        ("queue", "worker", "started", "heard", "holds", "for", "handled", ""),
        [
            (
                row["queue"],
                row["worker"],
                row["started_at"],
                f"{row['heard_ms_ago'] // 1000} s ago",
                row["holds"],
                f"{row['oldest_seconds']} s" if row["holds"] else "",
                row.get("handled"),  # workers of the previous version do not report it
                "silent" if row["silent"] else "" if row["up"] else "down",
            )
            for row in rows
        ],
    )
