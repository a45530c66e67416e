"""How commands print: JSON for programs; tables on a terminal that can show them; else plain lines."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from ..logs import visible

if TYPE_CHECKING:
    from .terminal import Terminal

Row = Mapping[str, Any]


def print_json(row: Row) -> None:
    """One object a line."""
    print(json.dumps(row), flush=True)


def terminal() -> "Terminal | None":
    """Standard output, if it is a terminal that can move its cursor, and rich is installed."""
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
    """A table, its columns named in lower case. Numbers are ranged right on a terminal."""
    if screen := terminal():
        screen.table(columns, rows)
        return
    lines = [
        [column.upper() for column in columns],
        *([shown(cell) for cell in row] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


def shown(value: object) -> str:
    """For a terminal: what others wrote must not move its cursor."""
    if value is None:
        return "-"
    return visible(str(value))


def duration(ms: float) -> str:
    """``850 ms``, ``12 s``, ``3 min``, ``2.5 h``, ``3.0 d``"""
    for unit, size, below in (("ms", 1, 1000), ("s", 1000, 120_000), ("min", 60_000, 7_200_000)):
        if abs(ms) < below:
            return f"{ms / size:.0f} {unit}"
    days = abs(ms) >= 2 * 86_400_000
    return f"{ms / 86_400_000:.1f} d" if days else f"{ms / 3_600_000:.1f} h"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal, for what is called with how much more is done."""
    screen = _terminal("stderr") if _is_capable(sys.stderr) else None
    if screen is None:
        yield lambda _: None
        return
    with screen.progress(what, total) as advance:
        yield advance


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether a person at a terminal agrees. A script is taken at its word."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
