"""Runs all checks in order, each group within a time limit, even if some of them fail."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import redis

from ..errors import described
from ..findings import Finding, failure
from ..flow import Flow
from ..queue.advice import redis_advice
from ..queue.delay_queue import DelayQueue
from .flows import application_findings, flow_findings
from .queues import queue_findings
from .server import server_findings

#: A group of checks that takes longer is reported as hanging. Most take milliseconds.
LIMIT_SECONDS = 30.0

#: The name of the group of checks that is not about a queue. No flow can have it.
SERVER = "the server"

Clock = Callable[[], float]


def examine(
    client: redis.Redis,
    flows: Sequence[Flow] = (),
    queues: Sequence[str] = (),
    *,
    clock: Clock = time.time,
    limit_seconds: float = LIMIT_SECONDS,
) -> Iterator[Finding]:
    """Examine the server, these flows with their queues, and the queues with these names.

    Yields findings as each group of checks ends. ``clock`` is this host's, in seconds since the epoch.
    """
    delay_queues = {
        name: DelayQueue(client, name) for name in [*(flow.name for flow in flows), *queues]
    }
    groups: list[tuple[str, Callable[[], Iterable[Finding]]]] = []
    if outage := _outage(client):
        yield outage
    else:
        groups.append((SERVER, partial(server_findings, client, [*delay_queues.values()], clock)))
    known: list[Finding] = []
    groups += [(flow.name, partial(application_findings, flow, known)) for flow in flows]
    for flow in flows:
        queue = delay_queues.pop(flow.name)
        groups.append((flow.name, partial(flow_findings, flow, None if outage else queue, known)))
    if not outage:
        groups += [
            (name, partial(queue_findings, each, None)) for name, each in delay_queues.items()
        ]
    for name, group in groups:
        yield from _within(limit_seconds, name, group)


def _outage(client: redis.Redis) -> Finding | None:
    """Why Redis cannot be examined; None if it answers."""
    try:
        client.ping()
    except redis.exceptions.NoPermissionError:  # a refusal is an answer, too
        return None
    except redis.RedisError as error:
        return failure(
            "redis.answers",
            f"Redis does not answer: {described(error)}",
            "Check REDIS_URL, the network and the server. Until Redis is back, only flows that sweep "
            "their own records continue.",
        )
    return None


def _within(seconds: float, name: str, group: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What a group of checks finds within ``seconds``, and any error that ended it."""
    found: list[Finding] = []

    def run() -> None:
        try:
            found.extend(group())
        except redis.RedisError as error:
            advice = redis_advice(error) or (
                "See the server's log. WRONGTYPE means that another program uses the queue's keys."
            )
            found.append(failure("redis.failed", f"{name}: Redis: {described(error)}", advice))
        except BaseException as error:  # noqa: BLE001  the application's code may raise anything
            advice = "One of the application's own checks raised this error."
            found.append(failure("flow.checks", f"{name}: {described(error)}", advice))

    thread = threading.Thread(target=run, name=f"doctor {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        hangs = failure(
            "doctor.hangs",
            f"{name}: a check did not return within {seconds:g} s",
            "Something that it queries does not answer. The findings before this one show how far it got.",
        )
        found.append(hangs)
    queue = "" if name == SERVER else name
    yield from (replace(finding, queue=queue) for finding in [*found])
