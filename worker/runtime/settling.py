"""Settles tasks: one call for a batch says of each task whether it is done, dead or put back.

What was postponed is noted for a sweep that cannot ask Redis.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

import redis

from .. import events
from ..backoff import Backoff
from ..errors import LeaseLost, described, fatal
from ..flow import MAX_DELAY_MS, Flow, NotDue, Retry
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.environment import Clock
from ..queue.formats import packed
from ..queue.replies import Settlement, Verb
from .isolation import BatchResult, LookAgain
from .shared import Shared

#: Settles tasks, up to 500 in one call. Raises LeaseLost, and redis.RedisError.
Send = Callable[[Sequence[Settlement]], None]

#: How many tasks that Redis did not confirm are kept to be sent again. Beyond that the oldest are dropped.
MAX_UNCONFIRMED = 100_000
#: With more postponed tasks than this, those whose time has come are removed.
TIDY_ABOVE = 1000
#: How many postponed tasks are kept at most: dead ones stay until this process handles them again.
MAX_POSTPONED = 100_000


class Postponed:
    """Tasks that this process has postponed. While Redis is down, its sweep can only ask here.

    Times are on the monotonic clock. Any thread may use it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._full = TIDY_ABOVE

    def add(self, task_id: str, until: float) -> None:
        self._until[task_id] = until
        self._since[task_id] = math.inf if until == math.inf else self._clock()
        if len(self._until) > self._full:
            self._tidy()
            self._full = max(TIDY_ABOVE, 2 * len(self._until))

    def discard(self, ids: Iterable[str]) -> None:
        if self._until:
            for task_id in ids:
                self._until.pop(task_id, None)
                self._since.pop(task_id, None)

    def covers(self, task_id: str, due_at: float) -> bool:
        """Whether a task is postponed that is due at ``due_at`` by its records.

        If it became due only after it was postponed, the records have a new time for it, which takes
        precedence, as in restore.lua. A dead task stays dead.
        """
        return task_id in self and due_at <= self._since.get(task_id, math.inf)

    def __contains__(self, task_id: str) -> bool:
        return self._until.get(task_id, 0.0) > self._clock()

    def _tidy(self) -> None:
        now = self._clock()
        self.discard([task_id for task_id, until in [*self._until.items()] if until <= now])
        self.discard([*self._until][:-MAX_POSTPONED])


def retry_delay_ms(flow: Flow, failures: int, error: BaseException) -> float:
    """Milliseconds to wait after failure number ``failures``: the delay of a `Retry`, otherwise the backoff."""
    if isinstance(error, Retry):
        return max(1.0, error.delay_ms)
    try:
        delay_ms = 1000 * _number(flow.backoff(failures))
    except fatal():
        raise
    except BaseException:  # the application's code may raise anything
        log.exception("backoff fails", queue=flow.name)
        delay_ms = 1000 * Backoff()(failures)
    return min(max(1.0, delay_ms), MAX_DELAY_MS)


def _number(seconds: float) -> float:
    """The seconds that a backoff returned. Raises TypeError or ValueError if they are not a number, such as NaN."""
    if math.isnan(number := float(seconds)):
        raise ValueError("a backoff returns seconds, not NaN")
    return number


#: Under what name tasks are counted; others are retried.
COUNTED = {Verb.DONE: "done", Verb.DEAD: "dead", Verb.RELEASED: "released", Verb.FAILED: "failed"}


#: Of these nobody is told; and a sweep may hand these to the handler again.
QUIET = {Verb.DONE, Verb.RELEASED}
AT_ONCE = {Verb.DONE, Verb.RELEASED, Verb.NOT_DUE}


