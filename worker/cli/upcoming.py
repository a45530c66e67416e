"""``upcoming``"""

import argparse
from datetime import datetime
from typing import NamedTuple

from ..flow import Flow
from ..queue.delay_queue import DelayQueue
from ..runtime.cron import EPOCH, MILLISECOND
from ..runtime.recurring import Recurring
from . import arguments
from .commands import Commands
from .output import print_json, print_table
from .text import duration


class _Upcoming(NamedTuple):
    """A task that is scheduled, or a run of a recurring flow that is only planned so far."""

    id: str
    due_at_ms: int
    is_scheduled: bool


def add_to(commands: Commands) -> None:
    upcoming = commands.add(
        "upcoming",
        _upcoming,
        examples="""
upcoming
upcoming nightly:flows --limit 30        the runs of the next thirty nights
upcoming --queue emails --json | jq .id""",
    )
    upcoming.add_argument(
        "--limit", type=arguments.positive, default=10, help="for each queue (default: 10)"
    )


def _upcoming(options: argparse.Namespace) -> None:
    """List the tasks that are due next, and the next runs of recurring flows.

    A recurring flow's times are in its own time zone, others in this machine's. Of its runs only the next one is
    scheduled; those after it are planned, unless its schedule changes.
    """
    rows = []
    for queue, flow in arguments.queues_and_flows(options):
        now_ms = queue.server_time_ms()
        for each in _next(queue, flow, now_ms, options.limit):
            local, zone = _local(each.due_at_ms, flow)
            state = "scheduled" if each.is_scheduled else "planned"
            if options.json:
                print_json(
                    {
                        "queue": queue.name,
                        "id": each.id,
                        "state": state,
                        "due_at": local and local.isoformat(),
                        "due_at_ms": each.due_at_ms,
                        "timezone": zone,
                    }
                )
            at = local and f"{local:%A} {local.day} {local:%B %Y, %H:%M:%S}, {zone}"
            rows.append((queue.name, each.id, state, _in(each.due_at_ms - now_ms), at))
    if not options.json:
        print_table(("queue", "id", "state", "due", "at"), rows)


def _next(queue: DelayQueue, flow: Flow | None, now_ms: int, limit: int) -> list[_Upcoming]:
    """What is due next, the first one first; as many as ``limit``, or fewer."""
    scheduled = [_Upcoming(*task, is_scheduled=True) for task in queue.upcoming(limit)]
    if not isinstance(flow, Recurring):
        return scheduled
    # What was seeded is scheduled, or was cancelled.
    planned, last_ms = list[_Upcoming](), max(now_ms, queue.last_seeded_ms() or 0)
    while len(planned) < limit:
        run = flow.schedule.after(last_ms)
        planned.append(_Upcoming(*run, is_scheduled=False))
        last_ms = run.due_at_ms
    return sorted(scheduled + planned, key=lambda each: each.due_at_ms)[:limit]


def _local(due_at_ms: int, flow: Flow | None) -> tuple[datetime | None, str | None]:
    """The time and its time zone; None after the year 9999."""
    try:
        if isinstance(flow, Recurring):
            return flow.schedule.local(due_at_ms), flow.schedule.zone.key
        local = (EPOCH + due_at_ms * MILLISECOND).astimezone()
    except OverflowError:
        return None, None
    return local, local.tzname()


def _in(ms: int) -> str:
    return f"in {duration(ms)}" if ms >= 0 else f"{duration(-ms)} ago"
