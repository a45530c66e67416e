"""``doctor``"""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterator

from ..doctor import examine
from ..errors import FATAL, described
from ..findings import Finding, Level, failure, quantity
from ..flow import Flow
from . import arguments
from .commands import Commands
from .output import print_json, terminal
from .text import shown

STATUS = {Level.OK: 0, Level.WARNING: 1, Level.FAILURE: 2}


def add_to(commands: Commands) -> None:
    commands.add(
        "doctor",
        _doctor,
        examples="""
doctor
doctor reminders:flows
doctor --queue emails                    a queue without a flow
doctor --json | jq 'select(.level != "ok")'

exit status: 0 all is well, 1 there are warnings, 2 there are failures""",
    )


def _doctor(options: argparse.Namespace) -> int:
    """Examine Redis, queues, flows and their dependencies, and say what to do next. Changes nothing."""
    levels: Counter[Level] = Counter()
    for finding in _findings(options):
        levels[finding.level] += 1
        _print(options, finding)
    worst = max(levels, key=lambda level: STATUS[level], default=Level.OK)
    if not options.json:
        warnings = quantity(levels[Level.WARNING], "warning")
        failures = quantity(levels[Level.FAILURE], "failure")
        print(f"\n{levels[Level.OK]} ok, {warnings}, {failures}")
    return STATUS[worst]


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    names = [options.queue] if options.queue else []
    flows: list[Flow] = []
    try:
        flows = arguments.selected_flows(options)
    except (arguments.FlowsNotNamed, arguments.NoSuchQueue):
        if not names or arguments.named_flows(options):
            raise
    except FATAL:
        raise
    except BaseException as error:  # noqa: BLE001  such as settings that contradict each other
        advice = (
            "No worker can start until this is fixed. The other checks of the flow were skipped."
        )
        yield failure("flows", described(error), advice)
    if not options.redis_url:
        yield failure("redis.url", "REDIS_URL is not set", "Set it, or pass --redis-url.")
        return
    yield from examine(arguments.client_of(options), flows, names)


def _print(options: argparse.Namespace, finding: Finding) -> None:
    if options.json:
        print_json(dataclasses.asdict(finding))
    elif screen := terminal():
        screen.finding(finding)
    else:
        print(f"{finding.level:<8} {finding.check:<18} {shown(finding.summary)}", flush=True)
        if finding.advice:
            print(f"{'':<8} {'':<18} -> {shown(finding.advice)}", flush=True)
