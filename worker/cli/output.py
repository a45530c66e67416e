"""How commands print: JSON for programs, tables on a terminal that can show them, otherwise plain lines."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from .text import Table, shown

if TYPE_CHECKING:
    from .terminal import Terminal

Row = Mapping[str, Any]


def print_json(row: Row) -> None:
    """Print one JSON object on a line."""
    print(json.dumps(row), flush=True)


def terminal() -> "Terminal | None":
    """Standard output, if it is a terminal that can move its cursor and rich is installed."""
    return _terminal("stdout") if _is_capable(sys.stdout) else None


def _is_capable(stream: Any) -> bool:
    return bool(stream.isatty()) and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


@cache
def _terminal(stream: str) -> "Terminal | None":
    try:
        from .terminal import Terminal  # noqa: PLC0415  the engine works without rich
    except ModuleNotFoundError:
        return None
    return Terminal(getattr(sys, stream))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with these columns, named in lower case. On a terminal numbers are right-aligned."""
    if screen := terminal():
        screen.table(Table(columns, rows))
        return
    lines = [
        [column.upper() for column in columns],
        *([shown(cell) for cell in row] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if that is a terminal. Call the result with each increment."""
    screen = _terminal("stderr") if _is_capable(sys.stderr) else None
    if screen is None:
        yield lambda _: None
        return
    with screen.progress(what, total) as advance:
        yield advance


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether the user agrees. Without a terminal nobody is asked, and the answer is yes."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
