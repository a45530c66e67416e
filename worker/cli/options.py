"""The options that commands share: which flows and queues they are about."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from textwrap import indent
from typing import Any

import click
import redis

from ..errors import FlowNotFound, WorkerError
from ..flow import Flow
from ..queue.connection import connect
from ..queue.delay_queue import DelayQueue
from .factory import made

Command = Callable[..., Any]


class FlowsNotNamed(FlowNotFound):
    """No flows were named, and none are configured."""


class NoSuchQueue(ValueError):
    """There is no queue of the name that is given."""


@dataclass(frozen=True)
class Chosen:
    """The flows and queues that a command line names."""

    queue: str | None = None
    redis_url: str | None = None
    flows_option: str | None = None
    flows_argument: str | None = None
    new: bool = False

    @property
    def target(self) -> str | None:
        """The MODULE:FUNCTION on the command line, if there is one."""
        return self.flows_option or self.flows_argument

    def flows(self) -> list[Flow]:
        """These flows, or only that of the queue that is named.

        Raises FlowNotFound, FlowImportFailed, NoSuchQueue, and what the flows' function raises.
        """
        found = made(self.target or _configured())
        selected = [flow for flow in found if self.queue in (None, flow.name)]
        if not selected:
            names = ", ".join(flow.name for flow in found)
            raise NoSuchQueue(
                f"no queue {self.queue!r}: the flows have {names}. For other flows pass --flows"
            )
        return selected

    def queues_and_flows(self) -> list[tuple[DelayQueue, Flow | None]]:
        """The queues, each with its flow.

        A queue that is named needs no flow, and then the configured flows may even be broken, because settings of
        theirs are missing here, for instance. Raises what `flows` raises, and NoSuchQueue for a queue without a flow
        that Redis has nothing of either: its name is probably misspelled.
        """
        client = self.client()
        try:
            return [(DelayQueue(client, flow.name), flow) for flow in self.flows()]
        except (WorkerError, ValueError) as error:
            if self.queue is None or self.target:
                raise
            reason = error
        queue = DelayQueue(client, self.queue)
        if not (self.new or queue.exists()):
            message = f"no queue {self.queue!r} in Redis: for a new one pass --new ({reason})"
            raise NoSuchQueue(message) from reason
        if not isinstance(reason, FlowsNotNamed | NoSuchQueue):
            warn(f"{self.queue} is treated as a queue without a flow: {reason}")
        return [(queue, None)]

    def queues(self) -> list[DelayQueue]:
        """The same queues without their flows."""
        return [queue for queue, _ in self.queues_and_flows()]

    def only_queue(self) -> DelayQueue:
        """The queue, where a command needs exactly one. Raises ValueError if there are several."""
        found = self.queues()
        if len(found) != 1:
            raise ValueError("there are several queues: name one with --queue")
        return found[0]

    def url(self) -> str:
        """Redis's. Raises ValueError if there is none."""
        if not self.redis_url:
            raise ValueError(
                "REDIS_URL is not set: set it, or pass --redis-url redis://host:6379/0"
            )
        return self.redis_url

    def client(self) -> redis.Redis:
        """A client with a timeout that suits somebody waiting at a terminal."""
        return connect(self.url(), timeout_seconds=5.0, reconnect=True)


def _configured() -> str:
    try:
        settings = tomllib.loads(Path("pyproject.toml").read_text())
        return str(settings["tool"]["worker"]["flows"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise FlowsNotNamed("Name them as MODULE:FUNCTION: see --help.") from error


def warn(text: str) -> None:
    """Print a warning."""
    click.echo(f"worker: warning: {text}", err=True)


def options_of(made: type, *parameters: Command) -> Callable[[Command], Command]:
    """Give a command parameters that are called like the fields of a dataclass, and pass them on as one."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def called(*args: Any, **options: Any) -> Any:
            value = made(**{each.name: options.pop(each.name, None) for each in fields(made)})
            return command(*args, value, **options)

        for parameter in reversed(parameters):
            called = parameter(called)
        return called

    return decorate


FLOWS: Any = {
    "metavar": "MODULE:FUNCTION",
    "help": "a function that returns flows; default: tool.worker.flows in pyproject.toml",
}


def chosen(*parameters: Command) -> Callable[[Command], Command]:
    """Give a command these parameters and the options that make a `Chosen`."""
    return options_of(
        Chosen,
        *parameters,
        click.option("-f", "--flows", "flows_option", **FLOWS),
        click.option("-q", "--queue", metavar="NAME", help="only this queue"),
        click.option("--redis-url", metavar="URL", envvar="REDIS_URL", help="default: REDIS_URL"),
    )


FLOWS_ARGUMENT: Any = click.argument(
    "flows_argument", required=False, **{**FLOWS, "metavar": "[MODULE:FUNCTION]"}
)
NEW: Any = click.option("--new", is_flag=True, help="the queue may be one that does not exist yet")


def of_ids(*, required: bool = True) -> Callable[[Command], Command]:
    """For a command whose arguments are ids of tasks."""
    metavar = "ID..." if required else "[ID]..."
    return chosen(click.argument("ids", nargs=-1, required=required, metavar=metavar), NEW)


to_run = chosen(FLOWS_ARGUMENT)
of_flows = chosen(FLOWS_ARGUMENT, NEW)


def examples(text: str) -> str:
    """Examples below a command's options, as they are written."""
    return f"\b\nexamples:\n{indent(cleandoc(text), '  ')}"
