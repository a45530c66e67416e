"""Runs a batch through a flow's handler so that a task at fault is at fault alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import Unavailable
from .flow import DeadLetter, Failed, Flow, Outcome, Reschedule, Retry, Task


@dataclass(slots=True)
class Results:
    """What became of each task of a batch."""

    done: list[Task] = field(default_factory=list)
    retries: list[tuple[Task, Retry]] = field(default_factory=list)
    #: Done, with a new appointment.
    rescheduled: list[tuple[Task, Reschedule]] = field(default_factory=list)
    dead: list[tuple[Task, DeadLetter]] = field(default_factory=list)
    #: A `Retry` that is counted says itself when to try again.
    failed: list[tuple[Task, Exception]] = field(default_factory=list)
    #: Nobody's fault, or not tried: to be given back uncounted.
    untouched: list[Task] = field(default_factory=list)
    #: Why the flow cannot go on for now.
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
                wrong = TypeError(f"the handler said {outcome!r}, which is no outcome")
                self.failed.append((task, wrong))

    def handled(self) -> Iterator[Task]:
        """Those that the handler was called with, whatever it said of them."""
        yield from self.done
        for told in (self.retries, self.rescheduled, self.dead, self.failed):
            yield from (task for task, _ in told)

    def tasks(self) -> Iterator[Task]:
        """All of them."""
        yield from self.handled()
        yield from self.untouched

    def merge(self, more: "Results") -> None:
        """Add what became of others."""
        self.done += more.done
        self.retries += more.retries
        self.rescheduled += more.rescheduled
        self.dead += more.dead
        self.failed += more.failed
        self.untouched += more.untouched
        self.outage = more.outage or self.outage


def handle(
    flow: Flow, tasks: Sequence[Task], keep_going: Callable[[Sequence[Task]], bool]
) -> Iterator[Results]:
    """Run ``tasks`` through ``flow.handler``; yield what became of them as soon as it is known.

    A batch that raises is run again in halves: one bad task in n costs about 2 log2(n) calls more.
    A handler for one task at a time gets each alone from the start. Nothing new is begun once
    ``keep_going``, asked before each call with its batch, is false or a dependency is down.
    """
    batches = [(task,) for task in reversed(tasks)] if flow.one_at_a_time else [tuple(tasks)]
    outage = None
    while batches and outage is None and keep_going(batches[-1]):
        batch = batches.pop()
        try:
            said = said_of(flow.handler(batch) or {}, batch)
        except Exception as error:  # noqa: BLE001  a handler may raise anything
            if len(batch) > 1 and not isinstance(error, Unavailable):
                middle = len(batch) // 2
                batches += [batch[middle:], batch[:middle]]
                continue
            said = [outcome_of(flow, error)] * len(batch)
        results = Results()
        for task, outcome in zip(batch, said, strict=True):
            results.add(task, outcome)
        outage = results.outage
        yield results
    if batches:
        yield Results(untouched=[task for batch in reversed(batches) for task in batch])


def said_of(outcomes: Mapping[str, Outcome], batch: Sequence[Task]) -> list[Outcome | None]:
    """The handler's outcome for each task. If any key is not an id, the whole batch has failed.

    It is not run again in halves: the handler may have done its work.
    """
    strangers = outcomes.keys() - {task.id for task in batch}
    if strangers:
        wrong = TypeError(f"the handler named {strangers.pop()!r}, which is not a task id")
        return [Failed(wrong)] * len(batch)
    return [outcomes.get(task.id) for task in batch]


def outcome_of(flow: Flow, error: Exception) -> Outcome:
    """What an exception says of a task. It is the task's own fault only while the probe passes."""
    if isinstance(error, Retry | Reschedule | DeadLetter | Failed):
        return error
    if not isinstance(error, Unavailable) and flow.probe is not None:
        try:
            flow.probe()
        except Exception as down:  # noqa: BLE001  a probe that fails in any way says no
            outage = Unavailable(str(down))
            outage.__cause__ = error
            return Failed(outage)
    return Failed(error)
