"""``schedule``, ``run-now``, ``cancel``, ``pause`` and ``resume``"""

import argparse
import getpass
import os
import socket
import sys
from contextlib import suppress

import redis

from ..errors import WorkerError
from ..flow import Flow
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Cancelled, Scheduled
from ..runtime import pauses
from ..runtime.recurring import Recurring
from . import arguments
from .commands import Commands
from .output import print_json
from .text import shown


def add_to(commands: Commands) -> None:
    schedule = commands.add(
        "schedule",
        _schedule,
        ids=True,
        examples="""
schedule order-7 --in 0s                             as soon as a worker is free
schedule visit-7 --queue reminders --in 1d12h --payload 'Ada ada@example.org'
schedule visit-7 --queue reminders --at 2026-11-22T09:00:00+01:00 --if-absent""",
    )
    schedule.add_argument("ids", nargs="+", metavar="ID")
    when = schedule.add_mutually_exclusive_group(required=True)
    when.add_argument(
        "--in",
        dest="delay_ms",
        type=arguments.duration_ms,
        metavar="DURATION",
        help="from now, by Redis's clock: 90s, 30m, 2h, 1d",
    )
    when.add_argument(
        "--at",
        dest="due_at_ms",
        type=arguments.moment_ms,
        metavar="TIME",
        help="RFC 3339 with a time zone, or milliseconds since the epoch",
    )
    schedule.add_argument(
        "--payload", default="", metavar="TEXT", help="replaces the payload of a task that is moved"
    )
    schedule.add_argument(
        "--if-absent", action="store_true", help="leave a task that is already scheduled as it is"
    )
    commands.add("run-now", _run_now, examples="run-now\nrun-now nightly:flows --queue report")
    cancel = commands.add(
        "cancel", _cancel, ids=True, examples="cancel order-7\ncancel visit-7 --queue reminders"
    )
    cancel.add_argument("ids", nargs="+", metavar="ID")
    pause = commands.add(
        "pause", _pause, examples="pause --reason 'restoring the backup'\npause --queue emails"
    )
    pause.add_argument("--reason", default="", metavar="TEXT", help="why; stats and doctor show it")
    pause.add_argument("--by", default="", metavar="NAME", help="who; default: user@host")
    commands.add("resume", _resume, examples="resume\nresume --queue emails")


def _schedule(options: argparse.Namespace) -> int:
    """Schedule tasks. A known id moves to the new time. A dead task stays dead: see dead requeue."""
    queue, flow = arguments.queue_and_flow(options)
    payload = os.fsencode(options.payload)  # as the shell gave it
    answers: list[str] = []
    for task_id in options.ids:
        answer = queue.schedule(
            task_id,
            options.due_at_ms,
            payload,
            delay_ms=options.delay_ms,
            only_if_absent=options.if_absent,
        )
        answers.append(answer)
        _print(options, queue, task_id, answer)
    _warn_unless_served(queue, flow)
    return int(Scheduled.DEAD in answers)


def _run_now(options: argparse.Namespace) -> None:
    """Run a recurring flow once more, as soon as a worker is free. The runs on its schedule take place as well."""
    flows = [flow for flow in arguments.selected_flows(options) if isinstance(flow, Recurring)]
    if not flows:
        raise ValueError("none of these flows is recurring: use schedule ID --in 0s")
    if len(flows) > 1:
        raise ValueError("several of these flows are recurring: name one with --queue")
    queue = DelayQueue(arguments.client_of(options), flows[0].name)
    run = flows[0].extra_run(queue.server_time_ms())
    _print(options, queue, run.id, queue.schedule(run.id, run.due_at_ms))


def _cancel(options: argparse.Namespace) -> int:
    """Take tasks off the schedule. A task that a worker holds may still be done, but is not put back."""
    queue, _ = arguments.queue_and_flow(options)
    answers = queue.cancel_many(options.ids)
    for task_id, answer in zip(options.ids, answers, strict=True):
        _print(options, queue, task_id, answer)
    return int(not {*answers} <= {Cancelled.REMOVED, Cancelled.CANCELLING})


def _print(options: argparse.Namespace, queue: DelayQueue, task_id: str, answer: str) -> None:
    if options.json:
        print_json({"queue": queue.name, "id": task_id, "result": str(answer)})
    else:
        print(f"{shown(task_id)}  {answer}")


def _pause(options: argparse.Namespace) -> None:
    """Stop claims and sweeps in every worker until resume.

    If a flow's records keep the pause, it holds whatever happens to Redis, even if Redis does not answer.
    """
    for queue, flow in _told(options):
        kept = flow.pauses if flow else None
        by = options.by or (_user() if kept or options.reason else "")
        pauses.pause(queue, kept, reason=options.reason, by=by)
        if flow and flow.sweep and not kept:
            _warn("the pause is in Redis only, and ends if Redis loses it: see Flow.pauses")
        _print_paused(options, queue, flow, paused=True)


def _resume(options: argparse.Namespace) -> None:
    """End a pause."""
    for queue, flow in _told(options):
        pauses.resume(queue, flow.pauses if flow else None)
        _print_paused(options, queue, flow, paused=False)


def _told(options: argparse.Namespace) -> list[tuple[DelayQueue, Flow | None]]:
    """The queues and flows. Warns of a flow that cannot be loaded: it may keep its pauses elsewhere, too."""
    found = arguments.queues_and_flows(options)
    if found[0][1] is None:
        try:
            arguments.selected_flows(options)
        except (arguments.FlowsNotNamed, arguments.NoSuchQueue):
            pass
        except (WorkerError, ValueError) as error:
            _warn(f"only Redis was told, because the flows could not be loaded: {error}")
    return found


def _print_paused(
    options: argparse.Namespace, queue: DelayQueue, flow: Flow | None, *, paused: bool
) -> None:
    if options.json:
        print_json({"queue": queue.name, "paused": paused})
    else:
        print(f"{queue.name} is {'paused' if paused else 'running'}")
    with suppress(redis.RedisError):
        _warn_unless_served(queue, flow)


def _user() -> str:
    """Who types this command."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user may have no name
        return socket.gethostname()


def _warn_unless_served(queue: DelayQueue, flow: Flow | None) -> None:
    """A misspelled name is another queue, which nobody serves."""
    if flow is None and all(worker.silent for worker in queue.workers()):
        _warn(
            f"no worker serves the queue {queue.name}, and no configured flow has this name. "
            "Only a Consumer would take its tasks."
        )


def _warn(text: str) -> None:
    print(f"worker: warning: {text}", file=sys.stderr)
