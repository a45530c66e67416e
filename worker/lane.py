"""Claims and waits: the threads that work for one flow, or for the flows of one pool.

One thread at a time waits and claims; the others handle what they claimed. So however many
threads there are, an idle lane asks Redis once per slow poll, and sleeps in between until
exactly when the next task is due.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import redis
import structlog

from . import events
from .backoff import Backoff
from .errors import described
from .flow import Flow, Task
from .isolation import Results, handle
from .outages import Needs
from .queue import Claim, DelayQueue
from .renewal import Held, Renewer
from .settling import Settler

log = structlog.get_logger("worker")

#: Longest wait between two looks at the queue. Every peer that trusted its wake-up signal
#: alone has had workers that slept for ever.
SLOW_POLL_SECONDS = 5.0
#: How long a claim whose tasks are handled one at a time may take: those that wait their turn could
#: be running in another thread or worker.
SHARE_SECONDS = 0.5
#: How often to look whether Redis is back.
RECONNECT = Backoff(base_seconds=0.1, cap_seconds=1.0)


class ServerCheck:
    """Makes sure, once for each server, that it deletes nothing on its own."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self._checked = False

    def check(self) -> None:
        """Raise UnsafeServer if the server is unsafe. Not reaching it is no reason to stop."""
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
        """Check again: it may be another server."""
        self._checked = False


class Station:
    """A flow at work: its queue, how much of it to claim, and whether it can go on."""

    def __init__(
        self,
        flow: Flow,
        queue: DelayQueue,
        *,
        needs: Needs,
        server: "ServerCheck",
        counts: Counter[str],
        emit: events.Listener,
    ) -> None:
        self.flow = flow
        self.queue = queue
        self.needs = needs
        self.settler = Settler(flow, queue, counts, emit)
        self.renewer = Renewer(flow, queue, emit)
        self._server = server
        self._emit = emit
        #: How many tasks to claim.
        self.limit = 1 if flow.one_at_a_time else flow.batch_size
        #: Claims that Redis did not serve, in a row, since when, and when to try again.
        self._failed_claims = 0
        self._failing_since = self._claim_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether Redis did not serve the last claim."""
        return self._failed_claims > 0

    def claim_in(self, now: float) -> float | None:
        """Seconds until a claim makes sense, 0 or less for now; None while the flow is down."""
        return self._claim_at - now if self.needs.up else None

    def claim(self, limit: int | None = None) -> Claim:
        """Settle what is owed, and claim: ``limit`` tasks at most, or what suits the flow.

        Raises redis.RedisError, and UnsafeServer.
        """
        try:
            self.settler.settle_owed()
            claim = self.queue.claim(limit or self.limit, round(self.flow.lease_seconds * 1000))
        except redis.RedisError as error:
            now = time.monotonic()
            if not self._failed_claims:
                self._failing_since = now
                self._emit(events.RedisLost(self.queue.name, error))
            self._failed_claims += 1
            self._server.forget()  # it may come back as another server
            self._claim_at = now + RECONNECT(self._failed_claims)
            raise
        if self._failed_claims:
            self._failed_claims = 0
            seconds = time.monotonic() - self._failing_since
            self._emit(events.RedisBack(self.queue.name, seconds))
        self._server.check()
        return claim

    def adapt(self, results: Results, seconds: float) -> None:
        """Halve the limit if tasks were left untouched, or if handling them one at a time took
        longer than `SHARE_SECONDS`. Otherwise double it; one at a time, only if it took less than
        half of that.
        """
        if not results.outage:
            self.needs.handled()
        alone = self.flow.one_at_a_time
        if results.untouched or (alone and seconds > SHARE_SECONDS):
            self.limit = max(1, self.limit // 2)
        elif not alone or seconds < SHARE_SECONDS / 2:
            self.limit = min(self.flow.batch_size, self.limit * 2)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tasks of one claim, to be handled."""

    station: Station
    tasks: list[Task]
    #: On the monotonic clock, before they were leased.
    claimed_at: float
    #: On the server's clock, when they were.
    now_ms: int


class Lane:
    """Works for stations in strict priority: the first that has something due goes first."""

    def __init__(self, *, emit: events.Listener, stopping: threading.Event) -> None:
        self.stations: list[Station] = []
        #: Ends the wait: something is due earlier, or a flow can go on.
        self.alarm = threading.Event()
        self._emit = emit
        self._stopping = stopping
        self._turn = threading.Lock()

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
        if not self._turn.acquire(timeout=patience):
            return None
        try:
            return self._next(limit, until)
        finally:
            self._turn.release()

    def _next(self, limit: int | None, until: float) -> Batch | None:
        while not self._stopping.is_set():
            self.alarm.clear()
            wait = SLOW_POLL_SECONDS
            for station in self.stations:
                claimed_at = time.monotonic()
                claim_in = station.claim_in(claimed_at)
                if claim_in is None:
                    station.settler.settle_owed()
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
            # What Redis did not take may come again: the less of that the better. And what waits for
            # slow tasks is given back, for another thread or worker.
            shared = not flow.one_at_a_time or time.monotonic() - began < SHARE_SECONDS
            return settled and shared and not self._stopping.is_set() and held.begin(next_tasks)

        with station.renewer.holding(tasks, batch.claimed_at) as held:
            for part in handle(flow, tasks, keep_going):
                settled = self.settle(batch, held, part)
                results.merge(part)
        station.adapt(results, time.monotonic() - began)

    def bury_undeliverable(self, batch: Batch) -> list[Task]:
        """Make dead letters of tasks that were delivered too often; return the others.

        Such a task comes alone, unless ``max_deliveries`` was lowered while it was put off.
        """
        most = batch.station.flow.max_deliveries
        undeliverable = [task for task in batch.tasks if task.deliveries >= most]
        reason = f"delivered {most} times and never settled"
        batch.station.settler.bury([(task, reason, None) for task in undeliverable])
        return [task for task in batch.tasks if task.deliveries < most]

    def settle(self, batch: Batch, held: Held, results: Results) -> bool:
        """Settle what became of some tasks of a batch; whether Redis took all of it."""
        station = batch.station
        if results.outage:
            station.needs.take_down(results.outage)
        held.let_go(results)
        ended_at = time.monotonic()
        settled = station.settler.settle(results)
        self._tell(batch, results, held.began_at, ended_at)
        return settled

    def _tell(self, batch: Batch, results: Results, began_at: float, ended_at: float) -> None:
        tasks = [*results.handled()]
        if tasks:
            self._emit(
                events.Handled(
                    batch.station.queue.name,
                    tasks,
                    done=len(results.done) + len(results.rescheduled),
                    retries=len(results.retries),
                    failed=len(results.failed) + len(results.dead),
                    seconds=ended_at - began_at,
                    late_ms=_late_ms(tasks, batch.now_ms)
                    + round(1000 * (ended_at - batch.claimed_at)),
                )
            )


def _late_ms(tasks: Sequence[Task], now_ms: int) -> int:
    """How late the first of them is, on the server's clock."""
    return now_ms - min(task.due_at_ms for task in tasks)
