"""Tells Redis of deadlines, in a thread beside the requests."""

from collections.abc import Mapping
from multiprocessing.util import Finalize
from threading import Condition, Thread
from time import sleep

import redis
import structlog

from worker import DelayQueue

#: How long a change waits for others to go with it: in a call of its own each would cost as much as
#: twenty of them together.
GATHER_SECONDS = 0.01
#: Changes that wait while Redis is slow.
MOST_WAITING = 10_000

log = structlog.get_logger("orders")


class RedisScheduler:
    """Schedules and cancels checks from a thread of its own, many in one call.

    No customer waits for Redis. What Redis does not take, and what this process had not said yet
    when it was killed, the sweep finds in SQL; a check that was to be cancelled finds, when it is
    due, that there is nothing to do.
    """

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        #: When each order's check is due; None: there is nothing left to check.
        self._changes: dict[str, int | None] = {}
        self._told = Condition()
        self._closing = False
        self._thread = Thread()

    def schedule(self, order_id: str, due_at_ms: int) -> None:
        self._tell(order_id, due_at_ms)

    def cancel(self, order_id: str) -> None:
        self._tell(order_id, None)

    def close(self) -> None:
        """Say what was not said yet, for a second at most."""
        with self._told:
            self._closing = True
            self._told.notify()
            thread = self._thread
        if thread.is_alive():
            thread.join(1.0)

    def _tell(self, order_id: str, due_at_ms: int | None) -> None:
        with self._told:
            full = len(self._changes) >= MOST_WAITING
            if not full:
                self._changes[order_id] = due_at_ms
                self._told.notify()
            if not self._thread.is_alive():
                self._start()
        if full:
            log.warning("not told to Redis", order=order_id)

    def _start(self) -> None:
        # Not before it is needed: a server forks its workers after it has wired them.
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads: the next change tries again
            log.warning("scheduler not started", error=str(error))
        else:
            Finalize(None, self.close, exitpriority=0)  # a server's workers run no atexit

    def _run(self) -> None:
        while True:
            with self._told:
                self._told.wait_for(lambda: self._changes or self._closing)
            if not self._closing:
                sleep(GATHER_SECONDS)
            with self._told:
                changes, self._changes = self._changes, {}
                if not changes:
                    self._thread = Thread()  # whoever comes now starts another
                    return
            try:
                self._say(changes)
            except redis.RedisError as error:
                log.warning("checks left to the sweep", orders=len(changes), error=str(error))
            except Exception:
                log.exception("checks left to the sweep", orders=len(changes))

    def _say(self, changes: Mapping[str, int | None]) -> None:
        self._queue.cancel_many(order_id for order_id, due in changes.items() if due is None)
        self._queue.schedule_many(
            (order_id, due, b"") for order_id, due in changes.items() if due is not None
        )
