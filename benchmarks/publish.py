"""Writes the latest figures into docs/performance.md and docs/capacity.md, as tables and plots.

python -m benchmarks.publish
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks import report
from benchmarks.simulate import CELLS, TROUBLES, troubled

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (DOCS / "performance.md", DOCS / "capacity.md")
OWN, OTHER = "#1f5a7a", "#b9b2a6"
#: What is left to the plots and the results' files.
UNPUBLISHED = {"min_ms", "p10_ms", "p90_ms", "redis_commands_per_s", "redis_commands_per_task"}
#: Parts of which a plot shows the rows of others.
PLOTTED = {"drain", "lateness"}
#: What is said of figures that were not measured themselves.
DERIVED = {
    "machines": "Extrapolated from what was measured",
    "simulated": "Simulated from what was measured",
}
Figures = Mapping[str, Mapping[str, Sequence[float]]]


def main() -> None:
    """Rewrite the text between ``<!-- part -->`` and ``<!-- end -->`` for each part."""
    mpl.use("Agg")
    blocks = {}
    for path in sorted(report.RESULTS.glob("*.json")):
        blocks[path.stem] = _figures(report.load(path.stem), path.stem)
    for page in PAGES:
        text = page.read_text()
        for part, block in blocks.items():
            pattern = rf"(?<=<!-- {part} -->\n).*?(?=<!-- end -->)"
            text, count = re.subn(pattern, lambda _: f"{block}\n", text, count=1, flags=re.DOTALL)  # noqa: B023
            print(f"{part}: {'in' if count else 'not in'} {page.name}")
        page.write_text(text)
    _drain()
    _lateness()
    _simulated()


def _figures(found: report.Report, part: str) -> str:
    """The table. The page says once what the machine was; each result's file has its settings."""
    figures = {
        row: {column: values for column, values in columns.items() if column not in UNPUBLISHED}
        for row, columns in found.figures.items()
        if part not in PLOTTED or _is_own(row)
    }
    return f"{report.table(figures)}\n\n{DERIVED.get(part, 'Measured')} {found.measured}."


def _drain() -> None:
    """One plot with this project and other queues, and one with this project and the machine's limits."""
    figures = report.load("drain").figures
    limits = {name: row for name, row in figures.items() if name.startswith("limit: ")}
    own = {name: row for name, row in figures.items() if name.startswith("this project")}
    best = max(own, key=lambda name: statistics.median(own[name]["orders_per_s"]))
    peers = {name: row for name, row in figures.items() if name not in limits and name not in own}
    fastest = sorted(peers, key=lambda name: -statistics.median(peers[name]["orders_per_s"]))
    _bars("drain", {best: own[best], **{name: peers[name] for name in fastest}})
    named = {name.removeprefix("limit: "): row for name, row in limits.items()}
    _bars("drain-limits", {**own, **named})


def _bars(name: str, figures: Figures) -> None:
    """Orders per second, from 0."""
    medians = {row: statistics.median(columns["orders_per_s"]) for row, columns in figures.items()}
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(figures) + 1), layout="constrained")
    for row, columns in figures.items():
        measured, median = columns["orders_per_s"], medians[row]
        ends = [[median - min(measured)], [max(measured) - median]]
        bar = axes.barh([row], [median], xerr=ends, color=_colour(row))
        axes.bar_label(bar, [report.shown(median)], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("due orders processed per second; median of the runs, with min and max")
    _save(figure, axes, name)


def _lateness() -> None:
    """How late tasks start, at one rate."""
    figures = report.load("lateness").figures
    rows = {name: _medians(row) for name, row in figures.items() if "p50_ms" in row}
    shown = {name: row for name, row in rows.items() if name.endswith("100/s")}
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(shown) + 1.3), layout="constrained")
    for row, quantiles in shown.items():
        _distribution(axes, row, quantiles)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,g}")
    # Under the whole figure: it is wider than the axes where the names of the rows are long.
    figure.supxlabel(
        "start of the task, ms after its due time\n"
        "dot: median; dark: middle 80%; bar: all but the latest 1%; line: earliest to latest",
        fontsize="medium",
    )
    _save(figure, axes, "lateness")


def _distribution(axes: Any, row: str, quantiles: dict[str, float]) -> None:
    colour, low = _colour(row), quantiles["min_ms"]
    axes.barh([row], [quantiles["p99_ms"] - low], left=low, height=0.5, color=colour, alpha=0.4)
    middle = quantiles["p90_ms"] - quantiles["p10_ms"]
    axes.barh([row], [middle], left=quantiles["p10_ms"], height=0.5, color=colour)
    axes.plot([low, quantiles["max_ms"]], [row, row], color=colour, linewidth=1)
    axes.plot([quantiles["p50_ms"]], [row], "o", color="black", markersize=5)


def _simulated() -> None:
    """In each trouble, how late the latest of the orders are that are cancelled in a half second."""
    figure, all_axes = plt.subplots(1, len(TROUBLES), figsize=(12, 3.2), layout="constrained")
    for axes, trouble in zip(all_axes, TROUBLES, strict=True):
        for cell, colour in zip(CELLS, (OTHER, OWN), strict=True):
            latest: dict[float, float] = {}
            for at, late, _ in troubled(trouble, cell, seed=1).late:
                second = (at + late) // 500 / 2
                latest[second] = max(latest.get(second, 0), late / 1000)
            seconds = sorted(latest)
            values = [latest[second] for second in seconds]
            axes.plot(seconds, values, color=colour, label=f"{cell}, {CELLS[cell][1]:,} a second")
        axes.set_title(trouble, fontsize="medium")
        axes.set_xlabel("cancelled after, s")
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].set_ylabel("the latest of them, s late")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(DOCS / "plots" / "simulated.png", dpi=120, metadata={"Software": None})
    plt.close(figure)


def _medians(row: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {column: statistics.median(values) for column, values in row.items()}


def _is_own(row: str) -> bool:
    return row.startswith(("this", "orders"))


def _colour(row: str) -> str:
    return OWN if _is_own(row) else OTHER


def _save(figure: Any, axes: Any, name: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "plots" / f"{name}.png", dpi=120, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
