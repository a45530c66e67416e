"""What command lines share: how values are read, and how they are printed."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from .watch.logs import visible

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

AS_JSON = click.option("--json", "as_json", is_flag=True, help="print one JSON object per line")


class Duration(click.ParamType[int]):
    """``90s``, ``30m``, ``2h``, ``1d12h``, and ``90``, which is in seconds: in ms."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Raises BadParameter."""
        text = str(value)
        whole = f"{text}s" if re.fullmatch("[0-9]+", text) else text
        parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", whole)
        if not parts or "".join(number + unit for number, unit in parts) != whole:
            self.fail(f"{text!r} is not a duration, such as 90s, 30m, 2h or 1d12h", param, ctx)
        return round(sum(float(number) * UNIT_MS[unit] for number, unit in parts))


DURATION = Duration()


def duration(ms: float) -> str:
    """``850 ms``, ``12 s``, ``3 min``, ``2.5 h``, ``3.0 d``"""
    for unit, size, below in (("ms", 1, 1000), ("s", 1000, 120_000), ("min", 60_000, 7_200_000)):
        if abs(ms) < below:
            return f"{ms / size:.0f} {unit}"
    days = abs(ms) >= 2 * 86_400_000
    return f"{ms / 86_400_000:.1f} d" if days else f"{ms / 3_600_000:.1f} h"


def shown(value: object) -> str:
    """A value as text that is safe on a terminal: control characters, which move its cursor, are escaped."""
    return "-" if value is None else visible(str(value))


def print_json(row: Mapping[str, Any]) -> None:
    """Print one JSON object on a line."""
    click.echo(json.dumps(row))


def terminal() -> Console | None:
    """Standard output, if it is a terminal that can move its cursor."""
    console = Console(highlight=False)
    return console if console.is_terminal and not console.is_dumb_terminal else None


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: with lines and folded to the width of a terminal, elsewhere as plain text."""
    if screen := terminal():
        screen.print(table(columns, [*rows]))
        return
    heads = [column.upper() for column in columns]
    lines = [heads, *([shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


#: Ids up to this length, such as UUIDs, are not broken into several lines: they are to be copied.
WHOLE_ID = 40


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table for a terminal, with numbers aligned to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for n, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[n], int | float | None) for row in rows)
        is_whole = column == "id" and all(len(shown(row[n])) <= WHOLE_ID for row in rows)
        justify: JustifyMethod = "right" if is_number else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=is_whole)
    for row in rows:
        made.add_row(*(Text(f"{cell:,}" if type(cell) is int else shown(cell)) for cell in row))
    return made
