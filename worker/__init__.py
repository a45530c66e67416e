"""A delay queue on Redis and the process that works it off.

The engine knows flows and tasks, and nothing of what they are about.
"""

from .backoff import Backoff
from .connection import connect
from .errors import (
    FlowImportFailed,
    FlowNotFound,
    LeaseLost,
    Unavailable,
    UnsafeServer,
    WorkerError,
)
from .flow import DeadLetter, Due, Failed, Flow, Outcome, Retry, Task, one_at_a_time
from .loop import Worker
from .queue import Cancelled, DelayQueue, Scheduled

__all__ = [
    "Backoff",
    "Cancelled",
    "DeadLetter",
    "DelayQueue",
    "Due",
    "Failed",
    "Flow",
    "FlowImportFailed",
    "FlowNotFound",
    "LeaseLost",
    "Outcome",
    "Retry",
    "Scheduled",
    "Task",
    "Unavailable",
    "UnsafeServer",
    "Worker",
    "WorkerError",
    "connect",
    "one_at_a_time",
]
