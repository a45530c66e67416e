"""Turns arguments into values: flows, queues, counts, durations, times, patterns."""

import argparse
import re
import tomllib
from datetime import datetime
from pathlib import Path

import redis

from ..errors import FlowNotFound, WorkerError
from ..flow import Flow
from ..queue.connection import connect
from ..queue.delay_queue import DelayQueue
from .factory import made


class FlowsNotNamed(FlowNotFound):
    """No flows were named, and none are configured."""


class NoSuchQueue(ValueError):
    """The flows do not have the queue that is named."""


# -- flows and queues ----------------------------------------------------------------------


def flows_by_queue(options: argparse.Namespace) -> dict[str, Flow | None]:
    """The names of the queues that a command is about, each with its flow.

    A queue that is named needs no flow, and then the configured flows may even be broken, because settings of theirs
    are missing here, for instance. Raises FlowNotFound, FlowImportFailed, NoSuchQueue, and ValueError.
    """
    try:
        return {flow.name: flow for flow in selected_flows(options)}
    except (WorkerError, ValueError) as error:
        if options.queue is not None and not named_flows(options):
            return {options.queue: None}
        if isinstance(error, FlowsNotNamed):
            detail = "Pass --flows MODULE:FUNCTION, or --queue with the name of a queue."
            raise FlowsNotNamed(detail) from error
        raise


def queues_and_flows(options: argparse.Namespace) -> list[tuple[DelayQueue, Flow | None]]:
    """The same with the queues themselves."""
    found = flows_by_queue(options)
    client = client_of(options)
    return [(DelayQueue(client, name), flow) for name, flow in found.items()]


def queues(options: argparse.Namespace) -> list[DelayQueue]:
    """The same queues without their flows."""
    return [queue for queue, _ in queues_and_flows(options)]


def queue_and_flow(options: argparse.Namespace) -> tuple[DelayQueue, Flow | None]:
    """The queue, where a command needs exactly one. Raises ValueError if there are several."""
    found = queues_and_flows(options)
    if len(found) != 1:
        raise ValueError("there are several queues: name one with --queue")
    return found[0]


def named_flows(options: argparse.Namespace) -> str | None:
    """The MODULE:FUNCTION on the command line, if there is one."""
    named: str | None = options.flows_option or getattr(options, "flows", None)
    return named


def flows(options: argparse.Namespace) -> list[Flow]:
    """The flows that the command line names, or else the configured ones. Raises FlowNotFound, FlowImportFailed."""
    if named := named_flows(options):
        return made(named)
    target = _configured()
    try:
        return made(target)
    except (WorkerError, ValueError) as error:
        error.add_note(f"pyproject.toml names {target}; for other flows pass --flows.")
        raise


def selected_flows(options: argparse.Namespace) -> list[Flow]:
    """The flows, or only that of the queue that is named. Raises what `flows` raises, and NoSuchQueue."""
    found = flows(options)
    selected = [flow for flow in found if options.queue in (None, flow.name)]
    if not selected:
        names = ", ".join(flow.name for flow in found)
        raise NoSuchQueue(
            f"no queue {options.queue!r}: the flows have {names}. For other flows pass --flows"
        )
    return selected


def client_of(options: argparse.Namespace) -> redis.Redis:
    """A client with a timeout that suits somebody waiting at a terminal."""
    return connect(redis_url(options), timeout_seconds=5.0, reconnect=True)


def redis_url(options: argparse.Namespace) -> str:
    """The URL of Redis. Raises ValueError if there is none."""
    if not options.redis_url:
        raise ValueError("REDIS_URL is not set: set it, or pass --redis-url redis://host:6379/0")
    return str(options.redis_url)


def _configured() -> str:
    try:
        settings = tomllib.loads(Path("pyproject.toml").read_text())
        return str(settings["tool"]["worker"]["flows"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise FlowsNotNamed("Name them as MODULE:FUNCTION.") from error


# -- values --------------------------------------------------------------------------------


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


LOCALHOST = "127.0.0.1"
MAX_PORT = 65_535


def port(text: str) -> int:
    """A TCP port; 0 means any free one."""
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int:
    """``90s``, ``30m``, ``2h``, ``1d12h``: in ms."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration, such as 90s, 30m, 2h or 1d12h"
        )
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def moment_ms(text: str) -> int:
    """``2026-11-22T02:00:00+01:00``, or milliseconds since the epoch."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time with a time zone, such as 2026-11-22T02:00:00+01:00"
        )
    return round(moment.timestamp() * 1000)


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression, which ignores case. Plain text mostly matches itself."""
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a regular expression ({error}): escape special characters with a backslash"
        ) from error
