"""What the engine tells of its work, for logs, metrics and traces: one seam for all of them.

A listener is any callable that takes an event, for instance::

    def count(event: events.Event) -> None:
        match event:
            case events.Handled(seconds=seconds):
                HANDLER_SECONDS.labels(event.queue).observe(seconds)

    Worker(flows, redis_url, listeners=[count]).run()

Listeners are called one after another, in the thread in which it happened: whoever is slow holds that
thread up. One that raises is logged, and harms nobody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from .flow import Task

log = structlog.get_logger("worker")


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to the tasks of one queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """A worker leased tasks."""

    tasks: Sequence[Task]
    #: How late the first of them was, ms on the server's clock.
    late_ms: int


@dataclass(frozen=True, slots=True)
class Handled(Event):
    """A call of the handler ended.

    One that raised for several tasks is no event: they are handled again in halves.
    """

    tasks: Sequence[Task]
    done: int
    retries: int
    failed: int
    #: How long the call took.
    seconds: float
    #: How late the first of the tasks was when the call ended, ms.
    late_ms: int
    #: Whether the sweep called it, because Redis did not answer.
    without_redis: bool = False


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """A handler asked for a task again, with `Retry` or `Reschedule`."""

    task: Task
    delay_ms: float


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """A task failed alone, and is tried again."""

    task: Task
    #: With its traceback.
    error: Exception
    delay_ms: float


@dataclass(frozen=True, slots=True)
class Died(Event):
    """A task became a dead letter."""

    task: Task
    reason: str
    #: With its traceback.
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Restored(Event):
    """A sweep scheduled tasks that Redis had lost."""

    tasks: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """The lease on tasks ended before they were settled: nothing was written for them."""

    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class RanTooLong(Event):
    """A handler ran for longer than ``max_runtime_seconds``: its lease is left to end."""

    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class RedisLost(Event):
    """Redis did not do what this queue asked."""

    error: Exception


@dataclass(frozen=True, slots=True)
class RedisBack(Event):
    """Redis serves this queue again."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FlowDown(Event):
    """What the handler needs is not available: nothing is claimed until the probe succeeds."""

    error: Exception


@dataclass(frozen=True, slots=True)
class FlowUp(Event):
    """What the handler needs is available."""

    #: How long it was not.
    seconds: float


@dataclass(frozen=True, slots=True)
class Hangs(Event):
    """The flow's probe or sweep has not returned for long. Until it does, it is not called again."""

    #: "probe" or "sweep".
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """Nothing is due."""

    #: How long until something is; unless something earlier comes.
    seconds: float


Listener = Callable[[Event], None]


class Listeners:
    """Tells each event to every listener."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self._failed: set[int] = set()

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # whatever it is, the work goes on
                if id(listener) not in self._failed:
                    self._failed.add(id(listener))
                    log.exception("listener fails", listener=repr(listener))
