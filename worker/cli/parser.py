"""The command line: run a worker, watch and repair its queues."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import redis

from ..errors import WorkerError
from ..queue.advice import with_advice
from . import dead, doctor, health, rebuild, run, stats, tasks, upcoming, workers
from .commands import Commands

PACKAGE = (__package__ or "").rpartition(".")[0]
#: The command that is installed with the order service.
COMMAND = "order-timeout"
#: The exit status that shells use for a command that SIGINT ended.
INTERRUPTED = 130

EPILOG = """\
Name the flows once in pyproject.toml, and every command finds them:

  [tool.worker]
  flows = "reminders:flows"

Or pass --flows MODULE:FUNCTION. To select one of their queues, pass --queue NAME. For a queue without a flow,
such as a Consumer's, --queue is enough. REDIS_URL says where Redis is.

examples:
  {prog} run reminders:flows --threads 2
  {prog} doctor                        is everything as it should be?
  {prog} stats --watch                 watch it
  {prog} dead list --older-than 2h     what failed for good, and why
  {prog} stats --json | jq .due        for programs

exit status:
  0    done
  1    not done: Redis does not answer, something you named does not exist, or you answered no
  2    the command line is wrong
  130  ended by Ctrl-C
  doctor: 0 all is well, 1 there are warnings, 2 there are failures
  health: 0 leave the worker alone, 1 restart it, 3 it does not answer
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(argv)
    try:
        status = int(options.command(options) or 0)
        sys.stdout.flush()
        return status
    except (WorkerError, ValueError, argparse.ArgumentTypeError) as error:
        print("worker:", error, *getattr(error, "__notes__", ()), file=sys.stderr)
    except redis.RedisError as error:
        print(f"worker: Redis: {with_advice(error)}", file=sys.stderr)
    except BrokenPipeError:  # the reader has closed the pipe, such as ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return INTERRUPTED
    return 1


def _parser() -> argparse.ArgumentParser:
    prog = COMMAND if Path(sys.argv[0]).name == COMMAND else f"python -m {PACKAGE}"
    parser = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        epilog=EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--redis-url",
        metavar="URL",
        default=os.environ.get("REDIS_URL", ""),
        help="default: the environment variable REDIS_URL",
    )
    commands = Commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    for module in (run, health, stats, upcoming, workers, doctor, dead, tasks, rebuild):
        module.add_to(commands)
    return parser
