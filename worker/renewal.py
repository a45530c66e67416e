"""Leases that last as long as the work.

A lease is short, so that another worker takes over soon after this one died. While this one lives,
its leases are extended: whenever a third has passed, so that two attempts may fail before a lease
ends. A handler that is faster than that costs no extra command.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import redis
import structlog

from .errors import LeaseLost, described
from .flow import Flow, Task
from .isolation import Handled
from .queue import DelayQueue

log = structlog.get_logger("worker")

#: How much of a lease passes before it is extended, and between two looks at what is held.
RENEWED_AT = 1 / 3
LOOKED_AT = 1 / 12


class Held:
    """Tasks of one claim that this process is at work on. Times are on the monotonic clock."""

    def __init__(
        self, flow: Flow, queue: DelayQueue, tasks: Sequence[Task], claimed_at: float
    ) -> None:
        self.flow = flow
        self.queue = queue
        self._tasks = {task.id: task for task in tasks}
        self._lock = threading.Lock()
        #: The latest time at which the lease surely had not begun yet, and when the handler's last
        #: call began.
        self.leased_at = self.began_at = claimed_at
        #: Whether the handler has run for too long: the lease may end then.
        self.given_up = False

    def tasks(self) -> list[Task]:
        with self._lock:
            return [*self._tasks.values()]

    def begin(self, batch: Sequence[Task]) -> bool:
        """Begin a call of the handler, if the lease on all of its batch cannot have ended."""
        self.began_at = time.monotonic()
        with self._lock:
            held = all(task.id in self._tasks for task in batch)
        return held and self.began_at < self.leased_at + self.flow.lease_seconds

    def let_go(self, handled: Handled) -> None:
        """Stop extending what is about to be settled."""
        self.drop(task.id for task in handled.tasks())

    def drop(self, ids: Iterable[str]) -> list[str]:
        """Hold these no longer; return those that were held."""
        with self._lock:
            return [task_id for task_id in ids if self._tasks.pop(task_id, None)]


class Renewer:
    """Extends what is held, from one thread for all flows of a worker."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self._pause_seconds = LOOKED_AT * min(flow.lease_seconds for flow in flows)
        self._held: set[Held] = set()
        self._lock = threading.Lock()
        self._finished = threading.Event()

    @contextmanager
    def holding(
        self, flow: Flow, queue: DelayQueue, tasks: Sequence[Task], claimed_at: float
    ) -> Iterator[Held]:
        """Extend the lease on ``tasks``, claimed at that time or later, until the block ends."""
        held = Held(flow, queue, tasks, claimed_at)
        with self._lock:
            self._held.add(held)
        try:
            yield held
        finally:
            with self._lock:
                self._held.discard(held)

    def run(self) -> None:
        """Extend until `finish`: longer than claims are made, for as long as handlers run."""
        while not self._finished.wait(self._pause_seconds):
            self.renew(time.monotonic())

    def finish(self) -> None:
        self._finished.set()

    def renew(self, now: float) -> None:
        """Extend what was leased long enough before ``now``."""
        with self._lock:
            held = [*self._held]
        for each in held:
            if not each.given_up and now - each.leased_at >= RENEWED_AT * each.flow.lease_seconds:
                self._extend(each, now)

    def _extend(self, held: Held, now: float) -> None:
        tasks, queue, flow = held.tasks(), held.queue, held.flow
        if not tasks:
            return
        if now - held.began_at > flow.max_runtime_seconds:
            held.given_up = True
            ids = [task.id for task in tasks[:10]]
            log.error("handler runs too long, its lease ends", queue=queue.name, ids=ids)
            return
        try:
            queue.extend(tasks, round(flow.lease_seconds * 1000))
        except LeaseLost as lost:
            # Those that were settled meanwhile are not held any more, and not lost.
            if ids := held.drop(lost.ids):
                log.warning("lease lost while at work", queue=queue.name, ids=ids[:10])
        except redis.RedisError as error:
            log.warning("lease not extended yet", queue=queue.name, error=described(error))
            return
        held.leased_at = now
