"""``doctor``"""

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress

import click
import redis

from ..console import AS_JSON, print_json, shown
from ..doctor import examine
from ..errors import WorkerError, described
from ..findings import Finding, Level, failure, quantity
from ..flow import Flow
from .options import Chosen, FlowsNotNamed, NoSuchQueue, examples, of_flows

STATUS = {Level.OK: 0, Level.WARNING: 1, Level.FAILURE: 2}
COLORS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}


@click.command(
    epilog=examples("""
        doctor
        doctor reminders:flows
        doctor --queue emails                    a queue without a flow
        doctor --all                             what is ok, too
        doctor --json | jq 'select(.level != "ok")'

        exit status: 0 all is well, 1 there are warnings, 2 there are failures""")
)
@of_flows
@AS_JSON
@click.option("--all", "every", is_flag=True, help="list what is ok, too")
def doctor(named: Chosen, *, as_json: bool, every: bool) -> int:
    """Examine Redis, queues, flows and their dependencies, and say what to do next. Changes nothing.

    What is wrong comes last, the worst at the end.
    """
    found: dict[Level, list[Finding]] = {level: [] for level in STATUS}
    for finding in _findings(named):
        found[finding.level].append(finding)
        if as_json:
            print_json(dataclasses.asdict(finding))
    status = max((STATUS[level] for level in STATUS if found[level]), default=0)
    if as_json:
        return status
    for level, findings in found.items():
        for finding in findings if every or level is not Level.OK else ():
            _print(finding)
    oks = f"{len(found[Level.OK])} ok{'' if every else ' (--all lists them)'}"
    warnings = quantity(len(found[Level.WARNING]), "warning")
    failures = quantity(len(found[Level.FAILURE]), "failure")
    click.echo(f"\n{oks}, {warnings}, {failures}")
    return status


def _findings(named: Chosen) -> Iterator[Finding]:
    flows: list[Flow] = []
    try:
        flows = named.flows()
    except (FlowsNotNamed, NoSuchQueue):
        if named.target or not named.queue:
            raise
    except (WorkerError, ValueError) as error:  # such as settings that contradict each other
        advice = (
            "No worker can start until this is fixed. The other checks of the flow were skipped."
        )
        yield failure("flows", described(error), advice)
    if not named.redis_url:
        yield failure("redis.url", "REDIS_URL is not set", "Set it, or pass --redis-url.")
        return
    if named.queue and not flows:
        with suppress(redis.RedisError):  # `examine` finds it, too
            named.queues()  # raises NoSuchQueue
    yield from examine(named.client(), flows, [named.queue] if named.queue else [])


def _print(finding: Finding) -> None:
    """Print a finding, and what to do next below it, folded to the width of a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    level = click.style(f"{finding.level:<8}", fg=COLORS[finding.level])
    head, indent = f"{level} {finding.check:<18} ", " " * 28
    click.echo(click.wrap_text(shown(finding.summary), width, head, indent))
    if finding.advice:
        click.echo(click.wrap_text(f"-> {shown(finding.advice)}", width, indent, indent))
