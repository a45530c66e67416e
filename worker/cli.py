"""Run a worker, inspect its queues, and repair them."""

import argparse
import dataclasses
import json
import os
import signal
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import redis

from .connection import connect
from .errors import FlowImportFailed, FlowNotFound, WorkerError, described
from .flow import Flow
from .logs import configure_logging, visible
from .queue import DelayQueue, Letter
from .worker import Worker

#: A worker beats every 20 s; one that missed two beats has died or cannot reach Redis.
SILENT_MS = 45_000


class FlowsNotNamed(FlowNotFound):
    """No flows were named, and none are configured."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        return int(options.command(options) or 0)
    except (WorkerError, ValueError) as error:
        print(f"worker: {error}", file=sys.stderr)
    except redis.RedisError as error:
        print(f"worker: Redis: {error}", file=sys.stderr)
    return 1


FLOWS: Any = {
    "metavar": "MODULE:FACTORY",
    "help": "a function that returns flows; default: tool.worker.flows in pyproject.toml",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description=__doc__)
    parser.add_argument(
        "--redis-url",
        default=os.environ.get("REDIS_URL", ""),
        help="default: the environment variable REDIS_URL",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int | None],
        within: "argparse._SubParsersAction[argparse.ArgumentParser]" = commands,
    ) -> argparse.ArgumentParser:
        sub = within.add_parser(name, help=run.__doc__, description=run.__doc__)
        sub.set_defaults(command=run)
        return sub

    def target(sub: argparse.ArgumentParser, *, queues: bool = True) -> None:
        sub.add_argument("flows", nargs="?", **FLOWS)
        named(sub, queues=queues)

    def named(sub: argparse.ArgumentParser, *, queues: bool = True) -> None:
        sub.add_argument("--flows", dest="flows_option", **FLOWS)
        if queues:
            sub.add_argument("--queue", metavar="NAME", help="only this queue")

    run = command("run", _run)
    target(run, queues=False)
    run.add_argument(
        "--threads",
        type=_positive,
        default=1,
        help="per flow that does not set its own (default: 1)",
    )

    for shown, each in (
        (command("stats", _stats), "queue"),
        (command("workers", _workers), "worker"),
    ):
        target(shown)
        shown.add_argument("--json", action="store_true", help=f"print one JSON object per {each}")

    dead = commands.add_parser("dead", help="List, requeue or purge dead letters.")
    on_dead = dead.add_subparsers(required=True, metavar="COMMAND")
    listing = command("list", _dead_list, on_dead)
    target(listing)
    listing.add_argument("--limit", type=_positive, default=100, help="how many (100)")
    listing.add_argument("--json", action="store_true", help="print one JSON object per letter")
    for name, action in (("requeue", _dead_requeue), ("purge", _dead_purge)):
        sub = command(name, action, on_dead)
        sub.add_argument("ids", nargs="*", metavar="ID")
        sub.add_argument("--all", action="store_true", help="all dead letters there are now")
        named(sub)

    target(command("pause", _pause))
    target(command("resume", _resume))
    return parser


def _run(options: argparse.Namespace) -> None:
    """Run the tasks of some flows until SIGTERM or SIGINT."""
    configure_logging(os.environ.get("LOG_LEVEL", ""))
    worker = Worker(_flows(options), _redis_url(options), threads=options.threads)

    def stop(*_: object) -> None:
        for again in (signal.SIGTERM, signal.SIGINT):
            signal.signal(again, signal.SIG_DFL)  # a second signal does not wait
        worker.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # On a thread of its own: the main thread, which the signals interrupt, then never holds a
    # lock that stop() needs.
    with ThreadPoolExecutor(1) as runner:
        end = runner.submit(worker.run)
        # A signal that comes as the main thread is about to wait is handled only after that wait.
        while not wait([end], timeout=1.0).done:
            pass
        try:
            end.result()
        except SystemExit as error:  # an unrequested exit is a failure, whatever its status
            raise WorkerError(f"One of its threads ended it: {described(error)}") from error


def _stats(options: argparse.Namespace) -> None:
    """Count the tasks that are scheduled, due, leased and dead."""
    rows = [
        {"queue": queue.name, **dataclasses.asdict(queue.stats())} for queue in _queues(options)
    ]
    for row in rows:
        if options.json:
            print(json.dumps(row))
        else:
            print("\n".join(f"{name:>18}  {_shown(value)}" for name, value in row.items()))


def _workers(options: argparse.Namespace) -> None:
    """List live workers, and those that fell silent within the last hour."""
    rows = [
        {
            "queue": queue.name,
            "worker": worker.id,
            "silent": worker.heard_ms_ago > SILENT_MS,
            "heard_ms_ago": worker.heard_ms_ago,
            **worker.details,
        }
        for queue in _queues(options)
        for worker in queue.workers()
    ]
    if options.json:
        for row in rows:
            print(json.dumps(row))
        return
    table = [("QUEUE", "WORKER", "STARTED", "HEARD", "HOLDS", "FOR", "")]
    for row in rows:
        down = "" if row["up"] else "down"
        table.append(
            (
                row["queue"],
                row["worker"],
                row["started_at"],
                f"{row['heard_ms_ago'] // 1000} s ago",
                f"{row['holds']}",
                f"{row['oldest_seconds']} s" if row["holds"] else "",
                "silent" if row["silent"] else down,
            )
        )
    widths = [max(len(_shown(cell)) for cell in column) for column in zip(*table, strict=True)]
    for line in table:
        cells = (_shown(cell).ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _dead_list(options: argparse.Namespace) -> None:
    """Show dead letters, newest first."""
    for queue in _queues(options):
        for letter in queue.dead(options.limit):
            row = _row(queue.name, letter)
            if options.json:
                print(json.dumps(row))
            else:
                row.pop("traceback", None)  # too long for a line; --json shows it
                print("  ".join(f"{name}={_shown(value)}" for name, value in row.items()))


def _row(queue: str, letter: Letter) -> dict[str, object]:
    payload = letter.payload[:1000].decode(errors="backslashreplace")
    return {"queue": queue, "id": letter.id, **letter.story, "payload": payload}


def _dead_requeue(options: argparse.Namespace) -> int:
    """Schedule dead letters again, due now, their counts reset."""
    return _on_dead(options, "requeued", lambda queue, ids: queue.requeue(ids))


def _dead_purge(options: argparse.Namespace) -> int:
    """Delete dead letters for good."""
    return _on_dead(options, "purged", lambda queue, ids: queue.purge(ids))


def _on_dead(
    options: argparse.Namespace,
    verb: str,
    action: Callable[[DelayQueue, Iterable[str]], list[str]],
) -> int:
    if bool(options.ids) == options.all:
        raise ValueError("name the ids or pass --all, not both")
    done = 0
    for queue in _queues(options):  # an id is looked for in each
        slices = queue.dead_ids() if options.all else iter([options.ids])
        done += sum(len(action(queue, ids)) for ids in slices)
    print(f"{verb} {done}")
    return 0 if options.all or done == len(options.ids) else 1


def _pause(options: argparse.Namespace) -> None:
    """Stop claims and sweeps in every worker until resume."""
    for queue in _queues(options):
        queue.pause()


def _resume(options: argparse.Namespace) -> None:
    """End a pause."""
    for queue in _queues(options):
        queue.resume()


def _queues(options: argparse.Namespace) -> list[DelayQueue]:
    """The queues of the flows, or only the one named, which needs no flows if none are configured."""
    client = connect(_redis_url(options))
    try:
        names = [flow.name for flow in _flows(options)]
    except FlowsNotNamed as error:
        if options.queue is None:
            detail = "Name them with --flows MODULE:FACTORY, or a queue with --queue."
            raise FlowsNotNamed(detail) from error
        names = [options.queue]
    if options.queue not in (None, *names):
        raise ValueError(f"no queue {options.queue!r}: the flows have {', '.join(names)}")
    return [DelayQueue(client, name) for name in names if options.queue in (None, name)]


def _flows(options: argparse.Namespace) -> list[Flow]:
    target = options.flows_option or getattr(options, "flows", None) or _configured()
    sys.path.insert(0, "")  # as python -m does for its own module
    try:
        factory = getattr(_imported(target), target.partition(":")[2] or "flows")
    except AttributeError as error:
        raise FlowNotFound(f"{target}: {error}") from error
    flows = list(factory())
    if not flows or not all(isinstance(flow, Flow) for flow in flows):
        raise FlowNotFound(f"{target}() returned no flows")
    return flows


def _imported(target: str) -> ModuleType:
    module = target.partition(":")[0]
    try:
        return import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise FlowNotFound(f"{target}: {error}") from error
        # The application's code may fail in any way: say where.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}, line {frame.lineno}"
        if isinstance(error, SyntaxError):
            where = f"{error.filename}, line {error.lineno}"
        raise FlowImportFailed(f"{where}: {described(error)}") from error


def _configured() -> str:
    try:
        settings = tomllib.loads(Path("pyproject.toml").read_text())
        return str(settings["tool"]["worker"]["flows"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise FlowsNotNamed("Name them, as MODULE:FACTORY.") from error


def _redis_url(options: argparse.Namespace) -> str:
    if not options.redis_url:
        raise ValueError("REDIS_URL is not set")
    return str(options.redis_url)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _shown(value: object) -> str:
    """For a terminal: what others wrote must not move its cursor."""
    if value is None:
        return "-"
    return visible(str(value))
