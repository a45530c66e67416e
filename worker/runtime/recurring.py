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

RecurringOutcome = Retry | DeadLetter | Failed


class RecurringSettings(CommonSettings, total=False):
    """The settings of a `Flow` that a `Recurring` takes as well."""

    probe: Probe | None
    pauses: Pauses | None
    threads: int | None
    pool: str | None


class Recurring(Flow):
    """A flow that runs on a cron schedule, once for each time, on any number of workers::

        def make_report(task: Task) -> None: ...

        Recurring("report", cron="0 2 * * *", timezone="Europe/Berlin", handler=make_report)

    Each run is a task of its own. Its id is the local time, such as ``2026-11-22T02:00:00+01:00``, and
    ``task.due_at_ms`` is the same moment. It is due by the Redis server's clock. The handler gets one task. It
    may return or raise any outcome except `Reschedule`, which makes a dead letter: the schedule says when the
    next run is.

    **Clock changes.** `Cron` says which times occur.

    **Failures.** A run that fails is tried again after the ``backoff``, and finally becomes a dead letter, like
    any task. The next run does not wait for that, nor for a run that takes longer than the interval: if a
    thread is free, both run at once.

    **Missed times.** If no worker could start a run at its time (all were down or busy, or the queue was
    paused), the earliest missed run takes place once, late. The others are skipped.

    **When Redis loses everything**, running workers schedule the next run again within a minute, and always
    before its time. A run that was due but had not begun (Redis was down) takes place late if a running worker
    knew of it. One that had begun is repeated only if the first worker to look at the queue after the loss has
    not looked since the run was due. Workers look within milliseconds, unless they are busy or frozen.

    **When Redis's clock is set back**, none of the last hundred runs takes place twice.

    **A new schedule** takes effect when the first worker that has it starts. The next run of the old schedule
    is removed, unless it is already overdue. Workers that started earlier, with the old schedule, change
    nothing until all workers with the new one have been gone or busy for three minutes. With a ``version``, which
    you raise with each change of the schedule, neither do workers with an older version that start later: a pod
    of the old release that restarts during an upgrade. To end a recurring task, remove it from the code and
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
    #: A claim later than this renews the schedule. Three minutes after the last renewal, workers with another
    #: schedule may replace it.
    EXTEND_MS = 45_000
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
        #: The server's time at the claim after which it was seeded.
        self._seeded_at_ms = 0

    def seed(self, claim: Claim) -> Claim:
        """Seed the first occurrence after a claim, unless it was seeded a moment ago and nothing has changed.

        Returns the claim with the time until the next claim. If it raises redis.RedisError, none of the claimed
        tasks may run.
        """
        now_ms = claim.now_ms
        if self._age is None:
            self._age = now_ms
        if claim.paused or self._is_next(claim):  # what is missed during a pause is skipped
            return claim
        upcoming, lost = self._schedule.after(now_ms), self._expected
        if lost and (lost.due_at_ms > now_ms or lost.id in {task.id for task in claim.tasks}):
            lost = None
        seeded = self._queue.seed(str(self._schedule), self._age, upcoming, lost)
        if self._expected and self._expected.id in seeded.ids:
            self._emit(events.Restored(self._queue.name, 1))
        self._expected = upcoming if seeded.in_force else None
        self._seeded_at_ms = now_ms
        next_at_ms = lost.due_at_ms if lost and lost.id in seeded.ids else upcoming.due_at_ms
        next_in_ms = float("inf") if claim.next_in_ms is None else claim.next_in_ms
        return claim._replace(next_in_ms=max(0.0, min(next_in_ms, next_at_ms - now_ms)))

    def _is_next(self, claim: Claim) -> bool:
        """Whether nothing was claimed, and the expected occurrence is next."""
        if self._expected is None or claim.next_in_ms is None:
            return False
        # If the clock was set back, an earlier occurrence may be next.
        if not 0 <= claim.now_ms - self._seeded_at_ms < self.EXTEND_MS:
            return False
        # A wait is exact to the microsecond, and the server's time is rounded down to milliseconds.
        return 0 <= self._expected.due_at_ms - claim.now_ms - claim.next_in_ms < 1
