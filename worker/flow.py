"""What an application defines: a flow, and the outcomes that its handler may return."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypedDict

from .backoff import Backoff, BackoffFunction
from .errors import described
from .findings import Checks
from .pauses import Pauses

#: Scripts unpack a batch onto Lua's stack, which holds about 8,000 values;
#: a claim pushes two for each task.
MAX_BATCH_SIZE = 2000
#: A due time is a double, which is an exact integer up to 2**53. Now plus this delay stays well below that.
MAX_DELAY_MS = 2**52
#: Some platforms reject longer waits.
MAX_SECONDS = 366 * 86_400
#: After its worker's first death a task is claimed with a few others, after the second alone. Only the third
#: death shows that this task kills its worker.
MIN_DELIVERIES = 3


class Task(NamedTuple):
    """A task as it was claimed."""

    id: str
    payload: bytes = b""
    #: How often it failed on its own since it was scheduled or last returned `Retry`.
    failures: int = 0
    #: How often since then its lease ended before it was settled: its worker died, or it ran too long.
    deliveries: int = 0
    #: When it was first due, or due after its last `Retry`: ms since the epoch on Redis's clock.
    due_at_ms: int = 0
    #: Proof of the lease: a worker with another token cannot write anything for this task.
    token: str = ""
    #: Which attempt this is, from 1. A `Retry`, a failure and an expired lease each lead to another attempt.
    attempt: int = 1
    #: The due time that this appointment was scheduled for, ms. `Reschedule` makes a new appointment.
    appointment_ms: int = 0

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of one appointment, and different for every other appointment.

        Pass it to services that must not do the same thing twice, such as a payment provider. If Redis
        loses the task and the sweep restores it, that is a new appointment.
        """
        return f"{self.id}:{self.appointment_ms}"


class Due(NamedTuple):
    """A task that is due after a delay: one to schedule, or one that a sweep lists as waiting."""

    id: str
    #: From now until it is due, so that clocks may disagree; negative when it is overdue.
    delay_ms: float
    payload: bytes = b""


def checked_delay(delay_ms: float) -> float:
    """Return a delay that can be added to any time, as a float. Raises ValueError for any other delay."""
    if not abs(delay_ms) <= MAX_DELAY_MS:  # false for NaN too
        raise ValueError(f"delay_ms is at most {MAX_DELAY_MS} milliseconds, not {delay_ms}")
    return float(delay_ms)  # databases may return Decimal


class Retry(Exception):
    """Not now: run the same task again after ``delay_ms``. The appointment stays the same::

        raise Retry(delay_ms=60_000) from error

    ``doctor`` shows the error, if there is one. With ``counted=True`` it counts as a failure, and after
    ``max_failures`` of them the task becomes a dead letter. Otherwise it does not count, and earlier failures and
    deliveries are reset. Raises ValueError for an impossible delay.
    """

    def __init__(self, delay_ms: float, *, counted: bool = False) -> None:
        super().__init__(f"again in {delay_ms} ms")
        self.delay_ms = checked_delay(delay_ms)
        self.counted = counted


class NotDue(Retry):
    """The records say that the task is due only in ``delay_ms``: run it then::

        raise NotDue(delay_ms=60_000)

    Like `Retry`, but if the records say later that it is due sooner, the sweep brings it forward: their clock
    was wrong, or their new time has not reached Redis. Raises ValueError for an impossible delay.
    """

    def __init__(self, delay_ms: float) -> None:
        super().__init__(delay_ms)


class Reschedule(Exception):
    """Done, and due again after ``delay_ms``: a new appointment, as if it had just been scheduled::

        raise Reschedule(delay_ms=86_400_000)

    Raises ValueError for an impossible delay.
    """

    def __init__(self, delay_ms: float) -> None:
        super().__init__(f"done, and due again in {delay_ms} ms")
        self.delay_ms = checked_delay(delay_ms)


