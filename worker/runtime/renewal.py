"""Leases that last as long as the work.

A lease is short, so that another worker takes over soon after this one dies. While this worker is alive, it
extends each lease after a third of its length, so that two attempts may fail before the lease ends.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import redis

from .. import events
from ..errors import LeaseLost, described
from ..flow import Flow, Task
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.environment import Clock
from .isolation import BatchResult
from .settling import Settler
from .shared import Shared, repeat

#: As fractions of a lease: how much of it passes before it is extended, and how often to check.
EXTEND_AFTER = 1 / 3
CHECK_EVERY = 1 / 12
#: Longest time between two checks. After an outage Redis spares the leases for 2 s, in which they are extended.
MOST_SECONDS = 1.0


class HeldTasks:
    """Tasks of one claim that this process holds. Times are on the monotonic clock, in seconds."""

    def __init__(self, flow: Flow, tasks: Sequence[Task], claimed_at: float, clock: Clock) -> None:
        self._clock = clock
        self._lease_seconds = flow.lease_seconds
        self._tasks = {task.id: task for task in tasks}
        self._lock = threading.Lock()
        #: The lease began at this time or later.
        self.leased_at = claimed_at
        #: When the handler's latest call began.
        self.began_at = claimed_at
        #: The tasks of that call.
        self._begun: set[str] = set()
        #: Whether this call of the handler has run for too long, so that its lease is no longer extended.
        self.given_up = False

    def tasks(self) -> list[Task]:
        with self._lock:
            return [*self._tasks.values()]

    def ids(self) -> set[str]:
        """The tasks that are held, and those of the handler's latest call, even if their lease was lost."""
        with self._lock:
            return set[str]() if self.given_up else {*self._tasks, *self._begun}

    def begin(self, batch: Sequence[Task]) -> bool:
        """Note that a call of the handler begins; return whether its whole batch is certain to be leased still."""
        self.began_at, self.given_up = self._clock(), False
        ids = {task.id for task in batch}
        with self._lock:
            if held := self._tasks.keys() >= ids:
                self._begun = ids
        return held and self.began_at < self.leased_at + self._lease_seconds

    def stop_extending(self, results: BatchResult) -> None:
        """Stop extending the leases of tasks that are about to be settled."""
        ended = {task.id for task in results.tasks()}
        self.drop(ended)
        with self._lock:
            self._begun -= ended

    def still_held(self, tasks: Iterable[Task]) -> list[Task]:
        """The tasks among ``tasks`` that are still held."""
        with self._lock:
            return [task for task in tasks if task.id in self._tasks]

    def drop_all(self) -> list[Task]:
        """Stop holding all tasks; return them."""
        with self._lock:
            tasks = [*self._tasks.values()]
            self._tasks.clear()
            return tasks

    def drop(self, ids: Iterable[str]) -> list[str]:
        """Stop holding these tasks; return the ids of those that were held."""
        with self._lock:
            return [task_id for task_id in ids if self._tasks.pop(task_id, None)]


class Renewer:
    """Extends the leases of one flow's tasks that this process holds."""

    def __init__(self, flow: Flow, queue: DelayQueue, shared: Shared, settler: Settler) -> None:
        self._flow = flow
        self._queue = queue
        self._clock, self._emit = shared.clock, shared.emit
        self._settler = settler
        self._held: set[HeldTasks] = set()
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._silence = Reminder(self._clock)

    @contextmanager
    def holding(self, tasks: Sequence[Task], claimed_at: float) -> Iterator[HeldTasks]:
        """Extend the lease on ``tasks``, which began at ``claimed_at`` or later, until the block ends."""
        held = HeldTasks(self._flow, tasks, claimed_at, self._clock)
        with self._lock:
            self._held.add(held)
        try:
            yield held
        finally:
            with self._lock:
                self._held.discard(held)

    def held(self) -> list[HeldTasks]:
        """The claims that are being worked on now."""
        with self._lock:
            return [*self._held]

    def held_ids(self) -> set[str]:
        """The ids of the tasks that this process is working on, whether or not Redis still knows of it."""
        return {task_id for held in self.held() for task_id in held.ids()}

    def run(self) -> None:
        """Extend leases until `finish`, which a stopping worker calls once its last handler has returned."""
        repeat(self.round, self._finished)

    def round(self) -> float:
        """Extend what is old enough; return in how many seconds to look again."""
        self.renew(self._clock())
        # A claim does the same, but there may be none: other queues of a consumer may have a backlog.
        with suppress(redis.RedisError):
            self._settler.resend()
        return min(CHECK_EVERY * self._flow.lease_seconds, MOST_SECONDS)

    def finish(self) -> None:
        self._finished.set()

    def renew(self, now: float) -> None:
        """Extend the leases that are old enough at ``now``."""
        rows: list[tuple[HeldTasks, Task]] = []
        for held in sorted(self.held(), key=lambda held: held.leased_at):
            old = now - held.leased_at >= EXTEND_AFTER * self._flow.lease_seconds
            if old and not self._gives_up(held, now):
                rows += [(held, task) for task in held.tasks()]
        if rows:
            self._extend(rows, now)

    def _gives_up(self, held: HeldTasks, now: float) -> bool:
        """Whether a call of the handler has run for too long."""
        tasks = held.tasks()
        if tasks and not held.given_up and now - held.began_at > self._flow.max_runtime_seconds:
            held.given_up = True
            self._emit(events.RanTooLong(self._queue.name, [task.id for task in tasks]))
        return held.given_up

    def _extend(self, rows: Sequence[tuple[HeldTasks, Task]], now: float) -> None:
        """Extend the leases on these tasks in one call; of a task that was claimed twice, that of the later claim."""
        latest = {task.id: (held, task) for held, task in rows}
        lost = [(held, task.id) for held, task in rows if latest[task.id][0] is not held]
        lease_ms = round(self._flow.lease_seconds * 1000)
        try:
            self._queue.extend([task for _, task in latest.values()], lease_ms)
        except LeaseLost as error:
            lost += [(latest[task_id][0], task_id) for task_id in error.ids]
        except redis.RedisError as error:
            if self._silence.is_due():
                log.warning(
                    "lease not extended yet", queue=self._queue.name, error=described(error)
                )
            return
        self._silence.reset()
        # Tasks that were settled in the meantime are no longer held, but they are not lost.
        if ids := [task_id for held, task_id in lost if held.drop([task_id])]:
            self._emit(events.LeaseLost(self._queue.name, ids))
        for held, _ in rows:
            held.leased_at = now
