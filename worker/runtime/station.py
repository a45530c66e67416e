"""Claims the tasks of one flow in this process: how many, and when."""

import redis

from .. import events
from ..backoff import Backoff
from ..errors import UnsafeServer
from ..flow import Flow
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Claim
from .outages import Gate
from .pauses import PauseWatch
from .recurring import Recurrence, Recurring
from .renewal import Renewer
from .results import BatchResult, LookAgain
from .server_check import ServerCheck
from .settling import Settler
from .shared import Shared

#: How long to wait after a failed claim.
RECONNECT = Backoff(base_seconds=0.1, cap_seconds=1.0)


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

    def adapt(self, results: BatchResult) -> None:
        """Double the limit, or halve it if tasks were released, or if something was unavailable to one of them."""
        if not results.outage:
            self.gate.handled()
        locked = any(isinstance(retry, LookAgain) for _, retry in results.retries)
        if results.untouched or locked:
            self.limit = max(1, self.limit // 2)
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
