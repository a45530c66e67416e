"""``replay``"""

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..watch.history import Line, histories, read
from .commands import Commands
from .text import shown


def add_to(commands: Commands) -> None:
    replay = commands.add(
        "replay",
        _replay,
        json=False,
        of_queues=False,
        examples="""
replay worker-1.log worker-2.log api.log          is there a task to which something happened that must not?
replay --task 01a203d8-dee4-7151-a67b-97ec331c65ab worker-*.log
docker compose logs --no-log-prefix worker | order-timeout replay -""",
    )
    replay.add_argument("logs", nargs="+", metavar="LOG", help="JSON lines; - is standard input")
    replay.add_argument("--task", metavar="ID", help="print all that happened to it")
    replay.add_argument("-q", "--queue", metavar="NAME", help="only this queue")


def _replay(options: argparse.Namespace) -> int:
    """Print what happened to a task, from logs at LOG_LEVEL=debug, and the first line that must not have happened.

    Without --task, print that of each task that has such a line. Give the logs of all processes that used the queue:
    what is not in them looks as if it had not happened.
    """
    names: dict[str, str] = {}
    found = [line for name in options.logs for line in _lines(name, names, options)]
    if not any(line.judged for line in found):
        raise ValueError("these logs have no calls of it: they are logged at LOG_LEVEL=debug")
    tasks = [*histories(found)]
    wrong = 0
    for queue, history in tasks:
        is_wrong = any(why for _, why in history)
        wrong += is_wrong
        if options.task or is_wrong:
            _print(queue, history)
    print(f"{len(tasks)} tasks, {wrong} with a line that must not have happened")
    return int(wrong > 0)


def _lines(name: str, names: dict[str, str], options: argparse.Namespace) -> Iterator[Line]:
    try:
        with (
            io.TextIOWrapper(sys.stdin.buffer, errors="replace")
            if name == "-"
            else Path(name).open(errors="replace")
        ) as lines:
            for line in read(lines, names):
                if line.queue in ("", options.queue or line.queue) and (
                    line.task in ("", options.task or line.task)
                ):
                    yield line
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error


def _print(queue: str, history: Sequence[tuple[Line, str]]) -> None:
    print(f"{shown(queue)}:")
    for line, why in history:
        if line.task:
            print(f"  {shown(line)}")
        if why:
            print(f"    must not have happened: {shown(why)}")
