"""The sweep makes the application's records the truth, and Redis an accelerator.

Whatever Redis loses in a crash, a flush or a failover, the records still have. The sweep reads which tasks
are waiting according to the records, and restores those that Redis lost. While Redis answers, one worker
sweeps. While it does not, every worker sweeps and, if the flow asks for it, passes overdue tasks to the
flow's own handler.
Every ``lookahead_seconds`` a round also reads what is due soon, so that a lost task is restored before that.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeGuard

import redis

from .. import events
from ..errors import Unavailable, UnsafeServer, described, fatal
from ..flow import Due, Sweep
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Restored
from .hangs import HangDetector
from .listed import Page, SweepReader
from .shared import repeat
from .station import Station
from .waker import Alarm
from .without_redis import WithoutRedis

#: While Redis has been silent for less than this, it may be a hiccup, and nothing is handled without it.
SILENCE_SECONDS = 1.5
#: How often to ask Redis in the meantime.
ASK_AGAIN_SECONDS = 0.05
#: The fraction of its turn after which a sweeper extends it.
EXTEND_AFTER = 0.6
#: A round reads what became due since the last one, and within this time before. What is overdue for longer, such as dead
#: letters, is read when the sweep looks ahead, and when Redis may have lost something.
WINDOW_SECONDS = 10.0
#: Between two queries a due time seems to move by as long as a query takes.
SLACK_SECONDS = 10.0
#: How many lost tasks are gathered before they are read again and restored. This limits the memory used.
MOST_LOST = 50_000


class Sweeper:
    """Sweeps one flow every ``sweep_seconds``. Times are on the monotonic clock, in seconds."""

    def __init__(
        self,
        station: Station,
        records: Sweep,
        *,
        queue: DelayQueue,
        worker_id: str,
        alarm: Alarm,
    ) -> None:
        """``queue`` is the station's queue on a separate connection; ``alarm`` ends the wait for the next claim."""
        self.name = station.flow.name
        self._station = station
        self._flow = station.flow
        self._waiting = SweepReader(queue, records)
        self._queue = queue
        self._clock = queue.environment.clock
        #: What a sweep learns, claims know, and the other way round.
        queue.memory = station.queue.memory
        self._worker_id = worker_id
        self._alarm = alarm
        shared = station.shared
        self._stopping, self._counts, self._emit = shared.stopping, shared.counts, shared.emit
        self.hang_detector = HangDetector(station.flow.name, "sweep", shared)
        #: Whether it is this worker's turn to sweep, and when to ask Redis again.
        self._my_turn = False
        self._ask_at = 0.0
        #: Since when Redis has not answered; None while it does.
        self._silent_since: float | None = None
        #: Whether the records could be read the last time.
        self.records_answer = True
        self._failure = Reminder(self._clock)
        #: When to read again what is due soon, and everything that is overdue.
        self._look_ahead_at = 0.0
        #: What was due before this is known to Redis or done, but for what this process was at work on.
        self._overdue_since: float | None = None
        #: Whether anything was overdue since then, which Redis may lose.
        self._any_overdue = False
        self._without_redis = WithoutRedis(station, self.hang_detector)

    def run(self) -> None:
        """Sweep until the worker stops."""
        repeat(self.round, self._stopping)

    def round(self) -> float:
        """Sweep; return in how many seconds to sweep again."""
        began = self._clock()
        with self.hang_detector:
            self.sweep(began)
        pause = max(0.0, began + self._flow.sweep_seconds - self._clock())
        return min(pause, ASK_AGAIN_SECONDS) if self._hiccups() else pause

    def sweep(self, now: float) -> None:
        """One round. ``now`` is on the monotonic clock."""
        if not self._station.gate.up:
            return
        try:
            if not self.records_answer:  # do not take the turn before they do
                next(self._read(None, 0.0), None)
            self._sweep(now)
        except fatal():
            raise
        except BaseException as error:  # whatever it is, the next round tries again
            if self._failure.is_due():
                if isinstance(error, Unavailable):
                    log.warning(
                        "sweep cannot read records", queue=self._queue.name, error=str(error)
                    )
                else:
                    log.exception("sweep failed", queue=self._queue.name)
            self.records_answer = False
        else:
            self.records_answer = True
            self._failure.reset()

    def _sweep(self, now: float) -> None:
        must_ask = (
            now >= self._ask_at
            or self._silent_since is not None
            or self._any_overdue  # whether Redis lost everything shows only when it is asked
            or self._station.failing
        )
        if must_ask and self._ask([]) is None:
            if not self._hiccups() and self._flow.without_redis == "handle":
                self._sweep_without_redis()
        elif self._my_turn:
            look_ahead = now >= self._look_ahead_at
            if look_ahead:
                self._look_ahead_at = now + self._flow.lookahead_seconds
                self._overdue_since, self._any_overdue = None, False
            known_until = self._restore_lost(self._overdue_since, 0.0)
            if known_until is not None:
                self._overdue_since = known_until - WINDOW_SECONDS
            if look_ahead and self._my_turn and self._silent_since is None:
                # Twice as far as the next round that looks ahead, so that each task is seen before it is due.
                self._restore_lost(self._clock(), 2 * self._flow.lookahead_seconds)

    def _read(self, since: float | None, before_seconds: float) -> Iterator[Page]:
        """What the records list as due from a time on until so many seconds from now."""
        after_seconds = None if since is None else since - self._clock()
        for page in self._waiting.pages(after_seconds, before_seconds):
            self.hang_detector.progress()
            yield page

    def _restore_lost(self, since: float | None, before_seconds: float) -> float | None:
        """Restore the tasks that Redis lost, among those due from a time on until so many seconds from now.

        Returns before when they are due that Redis has now or that are done; None if the round ended early.
        """
        known_until, is_overdue = self._clock(), before_seconds == 0
        lost, last_page = set[str](), 0
        for number, page in enumerate(self._read(since, before_seconds), 1):
            found = self._ask(page.rows, look_only=True)
            if not self._may_continue(found):
                return None
            held = self._station.renewer.held_ids()
            missing = {*found.lost} - held
            if len(missing) < len(found.lost):
                # Unless it is done, it is restored once it is let go.
                first = next(due for due in page.rows if due.id in held)
                known_until = min(known_until, page.due_at(first))
            if missing:
                lost |= missing
                last_page = number
            if is_overdue:
                self._any_overdue = True
                if found.due or missing:
                    self._alarm.set()  # their wake-up may have been lost
            # A backlog: this page is about to be claimed, and the next ones after it.
            is_backlog = is_overdue and found.due and not missing
            if is_backlog or len(lost) > MOST_LOST:
                known_until = min(known_until, page.due_at(page.rows[-1]))
                if not is_overdue:
                    self._look_ahead_at = 0.0  # so that the next round restores the others
                break
        again = self._read(since, before_seconds + SLACK_SECONDS)
        is_done = self._restore(lost, islice(again, last_page))
        return known_until if is_done else None

    def _restore(self, lost: set[str], pages: Iterator[Page]) -> bool:
        """Restore the lost tasks that the records still list; return whether that is done.

        One that Redis does not have may have been done or cancelled after its record was read.
        """
        restored, is_done = 0, True
        for page in pages:
            if still := [due for due in page.rows if due.id in lost]:
                found = self._ask(still)
                if not self._may_continue(found):
                    is_done = False
                    break
                restored += len(found.lost)
        if restored:
            self._counts["restored"] += restored
            self._emit(events.Restored(self._queue.name, restored))
        return is_done

    def _may_continue(self, found: Restored | None) -> TypeGuard[Restored]:
        """Whether the sweep may continue with another page."""
        return not (found is None or found.paused or not found.turn or self._stopping.is_set())

    def _sweep_without_redis(self) -> None:
        """Pass overdue tasks to the flow's own handler, until it is time to ask Redis again."""
        until = None
        for page in self._read(None, 0.0):
            # However long the first page took.
            until = until or self._clock() + self._flow.sweep_seconds
            if not self._without_redis.may_continue(until):
                return
            self._without_redis.handle(page, until)

    # -- Redis -----------------------------------------------------------------------------

    def _ask(self, page: Sequence[Due], *, look_only: bool = False) -> Restored | None:
        """Restore a page if it is this worker's turn. Returns None when Redis does not answer."""
        term_ms = self._station.lease_ms
        asked_at = self._clock()
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
            self._silent_since = None
            self._look_ahead_at = 0.0
            self._without_redis.forget()
        if found.paused:
            self._look_ahead_at = 0.0  # nothing is watched meanwhile
        self._my_turn = found.turn
        if not found.turn:
            self._any_overdue = False  # another worker watches for losses
        turn_ms = EXTEND_AFTER * term_ms if found.turn else found.turn_in_ms
        self._ask_at = asked_at + turn_ms / 1000
        return found

    def _hiccups(self) -> bool:
        """Whether Redis has been silent for less than `SILENCE_SECONDS`."""
        since = self._silent_since
        return since is not None and self._clock() < since + SILENCE_SECONDS
