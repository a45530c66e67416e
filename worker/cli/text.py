"""How values look as text."""

from collections.abc import Sequence
from typing import NamedTuple

from ..watch.logs import visible

#: Eighths of a character, from the bottom.
BLOCKS = " ▁▂▃▄▅▆▇█"


class Table(NamedTuple):
    """Columns, named in lower case, and their cells in rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def shown(value: object) -> str:
    """A value as text that is safe on a terminal: control characters, which move its cursor, are escaped."""
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


def bars(counts: Sequence[int]) -> str:
    """A bar for each count. Even a 1 is visible beside a million."""
    most = max(counts, default=0)
    return "".join(BLOCKS[-(-8 * count // most) if count else 0] for count in counts)
