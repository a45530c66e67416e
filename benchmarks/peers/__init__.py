"""Task queues that an application might take instead, doing the same work, an order at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.scene import Scene

#: Orders per second that each lets go.
DRAINS: dict[str, Callable[[Scene, Sequence[str]], float]] = {}
#: How late each is, ms: called with Redis's URL, a folder, a rate per second, and seconds.
LATENESS: dict[str, Callable[[str, Path, int, float], list[float]]] = {}