class NoOp(Exception):
    """Done, as there was nothing to do, which does not show that others can be done."""


class DeadLetter(Exception):
    """Do not try again: the task becomes a dead letter at once. The reason may be an exception::

        raise DeadLetter("customer 7 has no address")

    It stays dead until an operator requeues or purges it.
    """

    def __init__(self, reason: str | BaseException) -> None:
        self.reason = str(reason)
        super().__init__(self.reason)
        if isinstance(reason, BaseException):
            self.__cause__ = reason


class Failed(Exception):
    """This task failed: the failure is counted, and the task is tried again until ``max_failures``.

    The error may be given as text.
    """

    def __init__(self, error: BaseException | str) -> None:
        self.error = error if isinstance(error, BaseException) else RuntimeError(error)
        super().__init__(described(self.error))


Outcome = Retry | Reschedule | NoOp | DeadLetter | Failed
Handler = Callable[[Sequence[Task]], Mapping[str, Outcome] | None]
#: ``sweep(after_seconds, before_seconds)`` yields, in pages and oldest first, the tasks that
#: are due later than ``after_seconds`` from now (None: no lower bound) and no later than
#: ``before_seconds`` from now. Negative seconds are in the past.
Sweep = Callable[[float | None, float], Iterable[Sequence[Due]]]
#: Returns when the handler's dependencies answer; raises `Unavailable` while they do not.
Probe = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """A queue and the handler of its tasks::

        def remind(tasks: Sequence[Task]) -> dict[str, Outcome]:
            return {task.id: Retry(60_000) for task in tasks if not send_mail(task.payload)}

        Flow(name="reminders", handler=remind, max_failures=5)

    The handler gets a batch and returns what is *not* done: a mapping from task id to
    `Retry`, `Reschedule`, `DeadLetter` or `Failed`. A task that the mapping leaves out is done. An
    exception means that the batch failed; it is run again in halves until the failing tasks are isolated.
    `Unavailable` counts nothing. If ``probe`` fails, or there is none, it is an outage: the batch is put back,
    and nothing is claimed until ``probe`` returns. If it passes, the trouble is one task's, whose row is
    locked, for instance: that task is isolated in halves, too, and tried again within a second.

    With a ``probe``, what fails for several tasks, each alone, while no more are done is an outage as well, although
    the probe passes: nothing is counted, and ever more are tried. A task that fails although more were done than failed
    since it failed before, or that is the only one to fail, has failed. So has each run of a `Recurring`. Return `NoOp`
    for a task that needed nothing: that it is done proves nothing.

    Delivery is at least once: a handler may see a task again after a crash, so everything it does
    must be safe to repeat.
    """

    name: str
    handler: Handler = field(repr=False)
    #: Lists the tasks that the application's records say are waiting, so that those Redis lost are
    #: restored. See `Sweep`.
    sweep: Sweep | None = field(default=None, repr=False)
    #: What a sweep does with overdue tasks while Redis does not answer: "wait" for Redis, or "handle" the
    #: tasks. With "handle", several workers may handle the same task at the same time, so choose it only if
    #: your records decide which of them takes effect.
    without_redis: Literal["wait", "handle"] = "wait"
    probe: Probe | None = field(default=None, repr=False)
    #: Keeps a pause of the queue, so that it holds whatever happens to Redis. `Records` may have it.
    pauses: Pauses | None = field(default=None, repr=False)
    #: Says what holds up tasks that are due, "" if nothing: for the command ``stats``. Raises `Unavailable`.
    held: Callable[[], str] | None = field(default=None, repr=False)
    #: Called about once a second in each worker, from its start, whatever else it does.
    tick: Callable[[], object] | None = field(default=None, repr=False)
    #: Called when the worker stops, with the seconds that are left. It should end what the handler left running.
    finish: Callable[[float], None] | None = field(default=None, repr=False)
    #: The application's own checks, which the command ``doctor`` runs after its own. See `Checks`.
    checks: Checks | None = field(default=None, repr=False)
    #: How many batches a worker handles at a time; None: the ``threads`` of the `Worker`.
    threads: int | None = None
    batch_size: int = 500
    #: Whether a claim brings what is due within 50 ms, too. Each is handled when it is due, and all are settled together,
    #: so choose it only for a handler that takes a moment, and of which a crash may repeat what it has done.
    claims_ahead: bool = False
    #: How soon another worker takes over the tasks of a dead one. A live worker extends its leases.
    lease_seconds: float = 10.0
    #: How long one call of the handler may take. After that its lease ends, and its tasks are delivered again.
    max_runtime_seconds: float = 3600.0
    #: After this many failures a task becomes a dead letter: with the default backoff, in one to three hours.
    max_failures: int = 20
    #: After this many expired leases a task becomes a dead letter.
    max_deliveries: int = 5
    #: How long to wait after failure number n, in seconds: any callable, such as `Backoff` or `Delays`.
    backoff: BackoffFunction = field(default_factory=Backoff)
    #: How often to sweep for overdue tasks.
    sweep_seconds: float = 1.0
    #: How often to sweep for tasks that will be due soon, which means within twice this time.
    lookahead_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", self.name):
            raise ValueError(f"a flow's name is 1 to 100 of A-Z a-z 0-9 _ . : -, not {self.name!r}")
        if not 1 <= self.batch_size <= MAX_BATCH_SIZE:
            raise ValueError(f"batch_size is 1 to {MAX_BATCH_SIZE}, not {self.batch_size}")
        for setting in (
            "lease_seconds",
            "max_runtime_seconds",
            "sweep_seconds",
            "lookahead_seconds",
        ):
            if not 0 < getattr(self, setting) <= MAX_SECONDS:
                value = getattr(self, setting)
                raise ValueError(f"{setting} is above 0 and at most a year, not {value}")
        for setting, least in (("max_failures", 1), ("max_deliveries", MIN_DELIVERIES)):
            if getattr(self, setting) < least:
                raise ValueError(f"{setting} is at least {least}, not {getattr(self, setting)}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is at least 1, not {self.threads}")
        if self.without_redis not in ("wait", "handle"):
            raise ValueError(f'without_redis is "wait" or "handle", not {self.without_redis!r}')
        if self.without_redis == "handle" and self.sweep is None:
            raise ValueError('without_redis="handle" needs a sweep, which says what to handle')

    @property
    def one_at_a_time(self) -> bool:
        """Whether the handler gets one task at a time."""
        return isinstance(self.handler, OneAtATime)


class CommonSettings(TypedDict, total=False):
    """The settings that a `Flow`, a `Consumer`, a `Recurring` and `Records` have in common."""

    lease_seconds: float
    max_runtime_seconds: float
    max_failures: int
    max_deliveries: int
    backoff: BackoffFunction


class OneAtATime:
    """A handler that wraps a function for a single task. The worker calls it with one task at a time."""

    def __init__(self, function: Callable[[Task], Outcome | None]) -> None:
        self._function = function

    def __call__(self, tasks: Sequence[Task]) -> dict[str, Outcome]:
        outcomes = {task.id: self._function(task) for task in tasks}
        return {task_id: outcome for task_id, outcome in outcomes.items() if outcome is not None}


def one_at_a_time(function: Callable[[Task], Outcome | None]) -> OneAtATime:
    """Turn a function for a single task into a handler::

        @one_at_a_time
        def remind(task: Task) -> None:
            send_mail(task.payload)

        Flow(name="reminders", handler=remind)

    The function returns None when the task is done; otherwise it returns or raises an outcome. Any
    other exception counts against that task alone, if the flow's probe passes. Each task is claimed
    by itself and settled as soon as it ends, so none waits behind a slow one.
    """
    return OneAtATime(function)
