"""Tables, progress bars and the monitor on a terminal. The only module that needs rich."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..findings import Finding, Level
from .output import duration, shown
from .watching import Sample

#: Eighths of a character, from the bottom.
BLOCKS = " ▁▂▃▄▅▆▇█"
BAR_ROWS = 6
BAR_WIDTH = 2
STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


class Terminal:
    """A terminal that can move its cursor."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table as wide as its contents, or as the terminal."""
        self.console.print(_table(columns, rows))

    def finding(self, finding: Finding) -> None:
        """Print a finding, and what to do next below it."""
        line = Table.grid(padding=(0, 1, 0, 0))
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
    def live(self) -> Iterator[Callable[[Sequence[Sample], str], None]]:
        """Take over the screen, and redraw it for each sample."""
        with Live(console=self.console, screen=True, auto_refresh=False) as live:

            def show(samples: Sequence[Sample], note: str) -> None:
                parts = [part for sample in samples for part in _view(sample)]
                live.update(Group(*parts, Text(note, style="dim")), refresh=True)

            yield show


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for n, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[n], int | float | None) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(cell)) for cell in row))
    return table


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shown(value)


# -- monitor -------------------------------------------------------------------------------


def _view(sample: Sample) -> Iterator[RenderableType]:
    title = Text(sample.queue, style="bold")
    if sample.stats.paused:
        title.append("  PAUSED: nothing is claimed", style="bold yellow")
    yield title
    yield _counts(sample)
    yield _upcoming(sample.per_minute)
    if sample.workers:
        rows = [
            (each.id, duration(each.heard_ms_ago), each.details.get("holds", 0), sample.state(each))
            for each in sample.workers
        ]
        yield _table(("worker", "heard ago", "holds", "state"), rows)
    else:
        yield Text("No worker is running: no task will be handled.\n", style="bold red")


def _counts(sample: Sample) -> Table:
    grid = Table.grid(padding=(0, 3, 0, 0))
    stats = sample.stats
    late = stats.oldest_due_age_ms > 5_000  # noqa: PLR2004
    cells = [
        ("scheduled", f"{stats.scheduled:,}", ""),
        ("due", f"{stats.due:,}", "red" if late else ""),
        ("leased", f"{stats.leased:,}", ""),
        ("dead", f"{stats.dead:,}", "red" if stats.dead else ""),
        ("next due", sample.next_due(), "red" if late else ""),
        ("done/s", sample.throughput(), ""),
        ("late p50", sample.late(sample.p50_ms), ""),
        ("late p99", sample.late(sample.p99_ms), ""),
    ]
    grid.add_row(*(Text(name, style="dim") for name, _, _ in cells))
    grid.add_row(*(Text(value, style=style) for _, value, style in cells))
    return grid


def _upcoming(counts: Sequence[int]) -> RenderableType:
    """A bar for each minute of the forecast."""
    if not any(counts):
        return Text(f"\nNo task becomes due in the next {len(counts)} minutes.\n", style="dim")
    most = max(counts)
    lines = [Text(f"\nbecome due in each of the next {len(counts)} minutes", style="dim")]
    for row in reversed(range(BAR_ROWS)):
        heights = (min(8, max(0, _eighths(count, most) - 8 * row)) for count in counts)
        bars = "".join(BLOCKS[height] * BAR_WIDTH for height in heights)
        margin = f"{most:,}" if row == BAR_ROWS - 1 else "0" if row == 0 else ""
        lines.append(Text.assemble((f"{margin:>9} ", "dim"), (bars, "cyan")))
    ticks = "".join(f"{f'+{minute}':<{5 * BAR_WIDTH}}" for minute in range(0, len(counts), 5))
    lines.append(Text(f"{'':>10}{ticks}min\n", style="dim"))
    return Group(*lines)


def _eighths(count: int, most: int) -> int:
    """The height of a bar. Even a single task is visible next to a million."""
    return max(int(count > 0), round(8 * BAR_ROWS * count / most))
