"""``monitor``"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

import redis

from . import arguments
from .commands import Commands
from .output import print_json, terminal
from .watching import Sample, Watch


def add_to(commands: Commands) -> None:
    monitor = commands.add(
        "monitor",
        _monitor,
        examples="""
monitor                          Ctrl-C ends it
monitor --every 10s > log        a line every ten seconds
monitor --count 1 --json         a single sample, for programs""",
    )
    monitor.add_argument(
        "--every",
        type=arguments.duration_ms,
        default=1000,
        metavar="DURATION",
        help="time between updates (1s)",
    )
    monitor.add_argument(
        "--count", type=arguments.positive, metavar="N", help="stop after N updates"
    )


def _monitor(options: argparse.Namespace) -> None:
    """Watch queues: what is scheduled, what becomes due, what workers do, and how late they are.

    On a terminal the display is redrawn in place; elsewhere each update is a line. Throughput and lateness
    are those of the last minute watched, as workers report them every two seconds. Lateness is rounded up to
    fixed steps, and a batch counts as late as its latest task.
    """
    watches = [Watch(queue) for queue in arguments.queues(options)]
    looks = range(options.count) if options.count else itertools.count()
    with _screen(as_json=options.json) as show, suppress(KeyboardInterrupt):
        for n in looks:
            if n:
                time.sleep(options.every / 1000)
            _look(watches, show, must_answer=n == 0)


Show = Callable[[Sequence[Sample], str], None]


def _look(watches: Sequence[Watch], show: Show, *, must_answer: bool) -> None:
    """Take a sample and show it. An outage of Redis is an error only if ``must_answer``."""
    at = datetime.now().astimezone().strftime("%H:%M:%S")
    try:
        samples = [watch.look(time.monotonic()) for watch in watches]
    except redis.RedisError as error:
        if must_answer:
            raise
        show([], f"{at}  Redis: {error}")
    else:
        show(samples, at)


@contextmanager
def _screen(*, as_json: bool) -> Iterator[Show]:
    if not as_json and (screen := terminal()):
        last: list[str] = []

        with screen.live() as draw:

            def show(samples: Sequence[Sample], note: str) -> None:
                last[:] = [sample.line() for sample in samples] or [note]
                draw(samples, f"{note}   Ctrl-C ends")

            yield show
        print(*last, sep="\n")  # the live screen is gone, but the last sample stays
        return
    yield _show_json if as_json else _show_lines


def _show_json(samples: Sequence[Sample], note: str) -> None:
    for sample in samples:
        print_json(sample.row())
    if not samples:
        print_json({"error": note})


def _show_lines(samples: Sequence[Sample], note: str) -> None:
    for sample in samples:
        print(note, sample.line(), sep="  ", flush=True)
    if not samples:
        print(note, flush=True)
