"""The sweep makes the application's records the truth, and Redis an accelerator.

Whatever Redis lost, in a crash, a flush or a failover, the records still have. The sweep reads
what they say is waiting and restores it; only while Redis does not answer, it hands what is
overdue to the flow's own handler. There is no outage detection and no second way to finish a
task.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence

import redis
import structlog

from .errors import Unavailable
from .flow import Due, Flow, Sweep, Task
from .isolation import Handled, handle
from .logs import log_failure
from .queue import DelayQueue, Restored

log = structlog.get_logger("worker")

#: A task overdue by less is left to the claims, which are about to take it.
GRACE_SECONDS = 1.0


class Sweeper:
    """Sweeps one flow every ``sweep_seconds``, on a connection of its own."""

    def __init__(
        self,
        flow: Flow,
        records: Sweep,
        *,
        queue: DelayQueue,
        claims: DelayQueue,
        alarm: threading.Event,
        stopping: threading.Event,
        counts: Counter[str],
    ) -> None:
        self._flow = flow
        self._records = records
        self._queue = queue
        #: The same queue as the claims see it: what either learns of a pause, both know.
        self._claims = claims
        #: Ends the claims' wait.
        self._alarm = alarm
        self._stopping = stopping
        self._counts = counts
        #: Whether Redis did what it was last asked, and the records were last readable.
        self._redis_answers = True
        self._records_answer = True
        #: Ids that failed while Redis was away, where no failure could be counted.
        self._failed: set[str] = set()

    def run(self) -> None:
        """Sweep until the worker stops."""
        next_sweep = next_lookahead = time.monotonic()
        while not self._stopping.wait(max(0.0, next_sweep - time.monotonic())):
            now = time.monotonic()
            next_sweep = now + self._flow.sweep_seconds
            lookahead = now >= next_lookahead
            if lookahead:
                next_lookahead = now + self._flow.lookahead_seconds
            self.sweep(lookahead=lookahead)

    def sweep(self, *, lookahead: bool = False) -> None:
        """One round: what is overdue, then with ``lookahead`` what is due soon."""
        try:
            self._sweep_overdue()
            if lookahead:  # even after an outage: with nothing overdue, only this asks Redis
                self._sweep_upcoming()
        except Unavailable as error:
            if self._records_answer:
                log.warning("sweep cannot read records", queue=self._flow.name, error=str(error))
            self._records_answer = False
        except Exception:  # whatever it is, the next round may do better
            log.exception("sweep failed", queue=self._flow.name)
        else:
            self._records_answer = True

    def _sweep_overdue(self) -> None:
        # Nobody else takes what is due while Redis is away, so then there is no grace.
        grace = GRACE_SECONDS if self._redis_answers else 0.0
        ask = True
        for page in self._records(None, -grace):
            if self._stopping.is_set():
                return
            found = self._restore(page) if ask else None
            if found is None:
                ask = False  # once a round: each silence costs a time-out
                if self._claims.last_known_paused:
                    return
                self._handle(page)
            elif found.paused:
                return
            elif found.pending or found.restored:
                self._alarm.set()  # overdue, so look now: a wake-up may have been lost
                if not found.restored:
                    # A backlog: the claims are at this page, and come to the next one in turn.
                    return

    def _sweep_upcoming(self) -> None:
        # Reaches past the next look-ahead, so that each task is seen before it is due.
        for page in self._records(-GRACE_SECONDS, 2 * self._flow.lookahead_seconds):
            found = self._restore(page)
            if found is None or found.paused or self._stopping.is_set():
                return

    def _restore(self, page: Sequence[Due]) -> Restored | None:
        """Restore a page; None when Redis did not."""
        try:
            found = self._queue.restore(page)
        except redis.RedisError as error:
            if self._redis_answers:
                log.warning("sweep goes on without Redis", queue=self._flow.name, error=str(error))
            self._redis_answers = False
            return None
        self._redis_answers = True
        self._claims.last_known_paused = found.paused
        self._failed.clear()
        if found.restored:
            self._counts["restored"] += found.restored
            log.info("restored", queue=self._flow.name, tasks=found.restored)
        return found

    def _handle(self, page: Sequence[Due]) -> None:
        """Hand what is overdue to the flow's own handler. Raises Unavailable as that does."""
        tasks = [
            Task(id=due.id) for due in page if due.delay_ms <= 0 and due.id not in self._failed
        ]
        if not tasks:
            return
        handled = Handled()
        for part in handle(self._flow, tasks, lambda _: not self._stopping.is_set()):
            handled.merge(part)
        at_fault = [*handled.failed, *handled.dead]
        for task, error in at_fault:
            log_failure(self._flow.name, task.id, error)
        self._failed.update(task.id for task, _ in at_fault)
        self._counts["handled without Redis"] += len(handled.done)
        log.info(
            "handled without Redis",
            queue=self._flow.name,
            done=len(handled.done),
            failed=len(at_fault),
        )
        if handled.outage:
            raise handled.outage
