"""Settles tasks: exactly one call acks, retries or releases each task, or makes it a dead letter.

What was postponed is noted for a sweep that cannot ask Redis.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from .. import events
from ..backoff import Backoff
from ..errors import LeaseLost, described, fatal
from ..flow import MAX_DELAY_MS, Flow, NotDue, Retry, Task
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.environment import Clock
from ..queue.replies import Put
from .isolation import BatchResult, LookAgain
from .shared import Shared

#: How many calls that Redis did not confirm are kept to be sent again. Beyond that the oldest is dropped.
MAX_UNCONFIRMED = 1000
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


@dataclass(slots=True)
class _Call:
    """One call of a method of `DelayQueue`."""

    #: The name under which its rows are counted.
    count: str
    rows: list[Any]
    write: Callable[[list[Any]], None]
    confirmed: bool = False
    #: The ids whose lease was lost.
    lost: frozenset[str] = frozenset()
    #: Why the last attempt failed.
    error: redis.RedisError | None = None


class Settler:
    """Settles the tasks of one flow. Any thread may use it."""

    def __init__(self, flow: Flow, queue: DelayQueue, shared: Shared) -> None:
        self._flow = flow
        self._queue = queue
        self._clock = shared.clock
        self._counts, self._emit = shared.counts, shared.emit
        self._unconfirmed: deque[_Call] = deque(maxlen=MAX_UNCONFIRMED)
        self._unsettled = Reminder(self._clock)
        self.postponed = Postponed(self._clock)

    def settle(self, results: BatchResult) -> bool:
        """Settle the tasks of ``results``; return whether Redis confirmed all of them."""
        queue, flow = self._queue, self._flow
        failed = [
            (task._replace(failures=task.failures + 1), error) for task, error in results.failed
        ]
        last = [(task, error) for task, error in failed if task.failures >= flow.max_failures]
        again = [
            (task, error, retry_delay_ms(flow, task.failures, error))
            for task, error in failed
            if task.failures < flow.max_failures
        ]
        dead = [(task, letter.reason, letter.__cause__) for task, letter in results.dead]
        dead += [(task, "failed too often", error) for task, error in last]
        back = _put_back(results)
        causes = {
            task.id: error.__cause__ if isinstance(error, Retry) else error
            for task, error in [*results.retries, *results.failed]
        }
        delayed = [row for rows in back.values() for row in rows]
        back[Put.FAILED] = [(task, delay_ms) for task, _, delay_ms in again]
        not_due = [task for task, _ in back[Put.NOT_DUE]]
        put_off = [row for put, rows in back.items() if put is not Put.NOT_DUE for row in rows]
        self.postponed.discard(task.id for task in [*results.done, *results.untouched, *not_due])
        self._postpone([*put_off, *((task, math.inf) for task, _, _ in dead)])
        calls = [
            self._call("done", results.done, queue.ack),
            *(
                self._call(
                    "failed" if put is Put.FAILED else "retried",
                    rows,
                    self._putting_back(put, causes),
                )
                for put, rows in back.items()
            ),
            self._call("released", results.untouched, queue.release),
        ]
        buried = self._bury(dead)
        lost = {task_id for call in calls for task_id in call.lost}
        for task, delay_ms in delayed:
            if task.id not in lost:
                self._emit(events.Retried(queue.name, task, delay_ms, causes.get(task.id)))
        for task, error, delay_ms in again:
            if task.id not in lost:
                self._emit(events.Failed(queue.name, task, error, delay_ms))
        return buried and all(call.confirmed for call in calls)

    def _putting_back(
        self, put: Put, causes: Mapping[str, BaseException | None]
    ) -> Callable[[list[tuple[Task, float]]], None]:
        """A call of `DelayQueue.retry` whose delays count from now, however often it has to be sent."""
        decided_at = self._clock()

        def write(rows: list[tuple[Task, float]]) -> None:
            passed_ms = 1000 * (self._clock() - decided_at)
            left = [(task, delay_ms - passed_ms) for task, delay_ms in rows]
            self._queue.retry(left, put, errors=causes)

        return write

    def bury(self, dead: list[tuple[Task, str, BaseException | None]]) -> bool:
        """Make tasks dead letters; return whether Redis confirmed it."""
        self._postpone((task, math.inf) for task, _, _ in dead)
        return self._bury(dead)

    def _bury(self, dead: list[tuple[Task, str, BaseException | None]]) -> bool:
        call = self._call("dead", dead, self._queue.dead_letter)
        for task, reason, error in dead:
            if task.id not in call.lost:
                self._emit(events.Died(self._queue.name, task, reason, error))
        return call.confirmed

    def resend(self) -> None:
        """Send unconfirmed calls again, until one fails. They settle their tasks if the lease still holds.

        Raises redis.ConnectionError or redis.TimeoutError if Redis still does not answer. If Redis refuses a
        call, it is kept and nothing is raised, because Redis may refuse it forever.
        """
        for _ in range(len(self._unconfirmed)):
            try:
                call = self._unconfirmed.popleft()
            except IndexError:  # another thread was faster
                return
            if not self._send(call):
                if isinstance(call.error, redis.ConnectionError | redis.TimeoutError):
                    raise call.error
                return

    def _postpone(self, later: Iterable[tuple[Task, float]]) -> None:
        """Note which tasks a sweep must not hand to the handler, and for how many milliseconds."""
        if self._flow.sweep is None or self._flow.without_redis != "handle":
            return
        now = self._clock()
        for task, delay_ms in later:
            self.postponed.add(task.id, now + delay_ms / 1000)

    def _call(self, count: str, rows: list[Any], write: Callable[[list[Any]], None]) -> _Call:
        call = _Call(count, rows, write, confirmed=not rows)
        if rows:
            self._send(call)
        return call

    def _send(self, call: _Call) -> bool:
        """Send a call and count what it settled; return whether Redis confirmed it.

        If not, the call is kept to be sent again. If the lease ends before that, the tasks are delivered again.
        """
        try:
            call.write(call.rows)
        except LeaseLost as lost:
            # Perhaps an earlier attempt ran and only its reply was lost: Redis cannot tell the difference.
            call.lost = frozenset(lost.ids)
            self._counts["stale"] += len(lost.ids)
            self._emit(events.LeaseLost(self._queue.name, lost.ids))
            self._counts[call.count] += len(call.rows) - len(call.lost)
        except redis.RedisError as error:
            call.error = error
            self._unconfirmed.append(call)
            if self._unsettled.is_due():
                log.warning(
                    "not settled yet",
                    queue=self._queue.name,
                    verb=call.count,
                    tasks=len(call.rows),
                    error=described(error),
                )
            return False
        else:
            self._counts[call.count] += len(call.rows)
        call.confirmed = True
        return True


def _put_back(results: BatchResult) -> dict[Put, list[tuple[Task, float]]]:
    """The tasks to put back that did not fail, each with its delay in ms, by how they are put back."""
    back: dict[Put, list[tuple[Task, float]]] = {put: [] for put in Put}
    for task, retry in results.retries:
        match retry:
            case LookAgain():
                put = Put.LATER
            case NotDue():
                put = Put.NOT_DUE
            case _:
                put = Put.AGAIN
        back[put].append((task, max(1.0, retry.delay_ms)))
    back[Put.NEW] = [(task, max(1.0, new.delay_ms)) for task, new in results.rescheduled]
    return back
