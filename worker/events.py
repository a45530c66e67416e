"""What happens in the engine, as objects, for logs, metrics and listeners of your own.

A listener is any callable that takes an event, for instance::

    def count(event: events.Event) -> None:
        match event:
            case events.Handled(seconds=seconds):
                HANDLER_SECONDS.labels(event.queue).observe(seconds)

    Worker(flows, redis_url, listeners=[count]).run()

Listeners are called one after another, in the thread in which the event occurred, so a slow listener delays
that thread. The first exception of a listener is logged, later ones are ignored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .errors import fatal
from .flow import Task
from .log import log


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to the tasks of one queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """A worker leased tasks."""

    tasks: Sequence[Task]
    #: How late the earliest of them was, ms on the server's clock.
    late_ms: int


@dataclass(frozen=True, slots=True)
class Handled(Event):
    """A call of the handler ended.

    A call that raised for several tasks emits no event: they are handled again in halves.
    """

    tasks: Sequence[Task]
    done: int
    retries: int
    failed: int
    #: How long the call took.
    seconds: float
    #: How late the earliest of the tasks was when the call ended, ms.
    late_ms: int
    #: Whether the sweep called the handler, because Redis did not answer.
    without_redis: bool = False


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """A handler postponed a task with `Retry`, or rescheduled it with `Reschedule`."""

    task: Task
    delay_ms: float
    #: Why, if the handler raised it ``from`` an error, or something was unavailable to this task alone: its row is
    #: locked, for instance.
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """A task failed on its own and will be tried again after ``delay_ms``."""

    task: Task
    #: With its traceback.
    error: BaseException
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
    """Tasks that Redis had lost were scheduled again, by a sweep or because they recur."""

    tasks: int


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """The lease on these tasks ended before they were settled, so nothing was written for them."""

    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class RanTooLong(Event):
    """A handler ran for longer than ``max_runtime_seconds``: its lease is no longer extended."""

    ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class RedisLost(Event):
    """Claims from this queue began to fail."""

    error: Exception


@dataclass(frozen=True, slots=True)
class RedisBack(Event):
    """Claims from this queue succeed again."""

    #: How long they failed.
    seconds: float


@dataclass(frozen=True, slots=True)
class FlowDown(Event):
    """A dependency of the handler is unavailable: nothing is claimed until the probe succeeds."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class FlowUp(Event):
    """The handler's dependencies are available. Also emitted when a worker starts."""

    #: How long it was unavailable.
    seconds: float


@dataclass(frozen=True, slots=True)
class Hangs(Event):
    """The flow's probe or sweep has made no progress for 10 s. It is not called again until it returns."""

    #: "probe" or "sweep".
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """Nothing is due, so a lane waits."""

    #: How long it waits at most; it ends earlier when something new is due.
    seconds: float


Listener = Callable[[Event], None]


class Listeners:
    """Passes each event to every listener."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self._failed: set[int] = set()

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except fatal():
                raise
            except BaseException:  # a listener must not stop the work
                if id(listener) not in self._failed:
                    self._failed.add(id(listener))
                    name = getattr(listener, "__qualname__", type(listener).__qualname__)
                    log.exception("listener fails", listener=name)