class Settler:
    """Settles the tasks of one flow. Any thread may use it."""

    def __init__(self, flow: Flow, queue: DelayQueue, shared: Shared) -> None:
        self._flow = flow
        self._queue = queue
        self._clock = shared.clock
        self._counts, self._emit = shared.counts, shared.emit
        #: What Redis did not confirm, and when it was sent.
        self._unconfirmed = deque[tuple[Settlement, float]]()
        self._unsettled = Reminder(self._clock)
        self.postponed = Postponed(self._clock)

    def settle(
        self,
        results: BatchResult,
        send: Send | None = None,
        *,
        is_leased: bool = False,
    ) -> bool:
        """Settle the tasks of ``results``, up to 500 in one call; return whether Redis confirmed all of them.

        ``send`` does it, if it is not the queue's `settle`. ``is_leased``: no lease can have ended by itself.
        """
        settlements = [*_settlements(self._flow, results)]
        # Somebody cancelled or moved those for which there was nothing to write.
        not_due = (each.tasks[0].id for each in settlements if each.verb is Verb.NOT_DUE)
        unwritten = {*results.no_ops, *not_due} if is_leased else set[str]()
        self._postpone(settlements)
        lost, confirmed = set[str](), True
        try:
            lost = self._send(settlements, send, unwritten)
        except redis.RedisError:
            confirmed = False
        for each in settlements:
            if each.verb not in QUIET and each.tasks[0].id not in lost:
                self._emit(self._event(each))
        return confirmed

    @property
    def has_unconfirmed(self) -> bool:
        return bool(self._unconfirmed)

    def resend(self) -> None:
        """Send what is unconfirmed again. It settles those tasks whose lease still holds.

        Raises redis.ConnectionError or redis.TimeoutError if Redis still does not answer. If Redis refuses the
        call, it is kept and nothing is raised, because Redis may refuse it forever.
        """
        unconfirmed = list[tuple[Settlement, float]]()
        with suppress(IndexError):
            while True:
                unconfirmed.append(self._unconfirmed.popleft())
        if not unconfirmed:
            return
        now = self._clock()
        # Delays count from when they were decided.
        settlements = [
            each._replace(delay_ms=each.delay_ms - 1000 * (now - sent_at))
            for each, sent_at in unconfirmed
        ]
        try:
            self._send(settlements)
        except (redis.ConnectionError, redis.TimeoutError):
            raise
        except redis.RedisError:
            pass

    def _postpone(self, settlements: Sequence[Settlement]) -> None:
        """Note which tasks a sweep must not hand to the handler, and until when."""
        if self._flow.sweep is None or self._flow.without_redis != "handle":
            return
        now = self._clock()
        for each in settlements:
            if each.verb in AT_ONCE:
                self.postponed.discard(task.id for task in each.tasks)
            else:
                until = math.inf if each.verb is Verb.DEAD else now + each.delay_ms / 1000
                self.postponed.add(each.tasks[0].id, until)

    def _send(
        self,
        settlements: Sequence[Settlement],
        send: Send | None = None,
        unwritten: Collection[str] = (),
    ) -> set[str]:
        """Send settlements, and count what was settled; return the ids whose lease was lost.

        Raises redis.RedisError. What was not confirmed is then kept to be sent again; if the lease ends before that, the
        tasks are delivered again.
        """
        lost, sent_at = set[str](), self._clock()
        parts = [*packed(settlements)]
        for n, part in enumerate(parts):
            try:
                (send or self._queue.settle)(part)
            except LeaseLost as error:
                # Perhaps an earlier attempt ran and only its reply was lost: Redis cannot tell the difference.
                lost.update(error.ids)
                if ids := tuple(each for each in error.ids if each not in unwritten):
                    self._counts["stale"] += len(ids)
                    self._emit(events.LeaseLost(self._queue.name, ids))
            except redis.RedisError as error:
                left = [*chain.from_iterable(parts[n:])]
                self._unconfirmed += [(each, sent_at) for each in left]
                self._drop_oldest()
                if self._unsettled.is_due():
                    tasks, why = sum(len(each.tasks) for each in left), described(error)
                    log.warning("not settled yet", queue=self._queue.name, tasks=tasks, error=why)
                raise
            for each in part:
                if count := sum(task.id not in lost for task in each.tasks):
                    self._counts[COUNTED.get(each.verb, "retried")] += count
        return lost

    def _drop_oldest(self) -> None:
        excess = sum(len(each.tasks) for each, _ in [*self._unconfirmed]) - MAX_UNCONFIRMED
        with suppress(IndexError):  # another thread sends them
            while excess > 0:
                excess -= len(self._unconfirmed.popleft()[0].tasks)

    def _event(self, settlement: Settlement) -> events.Event:
        [task], verb, delay_ms, error, reason = settlement
        match verb:
            case Verb.DEAD:
                return events.Died(self._queue.name, task, reason, error)
            case Verb.FAILED:
                assert error is not None
                return events.Failed(self._queue.name, task, error, delay_ms)
            case _:
                return events.Retried(self._queue.name, task, delay_ms, error)


def _settlements(flow: Flow, results: BatchResult) -> Iterator[Settlement]:
    """How each task is settled: those alone of which somebody is told."""
    for task, retry in results.retries:
        match retry:
            case LookAgain():
                verb = Verb.LATER
            case NotDue():
                verb = Verb.NOT_DUE
            case _:
                verb = Verb.AGAIN
        yield Settlement([task], verb, max(1.0, retry.delay_ms), retry.__cause__)
    for task, new in results.rescheduled:
        yield Settlement([task], Verb.NEW, max(1.0, new.delay_ms))
    for task, error in results.failed:
        failed = task._replace(failures=task.failures + 1)
        if failed.failures >= flow.max_failures:
            yield Settlement([failed], Verb.DEAD, error=error, reason="failed too often")
        else:
            delay_ms = retry_delay_ms(flow, failed.failures, error)
            yield Settlement([failed], Verb.FAILED, delay_ms, error)
    for task, letter in results.dead:
        yield Settlement([task], Verb.DEAD, error=letter.__cause__, reason=letter.reason)
    if results.untouched:
        yield Settlement(results.untouched, Verb.RELEASED)
    if results.done:
        yield Settlement(results.done, Verb.DONE)
