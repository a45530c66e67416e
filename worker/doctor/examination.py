"""All checks in their order, each within a time limit, whatever some of them run into."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import redis

from ..errors import FAILURES, described
from ..findings import Finding, failure
from ..flow import Flow
from ..queue import DelayQueue
from .flows import application_findings, flow_findings
from .queues import queue_findings
from .server import server_findings

#: A group of checks that takes longer is reported as hanging. Most take milliseconds.
LIMIT_SECONDS = 30.0

#: The group of checks that is about no queue. No flow has such a name.
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
    """Examine the server, and the queues of these flows and of these names.

    Findings come as they are made. ``clock`` is this host's, in seconds since the epoch.
    """
    by_name = {flow.name: flow for flow in flows}
    names = [*dict.fromkeys([*by_name, *queues])]
    delay_queues = [DelayQueue(client, name) for name in names]
    groups: list[tuple[str, Callable[[], Iterable[Finding]]]] = []
    reached = _answers(client)
    if isinstance(reached, Finding):
        yield reached
    else:
        groups.append((SERVER, lambda: server_findings(client, delay_queues, clock)))
        groups += [
            (queue.name, _queue_group(queue, by_name.get(queue.name))) for queue in delay_queues
        ]
    for flow in flows:
        queue = DelayQueue(client, flow.name) if reached is True else None
        groups.append((flow.name, _flow_group(flow, queue)))
        groups.append((flow.name, _application_group(flow)))
    for name, group in groups:
        yield from _within(limit_seconds, name, group)


def _answers(client: redis.Redis) -> Finding | bool:
    try:
        client.ping()
    except redis.AuthenticationError as error:
        return failure("redis.answers", f"Redis refuses the login: {error}", "Check REDIS_URL.")
    except redis.exceptions.NoPermissionError:  # it answers, which is all that is asked here
        return True
    except redis.RedisError as error:
        return failure(
            "redis.answers",
            f"Redis does not answer: {described(error)}",
            "Check REDIS_URL, the network and the server. Until it is back, only flows that sweep "
            "their own records go on.",
        )
    return True


def _queue_group(queue: DelayQueue, flow: Flow | None) -> Callable[[], Iterable[Finding]]:
    return lambda: queue_findings(queue, flow)


def _flow_group(flow: Flow, queue: DelayQueue | None) -> Callable[[], Iterable[Finding]]:
    return lambda: flow_findings(flow, queue)


def _application_group(flow: Flow) -> Callable[[], Iterable[Finding]]:
    return lambda: application_findings(flow)


def _within(seconds: float, name: str, group: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What a group of checks finds in time, and why it ended if it did not end well."""
    found: list[Finding] = []

    def run() -> None:
        try:
            found.extend(group())
        except redis.exceptions.NoPermissionError as error:
            advice = "Give this user +@all -@dangerous +info on the queue's keys: see the ACL in docker-compose.yml."
            found.append(
                failure("redis.refused", f"{name}: Redis refused a command: {error}", advice)
            )
        except redis.RedisError as error:
            advice = "Look into the server's log. A WRONGTYPE means that another program uses the queue's keys."
            found.append(failure("redis.failed", f"{name}: Redis: {described(error)}", advice))
        except FAILURES as error:  # the application's code may fail in any way
            advice = "This is an error in a check of the application."
            found.append(failure("flow.checks", f"{name}: {described(error)}", advice))

    thread = threading.Thread(target=run, name=f"doctor {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        hangs = failure(
            "doctor.hangs",
            f"{name}: a check did not return within {seconds:g} s",
            "Something that it queries does not answer. The findings above show how far it got.",
        )
        found.append(hangs)
    queue = "" if name == SERVER else name
    yield from (replace(finding, queue=queue) for finding in [*found])
