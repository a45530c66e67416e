"""Pauses that outlive Redis: begun and ended in both places, and watched by each worker.

A pause in Redis takes effect at once, in every worker. If Redis loses it, or cannot be reached, the one that the
flow's records keep still holds, because a worker that has not read it recently claims nothing.
"""

import math
from collections.abc import Callable
from contextlib import suppress

import redis

from ..errors import Unavailable, described, fatal
from ..flow import Flow
from ..log import Reminder, log
from ..pauses import Pause, Pauses, check_reason
from ..queue.delay_queue import DelayQueue

#: How often each worker reads whether its flow is paused.
LOOK_SECONDS = 1.0
#: A worker that has not been able to read it for this long claims nothing.
KNOWN_SECONDS = 5.0


def pause(queue: DelayQueue, pauses: Pauses | None, *, reason: str = "", by: str = "") -> None:
    """Pause a queue until `resume`. Raises redis.RedisError, Unavailable, or ValueError for a reason that is not one line.

    With ``pauses``, a flow's, the pause outlives Redis, which need not answer then: workers see it within a second.
    If those are unavailable the queue is paused in Redis only.
    """
    check_reason(reason)
    check_reason(by)
    if pauses is None:
        queue.pause(reason, by)
        return
    try:
        pauses.begin(reason, by)
    except Unavailable as error:
        queue.pause(reason, by)
        error.add_note("It is paused in Redis only: repeat the command once the records answer.")
        raise
    with suppress(redis.RedisError):
        queue.pause(reason, by)


def resume(queue: DelayQueue, pauses: Pauses | None) -> None:
    """End a pause in both places. Raises redis.RedisError and Unavailable: then repeat it."""
    if pauses is not None:
        pauses.end()
    queue.resume()


def find(queue: DelayQueue, pauses: Pauses | None) -> Pause | None:
    """A queue's pause, wherever it is kept. Raises redis.RedisError and Unavailable."""
    return (None if pauses is None else pauses.find()) or queue.find_pause()


class PauseWatch:
    """Whether a flow's records say that it is paused. Times are on the monotonic clock, in seconds."""

    def __init__(self, flow: Flow, queue: DelayQueue) -> None:
        self.pauses = flow.pauses
        self._queue = queue
        self._clock = queue.environment.clock
        #: The pause that was read last, and until when that counts.
        self._found: Pause | None = None
        self._known_until = -math.inf
        self._fails = False
        self._failure = Reminder(self._clock)

    def holds(self, now: float) -> bool:
        """Whether nothing may be claimed: the flow is paused, or this worker does not know."""
        return self.pauses is not None and (self._found is not None or now > self._known_until)

    def allows(self) -> bool:
        """Read it now; return whether tasks may be handled. While Redis is away nothing else tells of a pause."""
        self._look()
        return not (self._fails or self.holds(self._clock()))

    def round(self, on_end: Callable[[], object]) -> float:
        """Read it; call ``on_end`` if claims may begin. Returns in how many seconds to read it again."""
        before, until = self._found, self._known_until
        self._look()
        now = self._clock()
        if self.pauses is not None and self._found is not None:
            self._tell_redis(self.pauses, self._found)
        elif (before is not None or now > until) and not self.holds(now):
            on_end()
        return LOOK_SECONDS

    def _look(self) -> None:
        if self.pauses is None:
            return
        before, asked_at = self._found, self._clock()
        try:
            self._found = self.pauses.find()
        except fatal():
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, nothing is known
            if self._failure.is_due():
                log.warning("pauses unknown", queue=self._queue.name, error=described(error))
            self._fails = True
            return
        self._fails, self._known_until = False, asked_at + KNOWN_SECONDS
        self._failure.reset()
        if self._found != before:
            after = self._found
            facts = {"reason": after.reason, "by": after.by} if after else {}
            log.warning("paused" if after else "resumed", queue=self._queue.name, **facts)

    def _tell_redis(self, pauses: Pauses, found: Pause) -> None:
        """Pause the queue in Redis, too, which may have lost that: everybody else looks there."""
        try:
            if self._queue.find_pause() in (None, Pause()):
                self._queue.pause(found.reason, found.by)
                if pauses.find() is None:  # it was ended in between
                    self._queue.resume()
        except fatal():
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, the next round tries again
            log.debug("pause not told", queue=self._queue.name, error=described(error))
