"""The threads that wait, claim and handle tasks for one flow, or for the flows of one pool.

One thread at a time waits and claims; the others handle what they have claimed. So an idle lane, however
many threads it has, polls Redis once every `SLOW_POLL_SECONDS`, or as rarely as its flows allow, and wakes
exactly when the next task is due.
"""

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import redis

from .. import events
from ..backoff import Backoff
from ..errors import UnsafeServer, described
from ..flow import Flow, Task
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Claim
from .isolation import BatchResult, LookAgain, Strikes, handle
from .outages import Gate
from .pauses import PauseWatch
from .recurring import Recurrence, Recurring
from .renewal import HeldTasks, Renewer
from .settling import Settler
from .shared import Shared
from .waker import Alarm

#: How long to wait after a failed claim.
RECONNECT = Backoff(base_seconds=0.1, cap_seconds=1.0)
#: How long one round of claims may take. Each call to Redis ends within a second, but a DNS lookup may take
#: longer.
STALLED_SECONDS = 30.0
#: Longest wait between two claims: a wake-up may be lost with its connection, and a worker that relied on
#: wake-ups alone might then wait forever.
SLOW_POLL_SECONDS = 5.0
#: How much later it may be.
MARGIN_SECONDS = 1.0


class ServerCheck:
    """Checks the eviction policy of a server once, and again after an outage."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self._checked = False
        self._silence = Reminder(queue.environment.clock)
        #: Whether the server may delete tasks, as far as is known.
        self.unsafe = False

    def check(self) -> None:
        """Raise UnsafeServer if the server may delete tasks. A server that does not answer is checked later."""
        if self._checked:
            return
        try:
            self._queue.check_server()
        except redis.RedisError as error:
            if self._silence.is_due():
                log.warning("Redis could not be checked yet", error=described(error))
            return
        except UnsafeServer:
            self.unsafe = True
            raise
        self._checked, self.unsafe = True, False
        self._silence.reset()

    def forget(self) -> None:
        """Check again next time, because after an outage it may be another server."""
        self._checked = False


class Station:
    """One flow in this process, with its queue and everything that works on it."""

    def __init__(
        self, flow: Flow, queue: DelayQueue, shared: Shared, *, gate: Gate, server: ServerCheck
    ) -> None:
        self.flow = flow
        self.queue = queue
        self.shared = shared
        self._clock, self._emit = shared.clock, shared.emit
        self.gate = gate
        self.pause = PauseWatch(flow, queue)
        self.settler = Settler(flow, queue, shared)
        self.renewer = Renewer(flow, queue, shared, self.settler)
        # Each run of a recurring task has effects of its own, and the next one shows what is wrong.
        has_many = flow.probe is not None and not isinstance(flow, Recurring)
        self.strikes = Strikes() if has_many else None
        self._recurrence = (
            Recurrence(flow, queue, shared.emit) if isinstance(flow, Recurring) else None
        )
        self._server = server
        #: How many tasks to claim. Of those that are handled one at a time, no other waits behind a slow one.
        self.limit = self._most = 1 if flow.one_at_a_time else flow.batch_size
        #: Whether other workers serve the same queue.
        self.has_peers = False
        #: How many claims have failed in a row, since when, and when to claim again.
        self._failed_claims = 0
        self._failing_since = self._claim_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether the last claim failed."""
        return self._failed_claims > 0

    @property
    def slow_poll_seconds(self) -> float | None:
        """Longest wait between two claims; None: the lane's."""
        return None if self._recurrence is None else self._recurrence.SLOW_POLL_SECONDS

    def claim_in(self, now: float) -> float | None:
        """Seconds until the next claim is allowed; 0 or less means now, None that the flow is down or paused."""
        return self._claim_at - now if self.gate.up and not self.pause.holds(now) else None

    def claim(self, *, waits_ms: int | None = None, relieved: bool = False) -> Claim:
        """Send unconfirmed calls again, then claim up to `limit` tasks.

        ``waits_ms`` and ``relieved`` are those of `DelayQueue.claim`.

        Raises redis.RedisError, and UnsafeServer, which is an outage of Redis like any other.
        """
        try:
            claim = self._claim(waits_ms, relieved=relieved)
        except (redis.RedisError, UnsafeServer) as error:
            now = self._clock()
            if not self._failed_claims:
                self._failing_since = now
                self._emit(events.RedisLost(self.queue.name, error))
            self._failed_claims += 1
            if isinstance(error, redis.TimeoutError):  # perhaps because the reply is large
                self.limit = max(1, self.limit // 2)
            self._server.forget()
            self._claim_at = now + RECONNECT(self._failed_claims)
            raise
        if self._failed_claims:
            self._failed_claims = 0
            seconds = self._clock() - self._failing_since
            self._emit(events.RedisBack(self.queue.name, seconds))
        return claim

    def _claim(self, waits_ms: int | None, *, relieved: bool) -> Claim:
        self.ensure_safe()
        self.settler.resend()
        lease_ms = round(self.flow.lease_seconds * 1000)
        claim = self.queue.claim(self.limit, lease_ms, waits_ms=waits_ms, relieved=relieved)
        if self._recurrence is not None:
            claim = self._seeded(self._recurrence, claim)
        try:
            self._server.check()
        except UnsafeServer:
            self.settler.settle(BatchResult(untouched=claim.tasks))
            raise
        return claim

    def ensure_safe(self) -> None:
        """Check the server if it was unsafe. Raises UnsafeServer if it still is."""
        if self._server.unsafe:
            self._server.check()

    def _seeded(self, recurrence: Recurrence, claim: Claim) -> Claim:
        """Seed the next occurrence before a claimed one runs; if that fails, release those that were claimed."""
        try:
            return recurrence.seed(claim)
        except redis.RedisError:
            self.settler.settle(BatchResult(untouched=claim.tasks))
            raise

    def release_held(self) -> bool:
        """Put back, uncounted, the tasks whose handlers did not return; return whether Redis confirmed it."""
        return all(
            self.settler.settle(BatchResult(untouched=held.drop_all()))
            for held in self.renewer.held()
        )

    def note_handled(self, results: BatchResult) -> None:
        """Tell the gate if these show that no outage goes on."""
        if not (results.outage or (self.strikes and self.strikes.strike_all)):
            self.gate.handled()

    def adapt(self, results: BatchResult) -> None:
        """Double the limit, or halve it if tasks were released, or if something was unavailable to one of them."""
        self.note_handled(results)
        locked = any(isinstance(retry, LookAgain) for _, retry in results.retries)
        if results.untouched or locked:
            patience = self.strikes.patience if self.strikes else 1
            self.limit = max(min(self._most, patience), self.limit // 2)
        else:
            self.limit = min(self._most, self.limit * 2)


def handled_event(
    queue: str, results: BatchResult, seconds: float, late_ms: int, *, without_redis: bool = False
) -> events.Handled:
    """The event for one call of a handler."""
    return events.Handled(
        queue,
        results.handled(),
        done=len(results.done) + len(results.rescheduled),
        retries=len(results.retries),
        failed=len(results.failed) + len(results.dead),
        seconds=seconds,
        late_ms=late_ms,
        without_redis=without_redis,
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """The tasks of one claim."""

    station: Station
    tasks: list[Task]
    #: Just before the claim was sent, on the monotonic clock.
    claimed_at: float
    #: The server's time at the claim.
    now_ms: int


class Lane:
    """Serves its stations in strict priority: it claims from the first one that has anything due."""

    def __init__(self, shared: Shared, *, shares_watch: bool = False) -> None:
        """``shares_watch``: it serves one queue and always waits as a claim says, so the queue may rely on it."""
        self.stations: list[Station] = []
        #: Set to end the wait early: something new is due, or a flow is up again.
        self.alarm = Alarm(shared.clock)
        self._shared, self._clock = shared, shared.clock
        self._emit, self._stopping = shared.emit, shared.stopping
        self._shares_watch = shares_watch
        #: The threads that wait, or wait for their turn to do so.
        self._idle: set[int] = set()
        self._claim_lock = threading.Lock()
        #: By when the thread that waits and claims must have made progress, on the monotonic clock; None
        #: while all threads handle.
        self._progress_by: float | None = None

    def stalled(self, now: float) -> float | None:
        """For how many seconds claims have made no progress; None if they work. ``now`` is monotonic."""
        by = self._progress_by
        return None if by is None or now <= by else now - by + STALLED_SECONDS

    def add(self, flow: Flow, client: redis.Redis, server: ServerCheck) -> None:
        """Add a flow, with a lower priority than those added before."""
        gate = Gate(flow, self._shared, on_up=self.alarm.set)
        queue = DelayQueue(client, flow.name, environment=self._shared.environment)
        self.stations.append(Station(flow, queue, self._shared, gate=gate, server=server))

    def run(self) -> None:
        """Work until the worker stops. Every thread of the lane runs this."""
        while (batch := self.next()) is not None:
            self._handle(batch)

    # -- claim and wait --------------------------------------------------------------------

    def next(self, until: float = math.inf) -> Batch | None:
        """Wait for the next batch; None when the worker stops, or if nothing was due before ``until`` (monotonic).

        Each queue is claimed from at least once, unless another thread is waiting all that time.
        """
        patience = -1 if until == math.inf else max(0.0, until - self._clock())
        self._idle.add(me := threading.get_ident())
        try:
            if not self._claim_lock.acquire(timeout=patience):
                return None
            try:
                return self._next(until)
            finally:
                self._progress_by = None
                self._claim_lock.release()
        finally:
            self._idle.discard(me)

    def _next(self, until: float) -> Batch | None:
        while not self._stopping.is_set():
            self.alarm.clear()
            wait = math.inf
            for station in self.stations:
                claimed_at = self._clock()
                self._progress_by = claimed_at + STALLED_SECONDS
                claim_in = station.claim_in(claimed_at)
                if claim_in is None:
                    with suppress(redis.RedisError):
                        station.settler.resend()
                    wait = min(wait, SLOW_POLL_SECONDS)
                    continue
                wait = min(wait, station.slow_poll_seconds or SLOW_POLL_SECONDS)
                if claim_in <= 0:
                    try:
                        claim = self._claim(station)
                    except (redis.RedisError, UnsafeServer):
                        claim_in = station.claim_in(self._clock())
                    else:
                        if claim.tasks:
                            late_ms = _late_ms(claim.tasks, claim.now_ms)
                            self._emit(events.Claimed(station.queue.name, claim.tasks, late_ms))
                            return Batch(station, claim.tasks, claimed_at, claim.now_ms)
                        station.gate.seems_over()
                        claim_in = claim.next_in_ms and claim.next_in_ms / 1000
                if claim_in is not None:
                    wait = min(wait, max(0.0, claim_in))
            left = until - self._clock()
            if left <= 0 or self._stopping.is_set():
                return None
            wait = min(wait, left)
            self._progress_by = self._clock() + wait + STALLED_SECONDS
            self._emit(events.Waiting(self.stations[0].queue.name, wait))
            self.alarm.wait(wait)
        return None

    def _claim(self, station: Station) -> Claim:
        # A lane that hears no messages is never told to take over from watchers that are busy.
        shares = self._shares_watch and station.has_peers and self.alarm.listens
        self.alarm.claimer = station.queue.memory.claimer.encode() if shares else b""
        waits_ms = round(1000 * (SLOW_POLL_SECONDS + MARGIN_SECONDS)) if shares else None
        return station.claim(waits_ms=waits_ms, relieved=len(self._idle) > 1)

    # -- handle ----------------------------------------------------------------------------

    def _handle(self, batch: Batch) -> None:
        station, flow = batch.station, batch.station.flow
        tasks = self.bury_undeliverable(batch)
        if not tasks:
            return
        results, settled = BatchResult(), True

        def keep_going(next_tasks: Sequence[Task]) -> bool:
            # If Redis did not confirm a call, its tasks may be delivered again, so begin no more of them.
            return settled and not self._stopping.is_set() and held.begin(next_tasks)

        with station.renewer.holding(tasks, batch.claimed_at) as held:
            for part in handle(flow, tasks, keep_going, self._clock, station.strikes):
                settled = self.settle(batch, held, part)
                results.merge(part)
        station.adapt(results)

    def bury_undeliverable(self, batch: Batch) -> list[Task]:
        """Make dead letters of tasks that were delivered too often; return the others.

        Such a task is claimed alone, unless ``max_deliveries`` was lowered in the meantime.
        """
        most = batch.station.flow.max_deliveries
        undeliverable = [task for task in batch.tasks if task.deliveries >= most]
        reason = f"delivered {most} times and never settled"
        batch.station.settler.bury([(task, reason, None) for task in undeliverable])
        return [task for task in batch.tasks if task.deliveries < most]

    def settle(self, batch: Batch, held: HeldTasks, results: BatchResult) -> bool:
        """Settle some tasks of a batch; return whether Redis confirmed all of them."""
        station = batch.station
        if results.outage:
            station.gate.take_down(results.outage)
        results.untouched = held.still_held(results.untouched)
        held.stop_extending(results)
        ended_at = self._clock()
        settled = station.settler.settle(results)
        if not settled:
            self.alarm.set()  # so that the waiting thread sends it again now
        self._emit_handled(batch, results, held.began_at, ended_at)
        return settled

    def _emit_handled(
        self, batch: Batch, results: BatchResult, began_at: float, ended_at: float
    ) -> None:
        if tasks := results.handled():
            late_ms = _late_ms(tasks, batch.now_ms) + round(1000 * (ended_at - batch.claimed_at))
            seconds = ended_at - began_at
            self._emit(handled_event(batch.station.queue.name, results, seconds, late_ms))


def _late_ms(tasks: Sequence[Task], now_ms: int) -> int:
    """How late the earliest of these tasks was at ``now_ms``, ms on the server's clock."""
    return now_ms - min(task.due_at_ms for task in tasks)
