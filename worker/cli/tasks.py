"""``schedule``, ``run-now``, ``cancel``, ``pause`` and ``resume``"""

import getpass
import os
import socket
from contextlib import suppress
from datetime import datetime

import click

from ..console import AS_JSON, DURATION, print_json, shown
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Cancelled, Scheduled
from ..runtime import pauses
from ..runtime.recurring import Recurring
from .options import Chosen, examples, of_flows, of_ids, warn


def moment(_context: object, _parameter: object, text: str | None) -> datetime | None:
    """A time of ISO 8601 with a time zone."""
    if text is None:
        return None
    with suppress(ValueError):
        if (at := datetime.fromisoformat(text)).tzinfo:
            return at
    raise click.BadParameter(
        f"{text!r} is not a time with a time zone, such as 2026-11-22T02:00:00+01:00"
    )


@click.command(
    epilog=examples("""
        schedule order-7 --in 0s                             as soon as a worker is free
        schedule visit-7 --queue reminders --in 1d12h --payload 'Ada ada@example.org'
        schedule visit-7 --queue reminders --at 2026-11-22T09:00:00+01:00""")
)
@of_ids()
@AS_JSON
@click.option(
    "--in", "delay_ms", type=DURATION, help="from now, by Redis's clock: 90s, 30m, 2h, 1d"
)
@click.option(
    "--at",
    "due_at",
    callback=moment,
    metavar="TIME",
    help="with a time zone: 2026-11-22T09:00:00+01:00",
)
@click.option(
    "--payload",
    default="",
    metavar="TEXT",
    help="replaces the payload of a task that is moved",
)
def schedule(
    named: Chosen,
    *,
    ids: tuple[str, ...],
    as_json: bool,
    delay_ms: int | None,
    due_at: datetime | None,
    payload: str,
) -> int:
    """Schedule tasks. A known id moves to the new time. A dead task stays dead: see dead requeue."""
    if (delay_ms is None) == (due_at is None):
        raise click.UsageError("Pass either --in or --at.")
    queue = named.only_queue()
    answers: list[str] = []
    for task_id in ids:
        answer = queue.schedule(
            task_id,
            round(due_at.timestamp() * 1000) if due_at else None,
            os.fsencode(payload),  # as the shell gave it
            delay_ms=delay_ms,
        )
        answers.append(answer)
        _print(queue, task_id, answer, as_json=as_json)
    return int(Scheduled.DEAD in answers)


@click.command("run-now", epilog=examples("run-now\nrun-now nightly:flows --queue report"))
@of_flows
@AS_JSON
def run_now(named: Chosen, *, as_json: bool) -> None:
    """Run a recurring flow once more, as soon as a worker is free. The runs on its schedule take place as well."""
    flows = [flow for flow in named.flows() if isinstance(flow, Recurring)]
    if not flows:
        raise ValueError("none of these flows is recurring: use schedule ID --in 0s")
    if len(flows) > 1:
        raise ValueError("several of these flows are recurring: name one with --queue")
    queue = DelayQueue(named.client(), flows[0].name)
    run = flows[0].extra_run(queue.server_time_ms())
    _print(queue, run.id, queue.schedule(run.id, run.due_at_ms), as_json=as_json)


@click.command(epilog=examples("cancel order-7\ncancel visit-7 --queue reminders"))
@of_ids()
@AS_JSON
def cancel(named: Chosen, *, ids: tuple[str, ...], as_json: bool) -> int:
    """Take tasks off the schedule. A task that a worker holds may still be done, but is not put back."""
    queue = named.only_queue()
    answers = queue.cancel_many(ids)
    for task_id, answer in zip(ids, answers, strict=True):
        _print(queue, task_id, answer, as_json=as_json)
    return int(not {*answers} <= {Cancelled.REMOVED, Cancelled.CANCELLING})


def _print(queue: DelayQueue, task_id: str, answer: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue.name, "id": task_id, "result": str(answer)})
    else:
        click.echo(f"{shown(task_id)}  {answer}")


@click.command(epilog=examples("pause --reason 'restoring the backup'\npause --queue emails"))
@of_flows
@AS_JSON
@click.option("--reason", default="", metavar="TEXT", help="why; stats and doctor show it")
@click.option("--by", default="", metavar="NAME", help="who; default: user@host")
def pause(named: Chosen, *, as_json: bool, reason: str, by: str) -> None:
    """Stop claims and sweeps in every worker until resume.

    If a flow's records keep the pause, it takes effect within a second, and holds whatever happens to Redis.
    """
    for queue, flow in named.queues_and_flows():
        kept = flow.pauses if flow else None
        who = by or (_user() if kept or reason else "")
        pauses.pause(queue, kept, reason=reason, by=who)
        if flow and flow.sweep and not kept:
            warn("the pause is in Redis only, and ends if Redis loses it: see Flow.pauses")
        _print_paused(queue, paused=True, as_json=as_json)


@click.command(epilog=examples("resume\nresume --queue emails"))
@of_flows
@AS_JSON
def resume(named: Chosen, *, as_json: bool) -> None:
    """End a pause."""
    for queue, flow in named.queues_and_flows():
        pauses.resume(queue, flow.pauses if flow else None)
        _print_paused(queue, paused=False, as_json=as_json)


def _print_paused(queue: DelayQueue, *, paused: bool, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue.name, "paused": paused})
    else:
        click.echo(f"{queue.name} is {'paused' if paused else 'running'}")


def _user() -> str:
    """Who types this command."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user may have no name
        return socket.gethostname()
