"""The threads that wait, claim and handle tasks for one flow, or for the queues of one `Consumer`.

One thread at a time waits and claims; the others handle what they have claimed. So an idle lane, however
many threads it has, polls Redis once every `SLOW_POLL_SECONDS`, or as rarely as its flows allow, and wakes
at its first turn after the next task is due.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from operator import attrgetter

import redis

from .. import events
from ..errors import Unavailable, UnsafeServer
from ..flow import DeadLetter, Flow, Task
from ..queue.connection import Line
from ..queue.delay_queue import DelayQueue
from ..queue.formats import SLICE
from ..queue.replies import Claim, Settlement
from .gate import Gate
from .hangs import HangDetector
from .isolation import BatchResult, LookAgain, handle
from .renewal import HeldTasks
from .settling import Send
from .shared import Shared
from .station import AHEAD_MS, ServerCheck, Station, handled_event
from .waker import Alarm

#: How long one round of claims may take. Each call to Redis ends within a second, but a DNS lookup may take
#: longer.
STALLED_SECONDS = 30.0
#: Longest wait between two claims: a wake-up may be lost with its connection, and a worker that relied on
#: wake-ups alone might then wait forever.
SLOW_POLL_SECONDS = 5.0
#: Of a handler that takes longer, no other task waits for the end.
QUICK_SECONDS = 0.025


_DELIVERIES, _DUE_AT_MS = attrgetter("deliveries"), attrgetter("due_at_ms")


@dataclass(frozen=True, slots=True)
class Batch:
    """The tasks of one claim."""

    station: Station
    tasks: list[Task]
    #: Just before the claim was sent, and once its reply was there, on the monotonic clock.
    claimed_at: float
    read_at: float
    #: The server's time at the claim.
    now_ms: int


class Lane:
    """Serves its stations in strict priority: it claims from the first one that has anything due."""

    def __init__(self, shared: Shared) -> None:
        self.stations: list[Station] = []
        #: Set to end the wait early: something new is due, or a flow is up again.
        self.alarm = Alarm(shared.clock)
        self._shared, self._clock = shared, shared.clock
        self._emit, self._stopping = shared.emit, shared.stopping
        self._claim_lock = threading.Lock()
        self._line: Line | None = None
        #: Times the thread that waits and claims, if not all handle.
        self.hang_detector = HangDetector("", "claim", shared)

    def add(self, flow: Flow, client: redis.Redis, server: ServerCheck) -> Station:
        """Add a flow, with a lower priority than those added before."""
        gate = Gate(flow, self._shared, on_up=self.alarm.set)
        line = self._line = self._line or Line(client)
        queue = DelayQueue(client, flow.name, environment=self._shared.environment, line=line)
        station = Station(flow, queue, self._shared, gate=gate, server=server)
        self.stations.append(station)
        return station

    def run(self) -> None:
        """Work until the worker stops. Every thread of the lane runs this, on a connection of its own."""
        with self._line.opened() if self._line else nullcontext():
            batch = self.next()
            while batch is not None:
                batch = self._handle(batch) or self.next()

    # -- claim and wait --------------------------------------------------------------------

    def next(self, until: float = math.inf) -> Batch | None:
        """Wait for the next batch; None when the worker stops, or if nothing was due before ``until`` (monotonic).

        Each queue is claimed from at least once, unless another thread is waiting all that time.
        """
        patience = -1 if until == math.inf else max(0.0, until - self._clock())
        if not self._claim_lock.acquire(timeout=patience):
            return None
        try:
            with self.hang_detector:
                return self._next(until)
        finally:
            self._claim_lock.release()

    def _next(self, until: float) -> Batch | None:
        while not self._stopping.is_set():
            self._heed_alarm(until)
            wait = math.inf
            for station in self.stations:
                claimed_at = self._clock()
                self.hang_detector.progress(STALLED_SECONDS)
                claim_in = station.claim_in(claimed_at)
                if claim_in is None:
                    with suppress(redis.RedisError):
                        station.catch_up()
                    wait = min(wait, SLOW_POLL_SECONDS)
                    continue
                wait = min(wait, station.slow_poll_seconds or SLOW_POLL_SECONDS)
                if claim_in <= 0:
                    found = self._ask(station, claimed_at)
                    if isinstance(found, Batch):
                        return found
                    claim_in = found
                if claim_in is not None:
                    wait = min(wait, max(0.0, claim_in))
            left = until - self._clock()
            if left <= 0 or self._stopping.is_set():
                return None
            wait = min(wait, left)
            self.hang_detector.progress(wait + STALLED_SECONDS)
            self._emit(events.Waiting(self.stations[0].queue.name, wait))
            self.alarm.wait(wait)
        return None

    def _ask(
        self, station: Station, asked_at: float, ask: Callable[[], Claim] | None = None
    ) -> Batch | float | None:
        """What a claim brings, or else in how many seconds to claim again, if that is known."""
        try:
            claim = station.claim(ask)
        except (redis.RedisError, UnsafeServer):
            return station.claim_in(self._clock())
        # What all wait for is left to the worker whose turn it is.
        more_in = claim.next_in_ms and self.alarm.turn_in(claim.next_in_ms / 1000)
        if not claim.tasks:
            self.alarm.turns.learn(0.0)
            station.gate.seems_over()
            return more_in
        station.come_back_in(min(SLOW_POLL_SECONDS, more_in or 0.0))
        now_ms = claim.now_ms
        batch = Batch(station, claim.tasks, asked_at, self._clock(), now_ms)
        late_ms = _late_ms(claim.tasks, now_ms)
        self.alarm.turns.learn(late_ms / 1000)
        self._emit(events.Claimed(station.queue.name, claim.tasks, late_ms))
        return batch

    def _heed_alarm(self, until: float) -> None:
        """Ask every queue if there may be something new, or if the wait has an end."""
        turns, first = self.alarm.turns, self.stations[0]
        (turns.workers, turns.place), turns.limit = first.place, first.limit
        turns.server_ahead = (first.queue.memory.server_ahead_ms or 0.0) / 1000
        if self.alarm.clear() or until < math.inf:
            for station in self.stations:
                station.more_at = 0.0

    # -- handle ----------------------------------------------------------------------------

    def _handle(self, batch: Batch) -> Batch | None:
        """Handle and settle a batch; return the next one if that came at once."""
        tasks = self.bury_undeliverable(batch)
        if not tasks:
            return None
        with self.beginning(batch, tasks) as begins:
            return self._work_on(batch, tasks) if begins else None

    @contextmanager
    def beginning(self, batch: Batch, tasks: Sequence[Task]) -> Iterator[bool]:
        """Yields whether tasks may begin: if not, they have been put off. See `Suspects`."""
        with self._shared.suspects.running(batch.station.flow.name, tasks[0].deliveries) as begins:
            if not begins:
                why = Unavailable("this worker runs another queue's task, of which it may die")
                later = BatchResult(retries=[(task, LookAgain(task, why)) for task in tasks])
                batch.station.settler.settle(later)
                batch.station.more_at = 0.0  # they are due soon
            yield begins

    def _work_on(self, batch: Batch, tasks: list[Task]) -> Batch | None:
        station, flow = batch.station, batch.station.flow
        results, ended, settled, is_well = BatchResult(), BatchResult(), True, True

        def keep_going(next_tasks: Sequence[Task]) -> bool:
            # If Redis did not confirm a call, its tasks may be delivered again, so begin no more of them.
            goes_on = settled and is_well and not self._stopping.is_set()
            return goes_on and held.begin(next_tasks)

        with station.renewer.holding(tasks, batch.claimed_at) as held:
            for due, is_last in self._as_they_come_due(batch, tasks, results):
                is_well = results.all_done
                for part in handle(flow, due, keep_going, self._clock, station.strikes):
                    ended_at = self._clock()
                    results.merge(part)
                    ended.merge(part)
                    try:
                        if len(part.done) == len(due) and not is_last:
                            continue  # settled with the next
                        is_next = len(tasks) == len(ended.done) <= SLICE
                        # One thread claims at a time.
                        if is_next and self._claim_lock.acquire(blocking=False):
                            try:
                                if self._claims_next(station):
                                    return self._settle_and_claim(batch, held, ended)
                            finally:
                                self._claim_lock.release()
                        settled, ended = self.settle(batch, held, ended), BatchResult()
                    finally:
                        self.report(batch, held, part, ended_at)
        station.adapt(results)
        return None

    def _as_they_come_due(
        self, batch: Batch, tasks: Sequence[Task], results: BatchResult
    ) -> Iterator[tuple[Sequence[Task], bool]]:
        """Those that are due, then those that were claimed ahead, as soon as they are; with whether they are the last.

        Nothing is waited for once the worker is told to stop, or if one was not done, by ``results``: the rest comes to
        be released.
        """
        now_ms: float = batch.now_ms
        latest_ms = now_ms + AHEAD_MS  # another due time is of an earlier appointment

        def is_ahead(task: Task) -> bool:
            return now_ms < task.due_at_ms <= latest_ms

        while tasks:
            due = [task for task in tasks if not is_ahead(task)]
            tasks = [task for task in tasks if is_ahead(task)]
            if due:
                yield due, not tasks
            if tasks and results.all_done:
                now_ms = batch.now_ms + 1000 * (self._clock() - batch.read_at)
                next_ms = min(map(_DUE_AT_MS, tasks))
                self._stopping.wait(max(0.0, next_ms - now_ms) / 1000)
                now_ms = max(now_ms, next_ms)
            else:
                now_ms = latest_ms

    def _claims_next(self, station: Station) -> bool:
        """Whether a thread that is free would claim from that station next, without a wait."""
        if self._stopping.is_set() or self.alarm.is_set():
            return False
        return station is self.stations[0] and station.claims_next(self._clock())

    def _settle_and_claim(self, batch: Batch, held: HeldTasks, done: BatchResult) -> Batch | None:
        """Settle a batch that is done, and claim the next, in one round trip.

        Whichever reply is lost, it is as if each had been sent alone: what was settled is sent again, and what was
        claimed is put back. Tasks that come after the worker was told to stop are released.
        """
        station = batch.station
        claims: list[Callable[[], Claim]] = []

        def send(settlements: Sequence[Settlement]) -> None:
            settled, claimed = station.queue.settle_and_claim(
                settlements, station.limit, station.lease_ms, ahead_ms=station.ahead_ms
            )
            claims.append(claimed)
            settled()

        with self.hang_detector:
            self.hang_detector.progress(STALLED_SECONDS)
            station.adapt(done)
            asked_at = self._clock()
            self.settle(batch, held, done, send)
            found = self._ask(station, asked_at, claims[0])
        if isinstance(found, Batch):
            return found
        station.come_back_in(SLOW_POLL_SECONDS if found is None else min(SLOW_POLL_SECONDS, found))
        return None

    def bury_undeliverable(self, batch: Batch) -> list[Task]:
        """Make dead letters of tasks that were delivered too often; return the others.

        Such a task is claimed alone, unless ``max_deliveries`` was lowered in the meantime.
        """
        most = batch.station.flow.max_deliveries
        if max(map(_DELIVERIES, batch.tasks)) < most:
            return batch.tasks
        undeliverable = [task for task in batch.tasks if task.deliveries >= most]
        reason = f"delivered {most} times and never settled"
        dead = [(task, DeadLetter(reason)) for task in undeliverable]
        batch.station.settler.settle(BatchResult(dead=dead))
        return [task for task in batch.tasks if task.deliveries < most]

    def settle(
        self,
        batch: Batch,
        held: HeldTasks,
        results: BatchResult,
        send: Send | None = None,
    ) -> bool:
        """Settle some tasks of a batch, as `Settler.settle` does; return whether Redis confirmed all of them."""
        station = batch.station
        if results.outage:
            station.gate.take_down(results.outage)
        results.untouched = held.still_held(results.untouched)
        held.stop_extending(results)
        is_leased = self._clock() < held.leased_at + station.flow.lease_seconds
        settled = station.settler.settle(results, send, is_leased=is_leased)
        if not results.all_done:
            station.more_at = 0.0  # some were put back
        if not settled:
            self.alarm.set()  # so that the waiting thread sends it again now
        return settled

    def report(self, batch: Batch, held: HeldTasks, results: BatchResult, ended_at: float) -> None:
        """Tell of a call of the handler."""
        if tasks := results.handled():
            late_ms = _late_ms(tasks, batch.now_ms) + round(1000 * (ended_at - batch.claimed_at))
            seconds = ended_at - held.began_at
            batch.station.is_quick = seconds < QUICK_SECONDS
            self._emit(handled_event(batch.station.queue.name, results, seconds, late_ms))


def _late_ms(tasks: Sequence[Task], now_ms: int) -> int:
    """How late the earliest of these tasks was at ``now_ms``, ms on the server's clock."""
    return now_ms - int(min(map(_DUE_AT_MS, tasks)))
