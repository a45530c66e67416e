"""A delay queue on Redis and the worker that runs its tasks.

The engine knows flows and tasks, but nothing about what they do.
"""

from . import events
from .backoff import Backoff, BackoffFunction, Delays
from .errors import (
    ConsumerClosed,
    FlowImportFailed,
    FlowNotFound,
    LeaseLost,
    Unavailable,
    UnsafeServer,
    WorkerError,
)
from .findings import Checks, Finding, Level
from .flow import (
    DeadLetter,
    Due,
    Failed,
    Flow,
    Handler,
    NoOp,
    NotDue,
    Outcome,
    Probe,
    Reschedule,
    Retry,
    Sweep,
    Task,
    one_at_a_time,
)
from .pauses import Pause, Pauses
from .queue.connection import connect
from .queue.delay_queue import DelayQueue
from .queue.replies import (
    Cancelled,
    Claim,
    Letter,
    Place,
    Restored,
    Scheduled,
    Seeded,
    Settlement,
    Stats,
    TaskState,
    Verb,
    WorkerStatus,
)
from .queue.scheduler import BatchScheduler
from .runtime.consumer import Consumer
from .runtime.liveness import FlowHealth, WorkerHealth
from .runtime.recurring import Recurring
from .runtime.worker import Worker

__all__ = [
    "Backoff",
    "BackoffFunction",
    "BatchScheduler",
    "Cancelled",
    "Checks",
    "Claim",
    "Consumer",
    "ConsumerClosed",
    "DeadLetter",
    "DelayQueue",
    "Delays",
    "Due",
    "Failed",
    "Finding",
    "Flow",
    "FlowHealth",
    "FlowImportFailed",
    "FlowNotFound",
    "Handler",
    "LeaseLost",
    "Letter",
    "Level",
    "NoOp",
    "NotDue",
    "Outcome",
    "Pause",
    "Pauses",
    "Place",
    "Probe",
    "Recurring",
    "Reschedule",
    "Restored",
    "Retry",
    "Scheduled",
    "Seeded",
    "Settlement",
    "Stats",
    "Sweep",
    "Task",
    "TaskState",
    "Unavailable",
    "UnsafeServer",
    "Verb",
    "Worker",
    "WorkerError",
    "WorkerHealth",
    "WorkerStatus",
    "connect",
    "events",
    "one_at_a_time",
]
