"""``rebuild``"""

import argparse

from ..findings import quantity
from ..flow import Flow
from ..queue.delay_queue import DelayQueue
from ..runtime import rebuild as engine
from . import arguments
from .commands import Commands
from .output import print_json, progress


def add_to(commands: Commands) -> None:
    rebuild = commands.add(
        "rebuild",
        _rebuild,
        examples="""
rebuild
rebuild --dry-run                how many tasks are missing?
rebuild --flows reminders:flows --queue reminders""",
    )
    rebuild.add_argument("--dry-run", action="store_true", help="only count what is missing")


def _rebuild(options: argparse.Namespace) -> None:
    """Schedule everything that a flow's records list and Redis does not have.

    Use it when Redis came back empty, for example. Workers restore by themselves what is due within the next
    minute; this restores the rest, too. It is safe to run while workers do, and to repeat.
    """
    flows = [flow for flow in arguments.selected_flows(options) if flow.sweep is not None]
    if not flows:
        raise ValueError("none of these flows has a sweep, so there are no records to rebuild from")
    client = arguments.client_of(options)
    for flow in flows:
        _one(options, flow, DelayQueue(client, flow.name))


def _one(options: argparse.Namespace, flow: Flow, queue: DelayQueue) -> None:
    assert flow.sweep is not None
    state = engine.Progress()
    with progress(f"rebuild {flow.name}: records read") as advance:
        for step in engine.rebuild(queue, flow.sweep, look_only=options.dry_run):
            advance(step.read - state.read)
            state = step
    if state.paused:
        raise ValueError(f"{flow.name} is paused: resume it first")
    count = "missing" if options.dry_run else "restored"
    if options.json:
        print_json({"queue": flow.name, "read": state.read, count: state.restored})
    else:
        print(f"{flow.name}: {quantity(state.read, 'record')} read, {state.restored:,} {count}")
