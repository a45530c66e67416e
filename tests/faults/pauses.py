"""Pauses in a test: a process that stands still, and a fault that lasts."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from devtools.processes import Process


@contextmanager
def frozen(*processes: Process) -> Iterator[None]:
    """Freeze processes, so that the test acts before they do, on any machine."""
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def last(seconds: float) -> None:
    """Let a fault last. Its duration is the fault itself, so there is nothing to wait for."""
    time.sleep(seconds)
