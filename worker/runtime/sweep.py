"""The sweep makes the application's records the truth, and Redis an accelerator.

Whatever Redis loses in a crash, a flush or a failover, the records still have. The sweep reads which tasks
are waiting according to the records, and restores those that Redis lost. While Redis answers, one worker
sweeps. While it does not, every worker sweeps and, if the flow asks for it, passes overdue tasks to the
flow's own handler. So there is only one way to finish a task.

There are two kinds of rounds. Most read only what is overdue. Every ``lookahead_seconds`` one also reads what
will be due soon, so that a lost task is restored before it is due.

A task that Redis does not have may have been done or cancelled after the records were read. So the records
are read again, and the task is restored only if they still list it.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import redis

from .. import events
from ..errors import FATAL, Unavailable, UnsafeServer, described
from ..flow import Due, Sweep, Task
from ..log import log
from ..queue.delay_queue import DelayQueue, Restored
from .isolation import BatchResult, handle
from .outages import HangDetector
from .settling import Postponed, retry_delay_ms
from .station import Station, handled_event

#: While Redis has been silent for less than this, it may be a hiccup, and nothing is handled without it.
SILENCE_SECONDS = 1.5
#: How often to ask Redis in the meantime.
ASK_AGAIN_SECONDS = 0.05
#: The fraction of its turn after which a sweeper extends it.
EXTEND_AFTER = 0.6
#: Tasks that were due soon when first read may be overdue when read again.
SLACK_SECONDS = 10.0
#: How many lost tasks are looked up again in one round; the others wait for the next.
MOST_LOST = 50_000
#: A task is parked if it is dead or was postponed by its handler. Once it is overdue by this much, it is
#: read only when the sweep looks ahead, instead of every round.
PARKED_SECONDS = 10.0


class Sweeper:
    """Sweeps one flow every ``sweep_seconds``. Times are on the monotonic clock, in seconds."""

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
        """``queue`` is the station's queue on a separate connection; ``alarm`` ends the wait for the next claim."""
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
        self.hang_detector = HangDetector(station.flow.name, "sweep", emit)
        #: Whether it is this worker's turn to sweep, and when to ask Redis again.
        self._my_turn = False
        self._ask_at = 0.0
        #: Since when Redis has not answered; None while it does.
        self._silent_since: float | None = None
        #: Whether the records could be read the last time.
        self.records_answer = True
        #: When the last page of records was asked for, on the monotonic clock.
        self._read_at = 0.0
        #: When to read again what is due soon, and everything that is overdue.
        self._look_ahead_at = 0.0
        #: Every task that was due by this time is parked, so the next round need not read it.
        self._parked_until: float | None = None
        #: Tasks that were handled without Redis and are not done: when to try them again, and how often they
        #: failed.
        self._postponed = Postponed()
        self._failures: Counter[str] = Counter()

    def run(self) -> None:
        """Sweep until the worker stops."""
        pause = 0.0
        while not self._stopping.wait(pause):
            began = time.monotonic()
            with self.hang_detector:
                self.sweep(began)
            pause = max(0.0, began + self._flow.sweep_seconds - time.monotonic())
            if self._hiccups(time.monotonic()):
                pause = min(pause, ASK_AGAIN_SECONDS)
        self._resign()

    def sweep(self, now: float) -> None:
        """One round. ``now`` is on the monotonic clock."""
        if not self._station.health.up:
            self._resign()
            return
        try:
            if not self.records_answer:  # do not take the turn before they do
                next(iter(self._waiting(None, 0.0)), None)
            self._sweep(now)
        except Unavailable as error:
            if self.records_answer:
                log.warning("sweep cannot read records", queue=self._queue.name, error=str(error))
            self.records_answer = False
            self._resign()
        except FATAL:
            raise
        except BaseException:  # whatever it is, try again next round
            log.exception("sweep failed", queue=self._queue.name)
        else:
            self.records_answer = True

    def _sweep(self, now: float) -> None:
        must_ask = (
            now >= self._ask_at
            or self._silent_since is not None
            or self._parked_until is not None  # valid only until Redis loses something
            or self._station.failing
        )
        if must_ask and self._ask([]) is None:
            if not self._hiccups(time.monotonic()) and self._flow.without_redis == "handle":
                self._sweep_without_redis()
        elif self._my_turn:
            look_ahead = now >= self._look_ahead_at
            if look_ahead:
                self._look_ahead_at = now + self._flow.lookahead_seconds
                self._parked_until = None
            self._sweep_overdue()
            if look_ahead and self._my_turn and self._silent_since is None:
                self._sweep_upcoming()

    def _waiting(self, after_seconds: float | None, before_seconds: float) -> Iterator[list[Due]]:
        """The tasks that the records list, page by page.

        Raises what the records raise, and TypeError for a payload that is not bytes.
        """
        pages = iter(self._records(after_seconds, before_seconds))
        while True:
            self._read_at = time.monotonic()
            page = next(pages, None)
            if page is None:
                return
            self.hang_detector.progress()
            # Databases may return Decimal, which cannot be added to the floats of the clock.
            rows = [Due(due.id, float(due.delay_ms), due.payload) for due in page]
            for due in rows:
                # The client would refuse to send it, which would be taken for an outage of Redis.
                if not isinstance(due.payload, bytes):
                    raise TypeError(f"the payload of {due.id!r} is {due.payload!r}, not bytes")
            if rows:
                yield rows

    def _sweep_overdue(self) -> None:
        asked_at, all_parked = time.monotonic(), True
        since = self._parked_until
        lost: set[str] = set()
        for page in self._waiting(None if since is None else since - asked_at, 0.0):
            read_at = time.monotonic()
            found = self._ask(page, look_only=True)
            if not self._may_continue(found):
                return
            lost.update(found.lost)
            if found.due or found.lost:
                self._alarm.set()  # their wake-up may have been lost
            if len(lost) > MOST_LOST or (found.due and not found.lost):
                # A backlog: this page is about to be claimed, and the next ones after it.
                break
            if all_parked and found.parked:
                self._note_parked(page, found.parked, asked_at, read_at)
            all_parked = all_parked and found.parked == len(page)
        self._restore(lost, None if since is None else since - time.monotonic(), 0.0)

    def _sweep_upcoming(self) -> None:
        # Twice as far as the next round that looks ahead, so that each task is seen before it is due.
        horizon = 2 * self._flow.lookahead_seconds
        lost: set[str] = set()
        for page in self._waiting(0.0, horizon):
            found = self._ask(page, look_only=True)
            if not self._may_continue(found):
                return
            lost.update(found.lost)
            if len(lost) > MOST_LOST:
                self._look_ahead_at = 0.0  # so that the next round restores the others
                break
        self._restore(lost, -SLACK_SECONDS, horizon)

    def _restore(self, lost: set[str], after_seconds: float | None, before_seconds: float) -> None:
        """Restore the lost tasks that the records still list."""
        if not lost:
            return
        restored = 0
        for page in self._waiting(after_seconds, before_seconds):
            still = [due for due in page if due.id in lost]
            lost = lost.difference(due.id for due in still)
            found = self._ask(still) if still else None
            if still and not self._may_continue(found):
                break
            restored += len(found.lost) if found else 0
            if not lost:
                break
        if restored:
            self._counts["restored"] += restored
            self._emit(events.Restored(self._queue.name, restored))

    def _may_continue(self, found: Restored | None) -> TypeGuard[Restored]:
        """Whether the sweep may continue with another page."""
        return not (found is None or found.paused or not found.turn or self._stopping.is_set())

    def _note_parked(
        self, page: Sequence[Due], parked: int, asked_at: float, read_at: float
    ) -> None:
        """Skip the first ``parked`` tasks of a page until the next round that looks ahead.

        The page was requested at ``asked_at`` and read by ``read_at``.
        """
        until = min(read_at + page[parked - 1].delay_ms / 1000 + 0.001, read_at - PARKED_SECONDS)
        if parked < len(page) and asked_at + page[parked].delay_ms / 1000 <= until:
            return  # the next task, which is not parked, may be due at the same time
        self._parked_until = until

    def _sweep_without_redis(self) -> None:
        """Pass overdue tasks to the flow's own handler, until it is time to ask Redis again."""
        station = self._station
        until = time.monotonic() + self._flow.sweep_seconds
        for page in self._waiting(None, 0.0):
            if self._stopping.is_set() or station.queue.last_known_paused or not station.health.up:
                return
            self._handle(page)
            if time.monotonic() >= until:
                return

    # -- Redis -----------------------------------------------------------------------------

    def _ask(self, page: Sequence[Due], *, look_only: bool = False) -> Restored | None:
        """Restore a page if it is this worker's turn. Returns None when Redis does not answer."""
        term_ms = round(1000 * self._flow.lease_seconds)
        asked_at = time.monotonic()
        try:
            self._station.ensure_safe()
            found = self._queue.restore(
                page, worker_id=self._worker_id, term_ms=term_ms, look_only=look_only
            )
        except (redis.RedisError, UnsafeServer) as error:
            if self._silent_since is None:
                self._silent_since = asked_at
                log.warning("sweep without Redis", queue=self._queue.name, error=described(error))
            return None
        if self._silent_since is not None or found.new_turn:
            # Redis may have lost data, so read everything again.
            self._silent_since = self._parked_until = None
            self._look_ahead_at = 0.0
            self._postponed = Postponed()
            self._failures.clear()
        self._my_turn = found.turn
        if not found.turn:
            self._parked_until = None  # another worker watches for losses
        turn_ms = EXTEND_AFTER * term_ms if found.turn else found.turn_in_ms
        self._ask_at = asked_at + turn_ms / 1000
        if found.turn:
            self._station.queue.last_known_paused = found.paused
        return found

    def _hiccups(self, now: float) -> bool:
        """Whether Redis has been silent for less than `SILENCE_SECONDS`."""
        return self._silent_since is not None and now < self._silent_since + SILENCE_SECONDS

    def _resign(self) -> None:
        if not self._my_turn:
            return
        self._my_turn = False
        self._ask_at = 0.0
        try:
            self._queue.resign(self._worker_id)
        except redis.RedisError as error:  # the turn ends by itself
            log.debug("not resigned", queue=self._queue.name, error=described(error))

    # -- without Redis ---------------------------------------------------------------------

    def _handle(self, page: Sequence[Due]) -> None:
        overdue = self._to_handle(page)
        if not overdue:
            return
        tasks = [Task(due.id, due.payload, attempt=self._failures[due.id] + 1) for due in overdue]
        late_ms = {due.id: -due.delay_ms for due in overdue}
        read_at = began_at = time.monotonic()

        def keep_going(_: Sequence[Task]) -> bool:
            nonlocal began_at
            began_at = time.monotonic()
            # A call of the handler may take longer than reading the records.
            self.hang_detector.progress(self._flow.max_runtime_seconds)
            return not self._stopping.is_set()

        for part in handle(self._flow, tasks, keep_going):
            ended_at = time.monotonic()
            self.hang_detector.progress()
            if part.outage:
                self._station.health.take_down(part.outage)
            self._postpone(part)
            self._counts["handled without Redis"] += len(part.done)
            if handled := [*part.handled()]:
                late = max(late_ms[task.id] for task in handled) + 1000 * (ended_at - read_at)
                seconds = ended_at - began_at
                self._emit(
                    handled_event(self._queue.name, part, seconds, round(late), without_redis=True)
                )

    def _to_handle(self, page: Sequence[Due]) -> list[Due]:
        """The tasks that are due and that this process neither holds nor has postponed."""
        held_ids = {task.id for held in self._station.renewer.held() for task in held.tasks()}
        postponed = (self._postponed, self._station.settler.postponed)
        return [
            due
            for due in page
            if due.delay_ms <= 0
            and due.id not in held_ids
            and not any(
                each.covers(due.id, self._read_at + due.delay_ms / 1000) for each in postponed
            )
        ]

    def _postpone(self, results: BatchResult) -> None:
        """Postpone the tasks that are not done. While Redis is down, only this process knows about them."""
        now = time.monotonic()
        for task, error in results.failed:
            self._failures[task.id] += 1
            delay_ms = retry_delay_ms(self._flow, self._failures[task.id], error)
            self._postponed.add(task.id, now + delay_ms / 1000)
            self._emit(events.Failed(self._queue.name, task, error, delay_ms))
        later = [(task, retry.delay_ms) for task, retry in results.retries]
        later += [(task, new.delay_ms) for task, new in results.rescheduled]
        for task, delay_ms in later:
            self._postponed.add(task.id, now + delay_ms / 1000)
            self._emit(events.Retried(self._queue.name, task, delay_ms))
        for task, letter in results.dead:
            # It becomes a dead letter once Redis is back and a claim delivers it.
            self._postponed.add(task.id, float("inf"))
            self._emit(events.Failed(self._queue.name, task, letter, float("inf")))
