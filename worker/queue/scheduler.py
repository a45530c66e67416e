"""Schedules and cancels tasks in a background thread, many in one call."""

import os
import weakref
from itertools import islice
from multiprocessing.util import Finalize
from threading import Condition, Thread
from time import sleep
from typing import NamedTuple, Self

from ..errors import described
from ..flow import MAX_DELAY_MS, Due
from ..log import Reminder, log
from .delay_queue import DelayQueue
from .formats import SLICE, id_to_bytes, row_of, task_to_schedule

#: How long a change waits for others to be sent with it. Sending one costs as much as sending twenty.
LINGER_SECONDS = 0.01
#: How many changes may wait while Redis is slow; more are dropped.
MAX_WAITING = 10_000
#: How long `BatchScheduler.close` waits until everything is sent.
CLOSE_SECONDS = 1.0


class _Entry(NamedTuple):
    """A task that waits to be sent."""

    task: tuple[str, float, bytes] | Due
    #: When it was scheduled, on the monotonic clock, in seconds.
    since: float
    even_if_dead: bool

    def at(self, now: float) -> tuple[str, float, bytes] | Due:
        """The task, with its delay shortened by the time that it has waited."""
        if not isinstance(self.task, Due):
            return self.task
        delay_ms = self.task.delay_ms - 1000 * (now - self.since)
        return self.task._replace(delay_ms=max(-MAX_DELAY_MS, delay_ms))


class BatchScheduler:
    """Schedules and cancels the tasks of a queue without making the caller wait for Redis::

        with BatchScheduler(DelayQueue(client, "reminders")) as scheduler:
            scheduler.schedule("visit-7", delay_ms=86_400_000, payload=b"...")
            scheduler.cancel("visit-6")

    A thread gathers changes for 0.01 s and sends them together. Of several changes to one task, only the last
    is sent. The thread starts with the first change, so a scheduler may be made before a server forks its
    workers. A process that ends normally sends the changes that wait, as `close` does.

    This is best effort. A change is lost if Redis does not take it, if 10,000 others are waiting, or if the
    process is killed before it is sent; the first two are logged, once a minute. So use it for flows with a sweep, which
    restores what was lost, and with a handler that does nothing for a task that should have been cancelled.
    Otherwise call `DelayQueue.schedule`, which raises.
    """

    def __init__(self, queue: DelayQueue) -> None:
        """Send nothing and start no thread yet."""
        self._queue = queue
        self._clock = queue.environment.clock
        self._failure, self._full = Reminder(self._clock), Reminder(self._clock)
        self._reset()
        if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
            reset = weakref.WeakMethod(self._reset)
            os.register_at_fork(after_in_child=lambda: (method := reset()) and method())

    def _reset(self) -> None:
        # A forked process has no thread, and perhaps a lock that nobody will release. The parent sends the
        # changes that were waiting.
        self._changed = Condition()
        #: By task id; None means that the task is cancelled.
        self._waiting: dict[str, _Entry | None] = {}
        self._closing = False
        self._thread = Thread()
        self._at_exit: Finalize[None] | None = None

    def schedule(
        self,
        task_id: str,
        due_at_ms: float | None = None,
        payload: bytes = b"",
        *,
        delay_ms: float | None = None,
        even_if_dead: bool = False,
    ) -> None:
        """Schedule a task as `DelayQueue.schedule` does, but in the background. A delay counts from this call.

        With ``even_if_dead``, its dead letter is purged first. Otherwise a dead task stays dead.

        Raises ValueError or TypeError for a task that cannot be stored: sent with others, it would make all of
        them fail.
        """
        if not isinstance(payload, bytes):
            raise TypeError(f"the payload of {task_id!r} is {payload!r}, not bytes")
        task = task_to_schedule(task_id, due_at_ms, payload, delay_ms)
        row_of(task)  # to raise now what it would raise when it is sent
        self._change(task_id, _Entry(task, self._clock(), even_if_dead))

    def cancel(self, task_id: str) -> None:
        """Cancel a task as `DelayQueue.cancel` does, but in the background.

        Raises ValueError for an id that cannot be sent.
        """
        id_to_bytes(task_id)
        self._change(task_id, None)

    def close(self) -> None:
        """Send the changes that wait, for up to 1 s. The scheduler can be used again afterwards."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            if self._waiting and not self._thread.is_alive():
                self._start()
            thread = self._thread
        if thread.is_alive():
            thread.join(CLOSE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _change(self, task_id: str, change: _Entry | None) -> None:
        with self._changed:
            dropped = len(self._waiting) >= MAX_WAITING and task_id not in self._waiting
            if not dropped:
                self._waiting[task_id] = change
                self._changed.notify()
            if not self._thread.is_alive():
                self._start()
        if dropped and self._full.is_due():
            log.warning("too many changes waiting", queue=self._queue.name)

    def _start(self) -> None:
        self._thread = Thread(target=self._run, name=f"scheduler {self._queue.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # out of threads: the next change tries again
            self._failed("scheduler not started", error)
        else:
            # Finalize, because atexit's functions are not called in processes that multiprocessing forked.
            self._at_exit = Finalize(None, self.close, exitpriority=0)

    def _end(self) -> None:
        self._thread = Thread()  # the next change starts another
        self._closing = False
        if self._at_exit is not None:
            self._at_exit.cancel()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                lingers = len(self._waiting) < SLICE and not self._closing
            if lingers:
                sleep(LINGER_SECONDS)
            with self._changed:
                changes = {
                    task_id: self._waiting.pop(task_id)
                    for task_id in [*islice(self._waiting, SLICE)]
                }
                if not changes:
                    self._end()
                    return
            self._send(changes)

    def _send(self, changes: dict[str, _Entry | None]) -> None:
        cancelled = [task_id for task_id, entry in changes.items() if entry is None]
        revived = [task_id for task_id, entry in changes.items() if entry and entry.even_if_dead]
        scheduled = (entry.at(self._clock()) for entry in changes.values() if entry is not None)
        try:
            # Cancel first: a server whose memory is full still can.
            self._queue.cancel_many(cancelled)
            self._queue.purge(revived)
            self._queue.schedule_many(scheduled)
        except Exception as error:  # noqa: BLE001  whatever it is, the next changes are sent
            self._failed("changes not sent", error)
        else:
            self._failure.reset()

    def _failed(self, event: str, error: Exception) -> None:
        if self._failure.is_due():
            log.warning(event, queue=self._queue.name, error=described(error))
