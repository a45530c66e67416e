"""``doctor``"""

import dataclasses
from collections.abc import Iterator
from contextlib import suppress

import click
import redis
from rich.table import Table
from rich.text import Text

from ..console import AS_JSON, print_json, shown, terminal
from ..doctor import examine
from ..errors import WorkerError, described
from ..findings import Finding, Level, failure, quantity
from ..flow import Flow
from .options import Chosen, FlowsNotNamed, NoSuchQueue, examples, of_flows

STATUS = {Level.OK: 0, Level.WARNING: 1, Level.FAILURE: 2}
STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


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
    """Print a finding, and what to do next below it."""
    summary, advice = shown(finding.summary), shown(finding.advice)
    if screen := terminal():
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_column(width=7, no_wrap=True)
        line.add_column(width=18, no_wrap=True)
        line.add_column(overflow="fold")
        body = Text(summary)
        if advice:
            body.append(f"\n→ {advice}", style="italic")
        name = Text(finding.check, style="dim")
        line.add_row(Text(finding.level, style=STYLES[finding.level]), name, body)
        screen.print(line)
        return
    click.echo(f"{finding.level:<8} {finding.check:<18} {summary}")
    if advice:
        click.echo(f"{'':<8} {'':<18} -> {advice}")
