"""``stats``, once or until Ctrl-C"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from typing import Any

import redis

from ..errors import Unavailable
from ..flow import Flow
from ..queue.delay_queue import DelayQueue
from . import arguments
from .commands import Commands
from .output import print_json, print_table, terminal
from .sampling import MINUTES, Sample, Sampler
from .text import Table, bars, duration, shown
from .workers import COLUMNS, cells


def add_to(commands: Commands) -> None:
    _with_watch(
        commands.add(
            "stats",
            _stats,
            examples="""
stats
stats --queue emails
stats --json | jq .due
stats --watch                            Ctrl-C ends it
stats --watch --every 10s > log          a line every ten seconds
stats --watch --count 1 --json           a single sample, for programs""",
        )
    )
    _with_watch(commands.add("monitor", _monitor, examples="monitor is now stats --watch"))


def _with_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="update until Ctrl-C")
    parser.add_argument(
        "--every",
        type=arguments.duration_ms,
        metavar="DURATION",
        help="with --watch: time between updates (1s)",
    )
    parser.add_argument(
        "--count",
        type=arguments.positive,
        metavar="N",
        help="with --watch: stop after N updates",
    )


def _monitor(_options: argparse.Namespace) -> None:
    """Replaced by stats --watch."""
    raise ValueError("monitor is now stats --watch, which takes the same options")


def _stats(options: argparse.Namespace) -> None:
    """Count the tasks that are scheduled, due, leased and dead.

    With --watch, also show what becomes due, what workers do, and how late they are. On a terminal the display
    is redrawn in place; elsewhere each update is a line. Throughput and lateness are those of the last minute
    watched, as workers report them every two seconds. Lateness is rounded up to fixed steps, and a batch counts
    as late as its latest task.
    """
    if options.watch:
        _watch(options)
        return
    if options.every is not None or options.count is not None:
        raise ValueError("--every and --count need --watch")
    rows = [_row(queue, flow) for queue, flow in arguments.queues_and_flows(options)]
    if not options.json and terminal():
        _print_stats(rows)
        return
    for row in rows:
        if options.json:
            print_json(row)
        else:
            print("\n".join(f"{name:>18}  {shown(value)}" for name, value in row.items()))


def _row(queue: DelayQueue, flow: Flow | None) -> dict[str, Any]:
    """A queue's counts; by whom and why it is paused, too, and what else holds its tasks up."""
    row = {"queue": queue.name, **dataclasses.asdict(queue.stats())}
    pause, held = queue.find_pause() if row["paused"] else None, ""
    with suppress(Unavailable):
        held = flow.held() if flow and flow.held else ""
    return row | ({"pause": str(pause)} if pause else {}) | ({"held": held} if held else {})


def _print_stats(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("queue", "scheduled", "due", "in 1 min", "leased", "dead", "next", "oldest"),
        [
            (
                row["queue"] + "".join(f" ({row[why]})" for why in ("pause", "held") if why in row),
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


# -- watching ------------------------------------------------------------------------------


def _watch(options: argparse.Namespace) -> None:
    """Show samples until Ctrl-C. An outage of Redis is an error only for the first."""
    samplers = [Sampler(queue) for queue in arguments.queues(options)]
    samples: list[Sample] = []
    screen = None if options.json else terminal()
    with screen.live() if screen else nullcontext() as draw, suppress(KeyboardInterrupt):
        for n in range(options.count) if options.count else itertools.count():
            if n:
                time.sleep((1000 if options.every is None else options.every) / 1000)
            note, outage = datetime.now().astimezone().strftime("%H:%M:%S"), ""
            try:
                samples = [sampler.sample(time.monotonic()) for sampler in samplers]
            except redis.RedisError as error:
                if n == 0:
                    raise
                outage = f"Redis: {error}"
            if draw:
                draw(_tables(samples), f"{note}  {outage or 'Ctrl-C ends'}")
            elif options.json:
                rows = (
                    [{"error": f"{note}  {outage}"}] if outage else [each.row() for each in samples]
                )
                print(*map(json.dumps, rows), sep="\n", flush=True)
            else:
                for words in [[outage]] if outage else map(_words, samples):
                    print(note, *words, sep="  ", flush=True)


def _words(sample: Sample) -> list[str]:
    return [sample.queue, *(f"{name} {value}" for name, value in sample.facts().items())]


def _tables(samples: Sequence[Sample]) -> list[Table]:
    """The facts with a column for each queue, what becomes due, and the workers."""
    facts = zip(*(sample.facts().items() for sample in samples), strict=True)
    workers = [cells(sample.queue, worker) for sample in samples for worker in sample.workers]
    return [
        Table(
            ("", *(sample.queue for sample in samples)),
            [(row[0][0], *(value for _, value in row)) for row in facts],
        ),
        Table(
            ("queue", f"become due in each of the next {MINUTES} minutes", "most"),
            [(sample.queue, bars(sample.per_minute), max(sample.per_minute)) for sample in samples],
        ),
        Table(COLUMNS, workers)
        if workers
        else Table(("No worker is running: no task is handled.",), []),
    ]
