"""Recurring tasks: a flow whose tasks are the times of a cron expression.

No worker is in charge, and nothing sweeps. The worker that claims an occurrence schedules ("seeds") the next one
before it runs this one. So an empty queue means that Redis has lost its data, and the worker that notices seeds
the next occurrence. An occurrence's id is its time, so it makes no difference how many workers seed it.
"""

from collections.abc import Callable
from typing import Unpack

from .. import events
from ..flow import (
    CommonSettings,
    DeadLetter,
    Failed,
    Flow,
    NoOp,
    Probe,
    Reschedule,
    Retry,
    Task,
    one_at_a_time,
)
from ..pauses import Pauses
from ..queue.delay_queue import DelayQueue
from ..queue.replies import Claim
from .cron import Cron, Occurrence

RecurringOutcome = Retry | NoOp | DeadLetter | Failed


class RecurringSettings(CommonSettings, total=False):
    """The settings of a `Flow` that a `Recurring` takes as well."""

    probe: Probe | None
    pauses: Pauses | None
    threads: int | None


class Recurring(Flow):
    """A flow that runs on a cron schedule, once for each time, on any number of workers::

        def make_report(task: Task) -> None: ...

        Recurring("report", cron="0 2 * * *", timezone="Europe/Berlin", handler=make_report)

    Each run is a task of its own. Its id is the local time, such as ``2026-11-22T02:00:00+01:00``, and
    ``task.due_at_ms`` is the same moment, by the Redis server's clock; `Cron` says which times occur. The handler
    gets one task. It may return or raise any outcome except `Reschedule`, which makes a dead letter: the schedule
    says when the next run is.

    The next run waits neither for one that failed and is tried again, like any task, nor for one that takes longer
    than the interval. Of the runs that no worker could start in time, the earliest takes place once, late.

    When Redis loses everything, running workers schedule the next run again within a minute, and always before its
    time; one that was due and had not begun takes place late if a running worker knew of it. When Redis's clock is
    set back, none of the last hundred runs takes place twice.

    A new schedule takes effect when the first worker that has it starts. Workers that started earlier, with the old
    one, change nothing until all those with the new one have been gone or busy for three minutes. With a
    ``version``, which you raise with each change, neither do workers with an older version that start later, such
    as a pod of the old release that restarts during an upgrade. To end a recurring task, remove it from the code and
    destroy its queue.

    Raises ValueError for an expression or a time zone that is invalid, and for settings that a `Flow` refuses.
    Raises TypeError for settings that it does not have.
    """

    def __init__(
        self,
        name: str,
        *,
        cron: str,
        timezone: str,
        handler: Callable[[Task], RecurringOutcome | None],
        version: int | None = None,
        **settings: Unpack[RecurringSettings],
    ) -> None:
        if unknown := settings.keys() - RecurringSettings.__optional_keys__:
            raise TypeError(f"a recurring flow has no {', '.join(sorted(unknown))}")
        self.schedule = Cron(cron, timezone)
        self.version = version
        super().__init__(name=name, handler=one_at_a_time(_not_rescheduled(handler)), **settings)

    def extra_run(self, now_ms: int) -> Occurrence:
        """A run besides those of the schedule, for `DelayQueue.schedule`; ``now_ms`` is by the server's clock.

        Its id has milliseconds, as in ``2026-11-21T14:30:05.123+01:00``, so it is never that of a planned run.
        """
        return Occurrence(self.schedule.local(now_ms).isoformat(timespec="milliseconds"), now_ms)

    def __repr__(self) -> str:
        return f"Recurring({self.name!r}, {str(self.schedule)!r})"


def _not_rescheduled(
    handler: Callable[[Task], RecurringOutcome | None],
) -> Callable[[Task], RecurringOutcome | None]:
    def run(task: Task) -> RecurringOutcome | None:
        try:
            outcome = handler(task)
        except Reschedule as new:
            outcome = new  # type: ignore[assignment]  # types do not say what a function raises
        if isinstance(outcome, Reschedule):
            return DeadLetter("Reschedule: the schedule says when a recurring task runs again")
        return outcome

    return run


class Recurrence:
    """Seeds the occurrences of a recurring flow for one worker. One thread at a time uses it."""

    #: Longest wait between two claims. A worker knows the next time itself, so these claims only find losses
    #: of Redis, another schedule, and tasks that were requeued or resumed without a wake-up.
    SLOW_POLL_SECONDS = 60.0
    VERSIONS = 10**15

    def __init__(self, flow: Recurring, queue: DelayQueue, emit: events.Listener) -> None:
        self._schedule = flow.schedule
        self._queue = queue
        self._emit = emit
        #: Who has the newest schedule: the highest version, which is above any time, or else the latest first claim.
        self._age = None if flow.version is None else self.VERSIONS + flow.version
        #: The occurrence that was seeded last, as far as this worker knows; None while another schedule is in
        #: force.
        self._expected: Occurrence | None = None

    def seed(self, claim: Claim) -> Claim:
        """Seed the first occurrence after a claim, unless the queue is paused: what is missed then is skipped.

        Returns the claim with the time until the next claim. If it raises redis.RedisError, none of the claimed
        tasks may run.
        """
        now_ms = claim.now_ms
        if self._age is None:
            self._age = now_ms
        if claim.paused:
            return claim
        upcoming, lost = self._schedule.after(now_ms), self._expected
        if lost and (lost.due_at_ms > now_ms or lost.id in {task.id for task in claim.tasks}):
            lost = None
        seeded = self._queue.seed(str(self._schedule), self._age, upcoming, lost)
        if self._expected and self._expected.id in seeded.ids:
            self._emit(events.Restored(self._queue.name, 1))
        self._expected = upcoming if seeded.in_force else None
        next_at_ms = lost.due_at_ms if lost and lost.id in seeded.ids else upcoming.due_at_ms
        next_in_ms = float("inf") if claim.next_in_ms is None else claim.next_in_ms
        return claim._replace(next_in_ms=max(0.0, min(next_in_ms, next_at_ms - now_ms)))
