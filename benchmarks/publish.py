"""The latest figures as tables and plots in docs/performance.md.

python -m benchmarks.publish
"""

import re
import statistics
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks import report

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
OWN, OTHER = "#1f5a7a", "#b9b2a6"


def main() -> None:
    """Rewrite what stands between ``<!-- part -->`` and ``<!-- end -->`` for each part."""
    mpl.use("Agg")
    text = PAGE.read_text()
    for path in sorted(report.RESULTS.glob("*.json")):
        found = report.load(path.stem)
        block = f"<!-- {path.stem} -->\n{_figures(found)}\n<!-- end -->"
        pattern = rf"<!-- {path.stem} -->.*?<!-- end -->"
        text, count = re.subn(pattern, lambda _: block, text, flags=re.DOTALL)  # noqa: B023
        print(f"{path.stem}: {'in' if count else 'not in'} {PAGE.name}")
    PAGE.write_text(text)
    _bars("drain", "orders_per_s", "orders let go per second")
    _bars("lateness", "p99_ms", "99th percentile of lateness, ms")


def _figures(found: report.Report) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    return f"{report.table(found.figures)}\n\nMeasured {found.measured}: {settings}."


def _bars(part: str, column: str, label: str) -> None:
    figures = report.load(part).figures
    rows = [(name, row[column]) for name, row in figures.items() if column in row][::-1]
    medians = [statistics.median(values) for _, values in rows]
    errors = [
        [median - min(values) for median, (_, values) in zip(medians, rows, strict=True)],
        [max(values) - median for median, (_, values) in zip(medians, rows, strict=True)],
    ]
    colours = [OWN if name.startswith(("this", "orders")) else OTHER for name, _ in rows]
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(rows) + 1), layout="constrained")
    bars = axes.barh([name for name, _ in rows], medians, xerr=errors, color=colours)
    axes.bar_label(bars, [report.shown(median) for median in medians], padding=4)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel(f"{label}; median, with min and max")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PAGE.parent / "plots" / f"{part}.png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main()
