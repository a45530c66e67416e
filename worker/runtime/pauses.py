"""A pause is kept in one place: with the flow's records if the flow says so, otherwise in Redis.

In Redis it takes effect at once. With the records it holds whatever happens to Redis, because a worker that has not
read them recently claims nothing.
"""

import math
from collections.abc import Callable
from contextlib import suppress

import redis

from ..errors import described, fatal
from ..flow import Flow
from ..log import Reminder, log
from ..pauses import Pause, Pauses, check_reason
from ..queue.delay_queue import DelayQueue

#: How often each worker reads whether its flow is paused.
LOOK_SECONDS = 1.0
#: A worker that has not been able to read it for this long claims nothing.
KNOWN_SECONDS = 5.0


def pause(queue: DelayQueue, pauses: Pauses | None, *, reason: str = "", by: str = "") -> None:
    """Pause a queue until `resume`. ``pauses`` are its flow's.

    Raises Unavailable, or redis.RedisError without ``pauses``; ValueError for a reason that is not one line.
    """
    check_reason(reason)
    check_reason(by)
    begin = queue.pause if pauses is None else pauses.begin
    begin(reason, by)


def resume(queue: DelayQueue, pauses: Pauses | None) -> None:
    """End a pause. Raises Unavailable, or redis.RedisError without ``pauses``: then repeat it."""
    if pauses is None:
        queue.resume()
        return
    pauses.end()
    with suppress(redis.RedisError):  # somebody who did not have the flow may have paused it there
        queue.resume()


def find(queue: DelayQueue, pauses: Pauses | None) -> Pause | None:
    """A queue's pause, wherever it is kept. Raises redis.RedisError and Unavailable."""
    return (None if pauses is None else pauses.find()) or queue.find_pause()


class PauseWatch:
    """Whether a flow's records say that it is paused. Times are on the monotonic clock, in seconds."""

    def __init__(self, flow: Flow, queue: DelayQueue) -> None:
        self.pauses = flow.pauses
        self._queue = queue.name
        self._clock = queue.environment.clock
        #: The pause that was read last, and until when that counts.
        self.found: Pause | None = None
        self._known_until = -math.inf
        self._failure = Reminder(self._clock)

    def holds(self, now: float) -> bool:
        """Whether nothing may be claimed: the flow is paused, or this worker does not know."""
        return self.pauses is not None and (self.found is not None or now > self._known_until)

    def allows(self) -> bool:
        """Read it now; return whether tasks may be handled. While Redis is away nothing else tells of a pause."""
        return self._look() and not self.holds(self._clock())

    def round(self, on_end: Callable[[], object]) -> float:
        """Read it; call ``on_end`` if claims may begin. Returns in how many seconds to read it again."""
        before, until = self.found, self._known_until
        self._look()
        now = self._clock()
        if (before is not None or now > until) and not self.holds(now):
            on_end()
        return LOOK_SECONDS

    def _look(self) -> bool:
        """Read it; return whether that worked."""
        if self.pauses is None:
            return True
        before, asked_at = self.found, self._clock()
        try:
            self.found = self.pauses.find()
        except fatal():
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, nothing is known
            if self._failure.is_due():
                log.warning("pauses unknown", queue=self._queue, error=described(error))
            return False
        self._known_until = asked_at + KNOWN_SECONDS
        self._failure.reset()
        if self.found != before:
            after = self.found
            facts = {"reason": after.reason, "by": after.by} if after else {}
            log.warning("paused" if after else "resumed", queue=self._queue, **facts)
        return True
