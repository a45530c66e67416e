"""Passes overdue tasks to the flow's own handler while Redis does not answer.

So there is only one way to finish a task. Several workers may get the same one: the records decide which of
them takes effect.
"""

from collections import Counter
from collections.abc import Sequence

from .. import events
from ..flow import Due, NotDue, Reschedule, Retry, Task
from .hangs import HangDetector
from .isolation import BatchResult, handle
from .listed import Page
from .settling import Postponed, retry_delay_ms
from .station import Station, handled_event


class WithoutRedis:
    """Handles the tasks of one flow that this process neither holds nor has postponed."""

    def __init__(self, station: Station, hang_detector: HangDetector) -> None:
        self._station = station
        self._flow = station.flow
        shared = station.shared
        self._clock, self._emit = shared.clock, shared.emit
        self._stopping, self._counts = shared.stopping, shared.counts
        self._hang_detector = hang_detector
        #: Tasks that are not done: when to try them again, and how often they were tried and failed. Only this
        #: process knows.
        self._postponed = Postponed(self._clock)
        self._tried: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def forget(self) -> None:
        """Redis is back: what is not done is its business again."""
        self._postponed = Postponed(self._clock)
        self._tried.clear()
        self._failures.clear()

    def may_continue(self, until: float) -> bool:
        """Whether the handler may be called now: not after ``until``, when Redis is to be asked again."""
        paused = self._station.queue.memory.paused
        if self._stopping.is_set() or paused or not self._station.gate.up:
            return False
        return self._clock() < until and self._station.pause.allows()

    def handle(self, page: Page, until: float) -> None:
        """Call the handler with the tasks of a page that are due, as long as it may be called."""
        overdue = self._to_handle(page)
        if not overdue:
            return
        tasks = [Task(due.id, due.payload, attempt=self._tried[due.id] + 1) for due in overdue]
        late_ms = {due.id: -due.delay_ms for due in overdue}
        read_at = began_at = self._clock()

        def keep_going(_: Sequence[Task]) -> bool:
            nonlocal began_at
            began_at = self._clock()
            # A call of the handler may take longer than reading the records.
            self._hang_detector.progress(self._flow.max_runtime_seconds)
            return self.may_continue(until)

        strikes = self._station.strikes
        for part in handle(self._flow, tasks, keep_going, self._clock, strikes):
            ended_at = self._clock()
            self._hang_detector.progress()
            if part.outage:
                self._station.gate.take_down(part.outage)
            self._station.note_handled(part)
            self._postpone(part)
            self._counts["handled without Redis"] += len(part.done)
            if handled := part.handled():
                late = max(late_ms[task.id] for task in handled) + 1000 * (ended_at - read_at)
                seconds = ended_at - began_at
                self._emit(
                    handled_event(self._flow.name, part, seconds, round(late), without_redis=True)
                )

    def _to_handle(self, page: Page) -> list[Due]:
        held_ids = self._station.renewer.held_ids()
        postponed = (self._postponed, self._station.settler.postponed)
        return [
            due
            for due in page.rows
            if due.delay_ms <= 0
            and due.id not in held_ids
            and not any(each.covers(due.id, page.due_at(due)) for each in postponed)
        ]

    def _postpone(self, results: BatchResult) -> None:
        """Postpone the tasks that are not done."""
        now = self._clock()
        self._tried.update(task.id for task, _ in [*results.failed, *results.retries])
        for task, error in results.failed:
            self._failures[task.id] += 1
            delay_ms = retry_delay_ms(self._flow, self._failures[task.id], error)
            self._postponed.add(task.id, now + delay_ms / 1000)
            self._emit(events.Failed(self._flow.name, task, error, delay_ms))
        put_off: list[tuple[Task, Retry | Reschedule]] = [*results.retries, *results.rescheduled]
        for task, later in put_off:
            if not isinstance(later, NotDue):  # the records list it once it is due
                self._postponed.add(task.id, now + later.delay_ms / 1000)
            self._emit(events.Retried(self._flow.name, task, later.delay_ms))
        for task, letter in results.dead:
            # It becomes a dead letter once Redis is back and a claim delivers it.
            self._postponed.add(task.id, float("inf"))
            self._emit(events.Failed(self._flow.name, task, letter, float("inf")))
