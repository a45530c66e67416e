"""``stats``, once or until Ctrl-C, ``upcoming`` and ``workers``"""

import dataclasses
import itertools
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import Any

import click
import redis
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ..console import AS_JSON, DURATION, duration, print_json, print_table, shown, table, terminal
from ..errors import Unavailable
from ..flow import Flow
from ..queue.delay_queue import DelayQueue
from ..queue.replies import WorkerStatus
from ..runtime.cron import EPOCH, MILLISECOND
from ..runtime.recurring import Recurring
from .options import Chosen, examples, of_flows
from .sampling import MINUTES, Sample, Sampler

#: Eighths of a character, from the bottom.
BLOCKS = " ▁▂▃▄▅▆▇█"


@click.command(
    epilog=examples("""
        stats
        stats --queue emails
        stats --json | jq .due
        stats --watch                            Ctrl-C ends it
        stats --watch --every 10s > log          a line every ten seconds
        stats --watch --count 1 --json           a single sample, for programs""")
)
@of_flows
@AS_JSON
@click.option("--watch", is_flag=True, help="update until Ctrl-C")
@click.option("--every", type=DURATION, help="with --watch: time between updates (1s)")
@click.option(
    "--count", type=click.IntRange(1), metavar="N", help="with --watch: stop after N updates"
)
def stats(
    named: Chosen, *, as_json: bool, watch: bool, every: int | None, count: int | None
) -> None:
    """Count the tasks that are scheduled, due, leased and dead.

    With --watch, also show what becomes due, what workers do, and how late they are. On a terminal the display
    is redrawn in place; elsewhere each update is a line. Throughput and lateness are those of the last minute
    watched, as workers report them every two seconds. Lateness is rounded up to fixed steps, and a batch counts
    as late as its latest task.
    """
    if watch:
        _watch(named.queues(), 1000 if every is None else every, count, as_json=as_json)
        return
    if every is not None or count is not None:
        raise ValueError("--every and --count need --watch")
    rows = [_counts(queue, flow) for queue, flow in named.queues_and_flows()]
    if not as_json and terminal():
        _print_counts(rows)
        return
    for row in rows:
        if as_json:
            print_json(row)
        else:
            click.echo("\n".join(f"{name:>18}  {shown(value)}" for name, value in row.items()))


def _counts(queue: DelayQueue, flow: Flow | None) -> dict[str, Any]:
    """A queue's counts; by whom and why it is paused, too, and what else holds its tasks up."""
    row = {"queue": queue.name, **dataclasses.asdict(queue.stats())}
    pause, held = queue.find_pause() if row["paused"] else None, ""
    with suppress(Unavailable):
        held = flow.held() if flow and flow.held else ""
    return row | ({"pause": str(pause)} if pause else {}) | ({"held": held} if held else {})


def _print_counts(rows: list[dict[str, Any]]) -> None:
    counts = ("scheduled", "due", "due_within_minute", "leased", "dead")
    print_table(
        ("queue", "scheduled", "due", "in 1 min", "leased", "dead", "next", "oldest"),
        [
            (
                row["queue"] + "".join(f" ({row[why]})" for why in ("pause", "held") if why in row),
                *(row[name] for name in counts),
                "now" if row["due"] else _in(row["next_due_in_ms"]),
                duration(row["oldest_due_age_ms"]) if row["due"] else None,
            )
            for row in rows
        ],
    )


def _in(ms: int | None) -> str | None:
    if ms is None:
        return None
    return f"in {duration(ms)}" if ms >= 0 else f"{duration(-ms)} ago"


# -- watching ------------------------------------------------------------------------------


def _watch(
    queues: Sequence[DelayQueue], every_ms: int, count: int | None, *, as_json: bool
) -> None:
    """Show samples until Ctrl-C. An outage of Redis is an error only for the first."""
    samplers = [Sampler(queue) for queue in queues]
    samples: list[Sample] = []
    screen = None if as_json else terminal()
    live = Live(console=screen, auto_refresh=False) if screen else nullcontext()
    with live as drawn, suppress(KeyboardInterrupt):
        for n in range(count) if count else itertools.count():
            if n:
                time.sleep(every_ms / 1000)
            at, outage = datetime.now().astimezone().strftime("%H:%M:%S"), ""
            try:
                samples = [sampler.sample(time.monotonic()) for sampler in samplers]
            except redis.RedisError as error:
                if n == 0:
                    raise
                outage = f"Redis: {error}"
            if drawn:
                note = Text(f"{at}  {outage or 'Ctrl-C ends'}", style="dim")
                drawn.update(Group(*_tables(samples), note), refresh=True)
            elif as_json:
                failed = {"error": f"{at}  {outage}"}
                for row in [failed] if outage else [sample.row() for sample in samples]:
                    print_json(row)
            else:
                for line in [outage] if outage else [sample.line() for sample in samples]:
                    click.echo(f"{at}  {line}")


def _tables(samples: Sequence[Sample]) -> list[Any]:
    """The facts with a column for each queue, what becomes due, and the workers."""
    facts = zip(*(sample.facts().items() for sample in samples), strict=True)
    workers = [_cells(sample.queue, worker) for sample in samples for worker in sample.workers]
    return [
        table(
            ("", *(sample.queue for sample in samples)),
            [(row[0][0], *(value for _, value in row)) for row in facts],
        ),
        table(
            ("queue", f"become due in each of the next {MINUTES} minutes", "most"),
            [(sample.queue, bars(sample.per_minute), max(sample.per_minute)) for sample in samples],
        ),
        table(COLUMNS, workers) if workers else Text("No worker is running: no task is handled.\n"),
    ]


def bars(counts: Sequence[int]) -> str:
    """A bar for each count. Even a 1 is visible beside a million."""
    most = max(counts, default=0)
    return "".join(BLOCKS[-(-8 * count // most) if count else 0] for count in counts)


# -- workers -------------------------------------------------------------------------------

COLUMNS = ("queue", "worker", "started", "heard", "holds", "for", "handled", "")


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
        row.get("handled"),  # workers of the previous version do not report it
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
