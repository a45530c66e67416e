"""The sweep makes the application's records the truth, and Redis an accelerator.

Whatever Redis loses in a crash, a flush or a failover, the records still have. The sweep reads which tasks
are waiting according to the records, and restores those that Redis lost. While Redis answers, one worker
sweeps. While it does not, every worker sweeps and, if the flow asks for it, passes overdue tasks to the
flow's own handler.
Every ``lookahead_seconds`` a round also reads what is due soon, so that a lost task is restored before that.
"""

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import redis

from .. import events
from ..errors import Unavailable, UnsafeServer, described, fatal
from ..flow import Due, Sweep
from ..log import Reminder, log
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Restored
from .lane import Station
from .outages import HangDetector
from .shared import repeat
from .waiting import MOST_LOST, LostTasks, Page, SweepReader
from .waker import Alarm
from .without_redis import WithoutRedis

#: While Redis has been silent for less than this, it may be a hiccup, and nothing is handled without it.
SILENCE_SECONDS = 1.5
#: How often to ask Redis in the meantime.
ASK_AGAIN_SECONDS = 0.05
#: The fraction of its turn after which a sweeper extends it.
EXTEND_AFTER = 0.6
#: A task is parked if it is dead or was postponed by its handler. Once it is overdue by this much, it is
#: read only when the sweep looks ahead, instead of every round.
PARKED_SECONDS = 10.0
#: Records that take longer to read, in so many rounds in a row, are mostly ones that are done, and that their database
#: cannot remove yet: a transaction holds an old snapshot, for example. Then they, too, are read only when it looks ahead.
SLOW_SECONDS, SLOW_ROUNDS = 0.02, 2
#: All but those that were due so shortly before: a transaction that wrote a record may have been committed since.
SETTLED_SECONDS = 5.0


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
        #: Every task that was due by this time is parked or done, so the next round need not read it.
        self._settled_until: float | None = None
        #: How many rounds in a row took long to read, or skipped what took long.
        self._slow_rounds = 0
        self._without_redis = WithoutRedis(station, self.hang_detector)

    def run(self) -> None:
        """Sweep until the worker stops."""
        repeat(self.round, self._stopping)
        self._resign()

    def round(self) -> float:
        """Sweep; return in how many seconds to sweep again."""
        began = self._clock()
        with self.hang_detector:
            self.sweep(began)
        pause = max(0.0, began + self._flow.sweep_seconds - self._clock())
        return min(pause, ASK_AGAIN_SECONDS) if self._hiccups(self._clock()) else pause

    def sweep(self, now: float) -> None:
        """One round. ``now`` is on the monotonic clock."""
        if not self._station.gate.up:
            self._resign()
            return
        try:
            if not self.records_answer:  # do not take the turn before they do
                next(self._read(None, 0.0), None)
            self._sweep(now)
        except fatal():
            raise
        except BaseException as error:  # whatever it is, another worker may be able to sweep
            if self._failure.is_due():
                if isinstance(error, Unavailable):
                    log.warning(
                        "sweep cannot read records", queue=self._queue.name, error=str(error)
                    )
                else:
                    log.exception("sweep failed", queue=self._queue.name)
            self.records_answer = False
            self._resign()
        else:
            self.records_answer = True
            self._failure.reset()

    def _sweep(self, now: float) -> None:
        must_ask = (
            now >= self._ask_at
            or self._silent_since is not None
            or self._settled_until is not None  # valid only until Redis loses something
            or self._station.failing
        )
        if must_ask and self._ask([]) is None:
            if not self._hiccups(self._clock()) and self._flow.without_redis == "handle":
                self._sweep_without_redis()
        elif self._my_turn:
            look_ahead = now >= self._look_ahead_at
            if look_ahead:
                self._look_ahead_at = now + self._flow.lookahead_seconds
                self._settled_until = None
            self._sweep_overdue()
            if look_ahead and self._my_turn and self._silent_since is None:
                self._sweep_upcoming()

    def _read(self, after_seconds: float | None, before_seconds: float) -> Iterator[Page]:
        for page in self._waiting.pages(after_seconds, before_seconds):
            self.hang_detector.progress()
            yield page

    def _sweep_overdue(self) -> None:
        asked_at, all_parked = self._clock(), True
        since, rounds = self._settled_until, self._slow_rounds + 1
        slow = since is not None and rounds > SLOW_ROUNDS
        lost, any_lost, held = LostTasks(since), False, self._station.renewer.held_ids()
        for page in self._read(None if since is None else since - asked_at, 0.0):
            found = self._look(page, held)
            if not self._may_continue(found):
                return
            lost.add(page, found.lost)
            slow = slow or page.read_at - asked_at > SLOW_SECONDS
            if slow and rounds >= SLOW_ROUNDS and all_parked and found.parked < len(page.rows):
                self._note_settled(asked_at + page.rows[found.parked].delay_ms / 1000)
            if found.due or found.lost:
                self._alarm.set()  # their wake-up may have been lost
            if len(lost.ids) > MOST_LOST or (found.due and not found.lost):
                # A backlog: this page is about to be claimed, and the next ones after it.
                break
            if lost.ids and not any_lost:
                any_lost = any(lost.still_listed(self._read, self._clock()))
                if not any_lost:  # a backlog, too: they were done in the meantime
                    return
            if all_parked and found.parked:
                self._note_parked(page, found.parked, asked_at)
            all_parked = all_parked and found.parked == len(page.rows)
        else:
            slow = slow or self._clock() - asked_at > SLOW_SECONDS
            if slow and rounds >= SLOW_ROUNDS and all_parked:
                self._note_settled(asked_at)
        self._slow_rounds = rounds if slow else 0
        self._restore(lost)

    def _sweep_upcoming(self) -> None:
        lost, held = LostTasks(self._clock()), self._station.renewer.held_ids()
        # Twice as far as the next round that looks ahead, so that each task is seen before it is due.
        for page in self._read(0.0, 2 * self._flow.lookahead_seconds):
            found = self._look(page, held)
            if not self._may_continue(found):
                return
            lost.add(page, found.lost)
            if len(lost.ids) > MOST_LOST:
                self._look_ahead_at = 0.0  # so that the next round restores the others
                break
        self._restore(lost)

    def _look(self, page: Page, held: set[str]) -> Restored | None:
        """Ask Redis what it lost of a page, leaving out what this process works on or did when the round began.

        ``held`` are the ids of those tasks, as far as the round knows them; more may be added.
        """
        found = self._ask(page.rows, look_only=True)
        if found is not None and found.lost:
            held |= self._station.renewer.held_ids()
            found = found._replace(lost=tuple(each for each in found.lost if each not in held))
        return found

    def _restore(self, lost: LostTasks) -> None:
        """Restore the lost tasks that the records still list."""
        restored = 0
        for still in lost.still_listed(self._read, self._clock()):
            found = self._ask(still)
            if not self._may_continue(found):
                break
            restored += len(found.lost)
        if restored:
            self._counts["restored"] += restored
            self._emit(events.Restored(self._queue.name, restored))

    def _may_continue(self, found: Restored | None) -> TypeGuard[Restored]:
        """Whether the sweep may continue with another page."""
        return not (found is None or found.paused or not found.turn or self._stopping.is_set())

    def _note_parked(self, page: Page, parked: int, asked_at: float) -> None:
        """Skip the first ``parked`` tasks of a page until the next round that looks ahead.

        The sweep was called at ``asked_at``: its delays count from then at the earliest.
        """
        last, last_read = page.rows[parked - 1], page.read_at - PARKED_SECONDS
        until = min(page.read_at + last.delay_ms / 1000 + 0.001, last_read)
        if parked < len(page.rows) and asked_at + page.rows[parked].delay_ms / 1000 <= until:
            return  # the next task, which is not parked, may be due at the same time
        self._skip(until)

    def _note_settled(self, before: float) -> None:
        """Skip what was due ``before``, but for the latest of it, until the next round that looks ahead."""
        self._skip(before - SETTLED_SECONDS)

    def _skip(self, until: float) -> None:
        self._settled_until = max(until, self._settled_until or until)

    def _sweep_without_redis(self) -> None:
        """Pass overdue tasks to the flow's own handler, until it is time to ask Redis again."""
        until = self._clock() + self._flow.sweep_seconds
        for page in self._read(None, 0.0):
            if not self._without_redis.may_continue:
                return
            self._without_redis.handle(page)
            if self._clock() >= until:
                return

    # -- Redis -----------------------------------------------------------------------------

    def _ask(self, page: Sequence[Due], *, look_only: bool = False) -> Restored | None:
        """Restore a page if it is this worker's turn. Returns None when Redis does not answer."""
        term_ms = round(1000 * self._flow.lease_seconds)
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
            self._silent_since = self._settled_until = None
            self._look_ahead_at = 0.0
            self._without_redis.forget()
        self._my_turn = found.turn
        if not found.turn:
            self._settled_until = None  # another worker watches for losses
        turn_ms = EXTEND_AFTER * term_ms if found.turn else found.turn_in_ms
        self._ask_at = asked_at + turn_ms / 1000
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
