"""Figures: stored as measured, shown as medians with min and max."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

#: Set for a run whose figures are not to be published, such as a comparison of two versions.
RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", Path(__file__).parent / "results"))


class Report:
    """The figures of one benchmark: for each row and column, what every repetition measured."""

    def __init__(self, part: str, settings: Mapping[str, str]) -> None:
        self.part = part
        self.settings = dict(settings)
        self.measured = f"{datetime.now(UTC):%Y-%m-%d}"
        self.figures: dict[str, dict[str, list[float]]] = {}

    def add(self, row: str, **columns: float) -> None:
        """Add what one repetition measured."""
        for column, value in columns.items():
            self.figures.setdefault(row, {}).setdefault(column, []).append(value)
        print(f"  {row}: {', '.join(f'{k} {shown(v)}' for k, v in columns.items())}", flush=True)

    def median(self, row: str, column: str) -> float:
        return statistics.median(self.figures[row][column])

    def save(self) -> None:
        """Write the results file, and print the table."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        content = {
            "measured": self.measured,
            "settings": self.settings,
            "figures": self.figures,
        }
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (RESULTS / f"{self.part}.json").write_text(f"{text}\n")
        settings = ", ".join(f"{name}: {value}" for name, value in self.settings.items())
        print(f"\n{settings}\n\n{table(self.figures)}")


def load(part: str) -> Report:
    """The latest figures of a part."""
    content = json.loads((RESULTS / f"{part}.json").read_text())
    report = Report(part, content["settings"])
    report.measured, report.figures = content["measured"], content["figures"]
    return report


def table(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """A Markdown table of medians, with min and max if there were several repetitions."""
    columns = [*dict.fromkeys(column for row in figures.values() for column in row)]
    lines = [
        "| | " + " | ".join(column.replace("_", " ") for column in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for name, row in figures.items():
        cells = [_cell(row.get(column, ())) for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    median = shown(statistics.median(values))
    if len(values) == 1 or min(values) == max(values):
        return median
    return f"{median} ({shown(min(values))}…{shown(max(values))})"


def shown(value: float) -> str:
    """A number with three significant digits, or all digits before the point if there are more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
