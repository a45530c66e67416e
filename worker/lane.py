"""The threads that wait, claim and handle tasks for one flow, or for the flows of one pool.

One thread at a time waits and claims; the others handle what they claimed. So an idle lane polls Redis
once every `SLOW_POLL_SECONDS` however many threads it has, and wakes exactly when the next task is due.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import redis
import structlog

from . import events
from .backoff import Backoff
from .errors import described
from .flow import Flow, Task
from .isolation import Results, handle
from .outages import Health
from .queue import Claim, DelayQueue
from .renewal import SHARE_SECONDS, Held, Renewer
from .settling import Settler

log = structlog.get_logger("worker")

#: Longest wait between two claims: a wake-up may be lost with its connection, and a worker that waits
#: for nothing else may sleep forever.
SLOW_POLL_SECONDS = 5.0
#: How long to wait after a failed claim.
RECONNECT = Backoff(base_seconds=0.1, cap_seconds=1.0)


class ServerCheck:
    """Checks the eviction policy of each server once."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self._checked = False

    def check(self) -> None:
        """Raises UnsafeServer. A server that does not answer is checked later."""
        if self._checked:
            return
        try:
            warnings = self._queue.check_server()
        except redis.RedisError as error:
            log.warning("Redis could not be checked yet", error=described(error))
            return
        self._checked = True
        for warning in warnings:
            log.warning(warning)

    def forget(self) -> None:
        """Check again next time: after an outage it may be another server."""
        self._checked = False


