"""Adds commands to the parser, with the options that all of them have."""

import argparse
from collections.abc import Callable
from typing import Any

FLOWS: Any = {
    "metavar": "MODULE:FUNCTION",
    "help": "a function that returns flows; default: tool.worker.flows in pyproject.toml",
}


class Commands:
    """Adds commands, each with the common options."""

    def __init__(self, within: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
        self._within = within

    def add(
        self,
        name: str,
        function: Callable[[argparse.Namespace], int | None],
        *,
        examples: str = "",
        ids: bool = False,
        json: bool = True,
        of_queues: bool = True,
    ) -> argparse.ArgumentParser:
        """Add a command that is described by its function's docstring.

        With ``ids`` its positional arguments are ids, otherwise flows. A command that is not ``of_queues`` takes
        neither flows nor a queue.
        """
        made = self._within.add_parser(
            name,
            help=(function.__doc__ or "").split("\n")[0],
            description=function.__doc__,
            epilog=f"examples:\n{_indented(examples)}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(command=function, json=False)
        if not of_queues:
            return made
        if not ids:
            made.add_argument("flows", nargs="?", **FLOWS)
        made.add_argument("-f", "--flows", dest="flows_option", **FLOWS)
        made.add_argument("-q", "--queue", metavar="NAME", help="only this queue")
        made.add_argument(
            "--redis-url", metavar="URL", default=argparse.SUPPRESS, help="default: REDIS_URL"
        )
        if json:
            made.add_argument("--json", action="store_true", help="print one JSON object per line")
        return made

    def group(self, name: str, doc: str) -> "Commands":
        """Commands under a common name."""
        made = self._within.add_parser(name, help=doc, description=doc)
        return Commands(made.add_subparsers(required=True, metavar="COMMAND"))


def _indented(examples: str) -> str:
    return "\n".join(f"  {line}" for line in examples.strip().splitlines())
