"""Task queues that an application might take instead, doing the same work, an order at a time."""

from collections.abc import Callable, Sequence

from benchmarks.scene import Scene

#: Orders per second that each lets go.
DRAINS: dict[str, Callable[[Scene, Sequence[str]], float]] = {}
