"""The command line: run a worker, watch and repair its queues."""

import os
from collections.abc import Sequence

import click
import redis

from ..errors import WorkerError
from ..queue.advice import redis_advice
from .dead import dead
from .doctor import doctor
from .run import health, run
from .stats import stats, workers
from .tasks import cancel, pause, resume, run_now, schedule

#: The exit status that shells use for a command that SIGINT ended.
INTERRUPTED = 130

EPILOG = """\
\b
Name the flows once in pyproject.toml, and every command finds them:

\b
  [tool.worker]
  flows = "reminders:flows"

Or pass --flows MODULE:FUNCTION. To select one of their queues, pass --queue NAME. For a queue without a flow,
such as a Consumer's, --queue is enough. REDIS_URL says where Redis is.

\b
examples:
  run reminders:flows --threads 2
  doctor                        is everything as it should be?
  stats --watch                 watch it
  dead list --older-than 2h     what failed for good, and why
  stats --json | jq .due        for programs

\b
exit status:
  0    done
  1    not done: Redis does not answer, something you named does not exist,
       or you answered no
  2    the command line is wrong
  130  ended by Ctrl-C
  doctor: 0 all is well, 1 there are warnings, 2 there are failures
  health: 0 leave the worker alone, 1 restart it, 3 it does not answer
"""


@click.group(help=__doc__, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    pass


for command in (
    *(run, health, stats, workers, doctor, dead),
    *(schedule, run_now, cancel, pause, resume),
):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    color = False if os.environ.get("NO_COLOR") else None  # https://no-color.org
    try:
        return int(cli.main(argv, standalone_mode=False, color=color) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except (WorkerError, ValueError, OSError) as error:
        told = str(error)
    except redis.RedisError as error:
        told = f"Redis: {error}: {redis_advice(error)}".removesuffix(": ")
    click.echo(f"worker: {told}", err=True)
    return 1
