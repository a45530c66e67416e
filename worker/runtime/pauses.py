"""Pauses that outlive Redis: begun and ended in both places, and watched by each worker.

A pause in Redis takes effect at once, in every worker. If Redis loses it, or cannot be reached, the one that the
flow's records keep still holds, because a worker that has not read it recently claims nothing.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import redis

from ..errors import FATAL, Unavailable, described
from ..flow import Flow
from ..log import Reminder, log
from ..pauses import KeptTogether, Pause, Pauses, check_reason
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


#: Finds a pause, or raises Unavailable.
Find = Callable[[], Pause | None]
#: Called when a pause has ended.
OnEnd = Callable[[], None]


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
        if self.pauses is not None:
            self._look(self.pauses.find, self._clock())
        return not (self._fails or self.holds(self._clock()))

    def round(self, find: Find, asked_at: float, on_end: OnEnd) -> None:
        """Read it; call ``on_end`` if claims may begin. ``find`` may have looked before, at ``asked_at``."""
        before, until = self._found, self._known_until
        self._look(find, asked_at)
        now = self._clock()
        if self._found is None and (before is not None or now > until) and not self.holds(now):
            on_end()

    def _look(self, find: Find, asked_at: float) -> None:
        before = self._found
        try:
            self._found = find()
        except FATAL:
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

    def tell_redis(self, pauses: Pauses) -> None:
        """Pause the queue in Redis, too, which may have lost that: everybody else looks there."""
        if self._found is None:
            return
        try:
            if self._queue.find_pause() in (None, Pause()) and (found := pauses.find()):
                self._queue.pause(found.reason, found.by)
                if pauses.find() is None:  # it was ended in between
                    self._queue.resume()
        except FATAL:
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, the next round tries again
            log.debug("pause not told", queue=self._queue.name, error=described(error))


class PauseRound:
    """Reads the pauses of all flows that keep them in one place, in one query."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watched: list[tuple[Pauses, PauseWatch, OnEnd]] = []

    def add(self, pauses: Pauses, watch: PauseWatch, on_end: OnEnd) -> None:
        """Add a queue's pause. ``on_end`` is called when claims may begin."""
        self._watched.append((pauses, watch, on_end))

    def round(self) -> float:
        """Read them; return in how many seconds to do so again."""
        asked_at = self._clock()
        found: Future[Mapping[str, Pause]] = Future()
        for pauses, watch, on_end in self._watched:
            find = (
                partial(_find, pauses, found) if isinstance(pauses, KeptTogether) else pauses.find
            )
            watch.round(find, asked_at, on_end)
        return LOOK_SECONDS

    def tell_redis(self) -> float:
        """Pause in Redis what is paused. In a round of its own: a server that hangs must delay no look."""
        for pauses, watch, _ in self._watched:
            watch.tell_redis(pauses)
        return LOOK_SECONDS


def _find(pauses: KeptTogether, found: Future[Mapping[str, Pause]]) -> Pause | None:
    """Find a pause among those ``found``, which the first call finds: if that fails, so do the others."""
    if not found.done():
        try:
            found.set_result(pauses.find_all())
        except BaseException as error:  # noqa: BLE001  raised below
            found.set_exception(error)
    return found.result().get(pauses.queue)