class Station:
    """A flow in this worker: its queue, how many tasks to claim, and when."""

    def __init__(
        self,
        flow: Flow,
        queue: DelayQueue,
        *,
        health: Health,
        server: ServerCheck,
        counts: Counter[str],
        emit: events.Listener,
    ) -> None:
        self.flow = flow
        self.queue = queue
        self.health = health
        self.settler = Settler(flow, queue, counts, emit)
        self.renewer = Renewer(flow, queue, emit)
        self._server = server
        self._emit = emit
        #: How many tasks to claim.
        self.limit = 1 if flow.one_at_a_time else flow.batch_size
        #: How many claims have failed in a row, since when, and when to claim again.
        self._failed_claims = 0
        self._failing_since = self._claim_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether the last claim failed."""
        return self._failed_claims > 0

    def claim_in(self, now: float) -> float | None:
        """Seconds until the next claim is allowed, 0 or less if it is now; None while the flow is down."""
        return self._claim_at - now if self.health.up else None

    def claim(self, limit: int | None = None) -> Claim:
        """Send unconfirmed calls again, then claim ``limit`` tasks at most, or as many as suit the flow.

        Raises redis.RedisError and UnsafeServer.
        """
        try:
            self.settler.resend()
            claim = self.queue.claim(limit or self.limit, round(self.flow.lease_seconds * 1000))
        except redis.RedisError as error:
            now = time.monotonic()
            if not self._failed_claims:
                self._failing_since = now
                self._emit(events.RedisLost(self.queue.name, error))
            self._failed_claims += 1
            self._server.forget()
            self._claim_at = now + RECONNECT(self._failed_claims)
            raise
        if self._failed_claims:
            self._failed_claims = 0
            seconds = time.monotonic() - self._failing_since
            self._emit(events.RedisBack(self.queue.name, seconds))
        self._server.check()
        return claim

    def adapt(self, results: Results, seconds: float) -> None:
        """Adapt the limit to what became of a claim and how long that took.

        Halve it if tasks were released. With tasks handled one at a time, also halve it above
        `SHARE_SECONDS`, and keep it above half of that. Otherwise double it.
        """
        if not results.outage:
            self.health.handled()
        alone = self.flow.one_at_a_time
        if results.untouched or (alone and seconds > SHARE_SECONDS):
            self.limit = max(1, self.limit // 2)
        elif not alone or seconds < SHARE_SECONDS / 2:
            self.limit = min(self.flow.batch_size, self.limit * 2)


@dataclass(frozen=True, slots=True)
class Batch:
    """The tasks of one claim."""

    station: Station
    tasks: list[Task]
    #: On the monotonic clock, before the claim was sent.
    claimed_at: float
    #: The server's time at the claim.
    now_ms: int


class Lane:
    """Works for its stations in strict priority: the first one with something due is claimed from."""

    def __init__(self, *, emit: events.Listener, stopping: threading.Event) -> None:
        self.stations: list[Station] = []
        #: Ends the wait: something is due earlier, or a flow is up again.
        self.alarm = threading.Event()
        self._emit = emit
        self._stopping = stopping
        self._claim_lock = threading.Lock()

    def run(self) -> None:
        """Work until the worker stops; as many threads run this as the lane has."""
        while (batch := self.next()) is not None:
            self._handle(batch)

    # -- claim and wait --------------------------------------------------------------------

    def next(self, limit: int | None = None, until: float = math.inf) -> Batch | None:
        """Wait for the next batch; None when stopping, or when there is none ``until`` then.

        ``until`` is on the monotonic clock. Unless it is another thread's turn all the time, the
        lane looks at least once.
        """
        patience = -1 if until == math.inf else max(0.0, until - time.monotonic())
        if not self._claim_lock.acquire(timeout=patience):
            return None
        try:
            return self._next(limit, until)
        finally:
            self._claim_lock.release()

    def _next(self, limit: int | None, until: float) -> Batch | None:
        while not self._stopping.is_set():
            self.alarm.clear()
            wait = SLOW_POLL_SECONDS
            for station in self.stations:
                claimed_at = time.monotonic()
                claim_in = station.claim_in(claimed_at)
                if claim_in is None:
                    with suppress(redis.RedisError):
                        station.settler.resend()
                    continue
                if claim_in <= 0:
                    try:
                        claim = station.claim(limit)
                    except redis.RedisError:
                        claim_in = station.claim_in(time.monotonic())
                    else:
                        if claim.tasks:
                            return self._batch(station, claim, claimed_at)
                        claim_in = claim.next_in_ms and claim.next_in_ms / 1000
                if claim_in is not None:
                    wait = min(wait, max(0.0, claim_in))
            left = until - time.monotonic()
            if left <= 0 or self._stopping.is_set():
                return None
            wait = min(wait, left)
            self._emit(events.Waiting(self.stations[0].queue.name, wait))
            self.alarm.wait(wait)
        return None

    def _batch(self, station: Station, claim: Claim, claimed_at: float) -> Batch:
        late_ms = _late_ms(claim.tasks, claim.now_ms)
        self._emit(events.Claimed(station.queue.name, claim.tasks, late_ms))
        return Batch(station, claim.tasks, claimed_at, claim.now_ms)

    # -- handle ----------------------------------------------------------------------------

    def _handle(self, batch: Batch) -> None:
        station, flow = batch.station, batch.station.flow
        tasks = self.bury_undeliverable(batch)
        if not tasks:
            return
        began = time.monotonic()
        results, settled = Results(), True

        def keep_going(next_tasks: Sequence[Task]) -> bool:
            # Tasks whose settling Redis did not confirm may be delivered again, so begin no more of them.
            shared = not flow.one_at_a_time or time.monotonic() - began < SHARE_SECONDS
            return settled and shared and not self._stopping.is_set() and held.begin(next_tasks)

        with station.renewer.holding(tasks, batch.claimed_at) as held:
            for part in handle(flow, tasks, keep_going):
                settled = self.settle(batch, held, part)
                results.merge(part)
        station.adapt(results, time.monotonic() - began)

    def bury_undeliverable(self, batch: Batch) -> list[Task]:
        """Make dead letters of tasks that were delivered too often; return the others.

        Such a task is claimed alone, unless ``max_deliveries`` was lowered in the meantime.
        """
        most = batch.station.flow.max_deliveries
        undeliverable = [task for task in batch.tasks if task.deliveries >= most]
        reason = f"delivered {most} times and never settled"
        batch.station.settler.bury([(task, reason, None) for task in undeliverable])
        return [task for task in batch.tasks if task.deliveries < most]

    def settle(self, batch: Batch, held: Held, results: Results) -> bool:
        """Settle what became of some tasks of a batch; return whether Redis confirmed all of it."""
        station = batch.station
        if results.outage:
            station.health.take_down(results.outage)
        results.untouched = held.still_held(results.untouched)
        held.let_go(results)
        ended_at = time.monotonic()
        settled = station.settler.settle(results)
        if not settled:
            self.alarm.set()  # whoever waits sends it again now, and not after its wait
        self._emit_handled(batch, results, held.began_at, ended_at)
        return settled

    def _emit_handled(
        self, batch: Batch, results: Results, began_at: float, ended_at: float
    ) -> None:
        if tasks := [*results.handled()]:
            late_ms = _late_ms(tasks, batch.now_ms) + round(1000 * (ended_at - batch.claimed_at))
            seconds = ended_at - began_at
            self._emit(handled_event(batch.station.queue.name, results, seconds, late_ms))


def handled_event(
    queue: str, results: Results, seconds: float, late_ms: int, *, without_redis: bool = False
) -> events.Handled:
    """The event for one call of a handler."""
    return events.Handled(
        queue,
        [*results.handled()],
        done=len(results.done) + len(results.rescheduled),
        retries=len(results.retries),
        failed=len(results.failed) + len(results.dead),
        seconds=seconds,
        late_ms=late_ms,
        without_redis=without_redis,
    )


def _late_ms(tasks: Sequence[Task], now_ms: int) -> int:
    """How late the earliest of these tasks was at ``now_ms``, ms on the server's clock."""
    return now_ms - min(task.due_at_ms for task in tasks)
