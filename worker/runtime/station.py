"""One flow in one process: its queue, and everything that works on it."""

from collections.abc import Callable
from functools import partial

import redis

from .. import events
from ..backoff import Backoff
from ..errors import UnsafeServer, described
from ..flow import Flow
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Claim
from .gate import Gate
from .isolation import BatchResult, LookAgain, Strikes
from .pauses import PauseWatch
from .recurring import Recurrence, Recurring
from .renewal import Renewer
from .settling import Settler
from .shared import Shared

#: How long to wait after a failed claim.
RECONNECT = Backoff(base_seconds=0.1, cap_seconds=1.0)
#: At 100 tasks a second, one claim brings five.
AHEAD_MS = 50


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
        self.lease_ms = round(flow.lease_seconds * 1000)
        #: How many tasks to claim. Of those that are handled one at a time, no other waits behind a slow one.
        self.limit = self._most = 1 if flow.one_at_a_time else flow.batch_size
        #: Whether the last call of the handler took a moment only.
        self.is_quick = True
        #: How many workers serve the queue, and this one's place among them.
        self.place = 1, 0
        #: How many claims have failed in a row, since when, and when to claim again, which no message brings forward.
        self._failed_claims = 0
        self._failing_since = self._claim_at = 0.0
        #: When there is more to claim, as the last claim that brought tasks said. Any message may bring it forward.
        self.more_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether the last claim failed."""
        return self._failed_claims > 0

    @property
    def slow_poll_seconds(self) -> float | None:
        """Longest wait between two claims; None: the lane's."""
        return None if self._recurrence is None else self._recurrence.SLOW_POLL_SECONDS

    @property
    def ahead_ms(self) -> int:
        """Claim what is due so soon after one that is, too; then Redis is told of all at once."""
        return AHEAD_MS if self.flow.claims_ahead and self.is_quick else 0

    def claim_in(self, now: float) -> float | None:
        """Seconds until the next claim is allowed; 0 or less means now, None that the flow is down or paused."""
        return (
            max(self._claim_at, self.more_at) - now
            if self.gate.up and not self.pause.holds(now)
            else None
        )

    def claims_next(self, now: float) -> bool:
        """Whether this thread has a line, and a claim would be the next thing to do on it."""
        claim_in = self.claim_in(now)
        untold = self.settler.has_unconfirmed or self.queue.memory.unanswered
        is_plain = self._recurrence is None and not untold
        is_now = claim_in is not None and claim_in <= 0
        return self.queue.line.is_open and is_plain and is_now and not self._server.unsafe

    def claim(self, ask: Callable[[], Claim] | None = None) -> Claim:
        """Send unconfirmed calls again, put back what a lost claim leased, then claim up to `limit` tasks, unless ``ask``
        has done so.

        Raises redis.RedisError, and UnsafeServer, which is an outage of Redis like any other.
        """
        try:
            claim = self._claim(ask)
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

    def _claim(self, ask: Callable[[], Claim] | None) -> Claim:
        if ask is None:
            self.ensure_safe()
            self.settler.resend()
            ask = partial(self.queue.claim, self.limit, self.lease_ms, ahead_ms=self.ahead_ms)
        claim = ask()
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

    def come_back_in(self, seconds: float) -> None:
        """Note when there is more to claim than what a claim has brought."""
        if self._recurrence is None:  # that knows its own times
            self.more_at = self._clock() + seconds

    def catch_up(self) -> None:
        """Send unconfirmed calls again, and put back what a claim leased whose reply was lost. Raises redis.RedisError."""
        self.settler.resend()
        self.queue.give_back()

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
