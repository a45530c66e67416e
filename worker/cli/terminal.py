"""Tables, progress bars and live displays on a terminal. The only module that needs rich."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from ..findings import Finding, Level
from .text import Table, shown

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


class Terminal:
    """A terminal that can move its cursor."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False)

    def table(self, table: Table) -> None:
        """Print a table as wide as its contents, or as the terminal."""
        self.console.print(_drawn(table))

    def finding(self, finding: Finding) -> None:
        """Print a finding, and what to do next below it."""
        line = RichTable.grid(padding=(0, 1, 0, 0))
        line.add_column(width=7, no_wrap=True)
        line.add_column(width=18, no_wrap=True)
        line.add_column(overflow="fold")
        body = Text(shown(finding.summary))
        if finding.advice:
            body.append(f"\n→ {shown(finding.advice)}", style="italic")
        name = Text(finding.check, style="dim")
        line.add_row(Text(finding.level, style=STYLES[finding.level]), name, body)
        self.console.print(line)

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Show a progress bar or, without a total, a count."""
        columns = [SpinnerColumn(), TextColumn("{task.description}")]
        counting: list[Any] = [TextColumn("{task.completed:,.0f}")]
        if total is not None:
            counting = [BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
        bar = Progress(*columns, *counting, console=self.console, transient=True)
        task = bar.add_task(what, total=total)
        with bar:
            yield lambda done: bar.advance(task, done)

    @contextmanager
    def live(self) -> Iterator[Callable[[Sequence[Table], str], None]]:
        """Redraw tables in place, with a note below them. The last ones stay."""
        with Live(console=self.console, auto_refresh=False) as live:

            def draw(tables: Sequence[Table], note: str) -> None:
                drawn = (_drawn(table) for table in tables)
                live.update(Group(*drawn, Text(note, style="dim")), refresh=True)

            yield draw


def _drawn(table: Table) -> RichTable:
    columns, rows = table
    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for n, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[n], int | float | None) for row in rows)
        made.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(_cell(cell)) for cell in row))
    return made


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shown(value)
