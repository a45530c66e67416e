"""The sweep makes the application's records the truth, and Redis an accelerator.

Whatever Redis lost, in a crash, a flush or a failover, the records still have. The sweep reads
what they say is waiting and restores it. One worker sweeps while Redis answers. While it does not,
every worker does, and if the flow asks for it, hands what is overdue to the flow's own handler.
There is no second way to finish a task.

What the records listed a moment ago may have been done or cancelled since. So a task that Redis does not have
is restored only if the records still list it when they are asked once more: then it was lost.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import redis
import structlog

from . import events
from .errors import Unavailable, described
from .flow import Due, Sweep, Task
from .isolation import Results, handle
from .lane import Station
from .outages import Timed
from .queue import DelayQueue, Restored
from .settling import PutOff, retry_delay_ms

log = structlog.get_logger("worker")

#: A Redis that is silent for less than this hiccups: nothing is handed out.
SILENCE_SECONDS = 1.5
#: How soon to ask it again meanwhile.
ASK_AGAIN_SECONDS = 0.05
#: How much of its turn passes before a sweeper extends it.
EXTENDED_AT = 0.6
#: How much the records' clock and the way to it may differ between two looks.
SLACK_SECONDS = 1.0
#: Dead letters and tasks put off are not read again every round once they are overdue by this much.
RESTING_SECONDS = 10.0


class Sweeper:
    """Sweeps one flow every ``sweep_seconds``, on a connection of its own. Times are monotonic."""

    def __init__(
        self,
        station: Station,
        records: Sweep,
        *,
        queue: DelayQueue,
        worker_id: str,
        alarm: threading.Event,
        stopping: threading.Event,
        counts: Counter[str],
        emit: events.Listener,
    ) -> None:
        """``queue`` is the station's, on a connection of the sweep's; ``alarm`` wakes the claims."""
        self.name = station.flow.name
        self._station = station
        self._flow = station.flow
        self._records = records
        self._queue = queue
        self._worker_id = worker_id
        self._alarm = alarm
        self._stopping = stopping
        self._counts = counts
        self._emit = emit
        self.round = Timed(station.flow.name, "sweep", emit)
        #: Whether this worker sweeps, and when to ask again.
        self._turn = False
        self._ask_at = 0.0
        #: Since when Redis has not done what it was asked.
        self._silent_since: float | None = None
        self._records_answer = True
        #: When to look at everything, also at what is due soon.
        self._look_ahead_at = 0.0
        #: Everything that was due until then is dead or put off.
        self._resting_until: float | None = None
        #: What was handled without Redis and is not done: when to try again, and how often it failed.
        self._put_off = PutOff()
        self._failures: Counter[str] = Counter()

    def run(self) -> None:
        """Sweep until the worker stops."""
        pause = 0.0
        while not self._stopping.wait(pause):
            began = time.monotonic()
            with self.round:
                self.sweep(began)
            pause = max(0.0, began + self._flow.sweep_seconds - time.monotonic())
            if self._hiccups(time.monotonic()):
                pause = min(pause, ASK_AGAIN_SECONDS)
        self._resign()

    def sweep(self, now: float) -> None:
        """One round. ``now`` is on the monotonic clock."""
        if not self._station.needs.up:
            self._resign()
            return
        try:
            if not self._records_answer:  # ask them before Redis, and Redis only if they answer
                next(iter(self._waiting(None, 0.0)), None)
            self._sweep(now)
        except Unavailable as error:
            if self._records_answer:
                log.warning("sweep cannot read records", queue=self._queue.name, error=str(error))
            self._records_answer = False
            self._resign()
        except Exception:  # whatever it is, the next round may do better
            log.exception("sweep failed", queue=self._queue.name)
        else:
            self._records_answer = True

    def _sweep(self, now: float) -> None:
        must_ask = (
            now >= self._ask_at
            or self._silent_since is not None
            or self._resting_until is not None  # which holds until Redis loses something
            or self._station.failing
        )
        if must_ask and self._ask([]) is None:
            if not self._hiccups(time.monotonic()) and self._flow.without_redis == "handle":
                self._sweep_without_redis()
        elif self._turn:
            look_ahead = now >= self._look_ahead_at
            if look_ahead:
                self._look_ahead_at = now + self._flow.lookahead_seconds
                self._resting_until = None
            self._sweep_overdue()
            if look_ahead and self._turn and self._silent_since is None:
                self._sweep_upcoming()

    def _waiting(self, after_seconds: float | None, before_seconds: float) -> Iterator[list[Due]]:
        """What the records list, page by page. Raises what they raise, and TypeError for no payload."""
        for page in self._records(after_seconds, before_seconds):
            # A database may count in Decimal, which does not add up with the clock's floats.
            rows = [Due(due.id, float(due.delay_ms), due.payload) for due in page]
            for due in rows:
                # Else the client's refusal to send it would pass for a silent Redis.
                if not isinstance(due.payload, bytes):
                    raise TypeError(f"the payload of {due.id!r} is {due.payload!r}, not bytes")
            if rows:  # nothing in it is nothing to ask Redis about
                yield rows

    def _sweep_overdue(self) -> None:
        asked_at, all_rest = time.monotonic(), True
        since = self._resting_until
        for page in self._waiting(None if since is None else since - asked_at, 0.0):
            read_at = time.monotonic()
            found = self._restore(page, asked_at)
            if found is None or found.paused or not found.turn or self._stopping.is_set():
                return
            if found.due or found.lost:
                self._alarm.set()  # overdue, so look now: a wake-up may have been lost
                if not found.lost:
                    # A backlog: the claims are at this page, and come to the next one in turn.
                    return
            if all_rest and found.resting:
                self._rest(page, found.resting, asked_at, read_at)
            all_rest = all_rest and found.resting == len(page)

    def _rest(self, page: Sequence[Due], resting: int, asked_at: float, read_at: float) -> None:
        """Note that the first ``resting`` of a page, read between these times, need no look soon."""
        until = min(read_at + page[resting - 1].delay_ms / 1000 + 0.001, read_at - RESTING_SECONDS)
        if resting < len(page) and asked_at + page[resting].delay_ms / 1000 <= until:
            return  # the next one may be due in the same millisecond
        self._resting_until = until

    def _sweep_upcoming(self) -> None:
        # Reaches past the next look ahead, so that each task is seen before it is due.
        asked_at = time.monotonic()
        for page in self._waiting(0.0, 2 * self._flow.lookahead_seconds):
            found = self._restore(page, asked_at)
            if found is None or found.paused or not found.turn or self._stopping.is_set():
                return

    def _sweep_without_redis(self) -> None:
        """Hand what is overdue to the flow's own handler. Raises Unavailable as that does."""
        for page in self._waiting(None, 0.0):
            if self._stopping.is_set() or self._station.queue.last_known_paused:
                return
            self._handle(page)

    # -- Redis -----------------------------------------------------------------------------

    def _restore(self, page: Sequence[Due], asked_at: float) -> Restored | None:
        """Restore what is lost of a page that the records were asked for at that time.

        None when Redis does not answer.
        """
        read_at = time.monotonic()
        found = self._ask(page, look_only=True)
        if found is None or not found.lost:
            return found
        missing = {*found.lost}
        lost = [due for due in page if due.id in missing]
        still = self._still_waiting(lost, asked_at, read_at)
        restored = self._ask(still) if still else found._replace(lost=())
        if restored is not None and restored.lost:
            self._counts["restored"] += len(restored.lost)
            self._emit(events.Restored(self._queue.name, len(restored.lost)))
        return restored and found._replace(lost=restored.lost)

    def _still_waiting(self, lost: Sequence[Due], asked_at: float, read_at: float) -> list[Due]:
        """Those that the records still list; they were asked and answered between these times."""
        missing = {due.id for due in lost}
        now = time.monotonic()
        earliest = asked_at - now + min(due.delay_ms for due in lost) / 1000
        latest = read_at - now + max(due.delay_ms for due in lost) / 1000
        still: list[Due] = []
        for page in self._waiting(earliest - SLACK_SECONDS, latest + SLACK_SECONDS):
            still += [due for due in page if due.id in missing]
            if len(still) == len(missing):
                break
        return still

    def _ask(self, page: Sequence[Due], *, look_only: bool = False) -> Restored | None:
        """Restore a page, if it is this worker's turn; None when Redis does not answer."""
        term_ms = round(1000 * self._flow.lease_seconds)
        asked_at = time.monotonic()
        try:
            found = self._queue.restore(
                page, worker_id=self._worker_id, term_ms=term_ms, look_only=look_only
            )
        except redis.RedisError as error:
            if self._silent_since is None:
                self._silent_since = asked_at
                log.warning("sweep without Redis", queue=self._queue.name, error=described(error))
            return None
        if self._silent_since is not None or found.new_turn:
            # Redis may have lost anything.
            self._silent_since = self._resting_until = None
            self._look_ahead_at = 0.0
            self._put_off = PutOff()
            self._failures.clear()
        self._turn = found.turn
        if not found.turn:
            self._resting_until = None  # others sweep, so there is nothing to watch Redis for
        turn_ms = EXTENDED_AT * term_ms if found.turn else found.turn_in_ms
        self._ask_at = asked_at + turn_ms / 1000
        if found.turn:
            self._station.queue.last_known_paused = found.paused
        return found

    def _hiccups(self, now: float) -> bool:
        """Whether Redis is silent, but not for long."""
        return self._silent_since is not None and now < self._silent_since + SILENCE_SECONDS

    def _resign(self) -> None:
        if not self._turn:
            return
        self._turn = False
        self._ask_at = 0.0
        try:
            self._queue.resign(self._worker_id)
        except redis.RedisError as error:  # then its term ends by itself
            log.debug("not resigned", queue=self._queue.name, error=described(error))

    # -- without Redis ---------------------------------------------------------------------

    def _handle(self, page: Sequence[Due]) -> None:
        overdue = self._to_hand_out(page)
        if not overdue:
            return
        tasks = [Task(due.id, due.payload, attempt=self._failures[due.id] + 1) for due in overdue]
        late_ms = -min(due.delay_ms for due in overdue)
        began = time.monotonic()
        results = Results()
        for part in handle(self._flow, tasks, lambda _: not self._stopping.is_set()):
            self._note(part)
            results.merge(part)
        self._counts["handled without Redis"] += len(results.done)
        seconds = time.monotonic() - began
        if handled := [*results.handled()]:
            self._emit(
                events.Handled(
                    self._queue.name,
                    handled,
                    done=len(results.done) + len(results.rescheduled),
                    retries=len(results.retries),
                    failed=len(results.failed) + len(results.dead),
                    seconds=seconds,
                    late_ms=round(late_ms + 1000 * seconds),
                    without_redis=True,
                )
            )
        if results.outage:
            raise results.outage

    def _to_hand_out(self, page: Sequence[Due]) -> list[Due]:
        """What is due, and neither at work in this process nor put off by it."""
        at_work = {task.id for held in self._station.renewer.held() for task in held.tasks()}
        return [
            due
            for due in page
            if due.delay_ms <= 0
            and due.id not in at_work
            and due.id not in self._put_off
            and due.id not in self._station.settler.put_off
        ]

    def _note(self, results: Results) -> None:
        """Remember what not to do again before its time: only this process knows."""
        now = time.monotonic()
        for task, error in results.failed:
            self._failures[task.id] += 1
            delay_ms = retry_delay_ms(self._flow, self._failures[task.id], error)
            self._put_off.put_off(task.id, now + delay_ms / 1000)
            self._emit(events.Failed(self._queue.name, task, error, delay_ms))
        later = [(task, retry.delay_ms) for task, retry in results.retries]
        later += [(task, new.delay_ms) for task, new in results.rescheduled]
        for task, delay_ms in later:
            self._put_off.put_off(task.id, now + delay_ms / 1000)
            self._emit(events.Retried(self._queue.name, task, delay_ms))
        for task, letter in results.dead:
            # A dead letter needs Redis: the claims will make it one.
            self._put_off.put_off(task.id, float("inf"))
            self._emit(events.Failed(self._queue.name, task, letter, float("inf")))
