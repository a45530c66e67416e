"""Runs a batch through a flow's handler, and isolates the tasks that make it fail."""

import reprlib
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import FAILURES, Unavailable
from ..flow import DeadLetter, Failed, Flow, Outcome, Reschedule, Retry, Task


@dataclass(slots=True)
class BatchResult:
    """The tasks of a batch, sorted by what became of them."""

    done: list[Task] = field(default_factory=list)
    retries: list[tuple[Task, Retry]] = field(default_factory=list)
    #: Done, and due again: a new appointment.
    rescheduled: list[tuple[Task, Reschedule]] = field(default_factory=list)
    dead: list[tuple[Task, DeadLetter]] = field(default_factory=list)
    #: Each with its error, or with a counted `Retry`, whose delay replaces the backoff.
    failed: list[tuple[Task, Exception]] = field(default_factory=list)
    #: Not handled, or not done because of an outage: to be released uncounted.
    untouched: list[Task] = field(default_factory=list)
    #: Set when something the handler needs is unavailable.
    outage: Unavailable | None = None

    def add(self, task: Task, outcome: Outcome | None) -> None:
        match outcome:
            case None:
                self.done.append(task)
            case Retry(counted=True):
                self.failed.append((task, outcome))
            case Retry():
                self.retries.append((task, outcome))
            case Reschedule():
                self.rescheduled.append((task, outcome))
            case DeadLetter():
                self.dead.append((task, outcome))
            case Failed(error=Unavailable() as outage):
                self.outage = outage
                self.untouched.append(task)
            case Failed(error=error):
                self.failed.append((task, error))
            case _:
                wrong = TypeError(
                    f"the handler returned {reprlib.repr(outcome)}, which is not an outcome"
                )
                self.failed.append((task, wrong))

    def handled(self) -> Iterator[Task]:
        """The tasks that the handler dealt with, whatever the outcome."""
        yield from self.done
        for outcomes in (self.retries, self.rescheduled, self.dead, self.failed):
            yield from (task for task, _ in outcomes)

    def tasks(self) -> Iterator[Task]:
        """All tasks."""
        yield from self.handled()
        yield from self.untouched

    def merge(self, more: "BatchResult") -> None:
        """Add the results of another call."""
        self.done += more.done
        self.retries += more.retries
        self.rescheduled += more.rescheduled
        self.dead += more.dead
        self.failed += more.failed
        self.untouched += more.untouched
        self.outage = more.outage or self.outage


def handle(
    flow: Flow, tasks: Sequence[Task], keep_going: Callable[[Sequence[Task]], bool]
) -> Iterator[BatchResult]:
    """Call ``flow.handler`` with ``tasks``; yield the results of each call as soon as it returns.

    If a call raises, it is repeated with each half of its tasks: one bad task among n costs about 2 log2(n)
    more calls. A handler for one task at a time gets each task alone from the start. Before each call,
    ``keep_going`` is asked with its tasks. Once it returns false, or there is an outage, the rest is left
    untouched.
    """
    batches = [(task,) for task in reversed(tasks)] if flow.one_at_a_time else [tuple(tasks)]
    outage = None
    while batches and outage is None and keep_going(batches[-1]):
        batch = batches.pop()
        try:
            outcomes = outcomes_of(_call(flow, batch), batch)
        except Exception as error:  # noqa: BLE001  a handler may raise anything
            if len(batch) > 1 and not isinstance(error, Unavailable):
                middle = len(batch) // 2
                batches += [batch[middle:], batch[:middle]]
                continue
            outcomes = [outcome_of(flow, error)] * len(batch)
        results = BatchResult()
        for task, outcome in zip(batch, outcomes, strict=True):
            results.add(task, outcome)
        outage = results.outage
        yield results
    if batches:
        yield BatchResult(untouched=[task for batch in reversed(batches) for task in batch])


def _call(flow: Flow, batch: Sequence[Task]) -> Mapping[str, Outcome]:
    """Call the handler. Raises what it raises."""
    try:
        return flow.handler(batch) or {}
    except CancelledError as cancelled:  # see FAILURES: not an Exception, but a failure here
        raise RuntimeError("the handler was cancelled") from cancelled


def outcomes_of(returned: Mapping[str, Outcome], batch: Sequence[Task]) -> list[Outcome | None]:
    """The outcome of each task by what the handler returned; None for a task that is done.

    Unless that is a mapping from ids of this batch, the whole batch has failed. It is not run again in
    halves, because the handler may have done its work.
    """
    if not isinstance(returned, Mapping):
        wrong = TypeError(f"the handler returned a {type(returned).__name__}, not a mapping")
        return [Failed(wrong)] * len(batch)
    unknown = returned.keys() - {task.id for task in batch}
    if unknown:
        named = reprlib.repr(unknown.pop())
        wrong = TypeError(f"the handler named {named}, which is not a task id")
        return [Failed(wrong)] * len(batch)
    return [returned.get(task.id) for task in batch]


def outcome_of(flow: Flow, error: Exception) -> Outcome:
    """The outcome of a task that raised ``error``: an outage if the probe fails, else a failure of the task."""
    if isinstance(error, Retry | Reschedule | DeadLetter | Failed):
        return error
    if not isinstance(error, Unavailable) and flow.probe is not None:
        try:
            flow.probe()
        except FAILURES as down:  # any error means that it is down
            outage = Unavailable(str(down))
            outage.__cause__ = error
            return Failed(outage)
    return Failed(error)
