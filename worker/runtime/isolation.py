"""Runs a batch through a flow's handler, isolates the tasks that make it fail, and sorts all by what became of them."""

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..backoff import LOOK_AGAIN
from ..errors import Unavailable, described, fatal
from ..flow import MAX_DELAY_MS, DeadLetter, Failed, Flow, NoOp, Outcome, Reschedule, Retry, Task
from ..queue.environment import REAL, Clock

#: How long to look for the tasks whose rows are locked: each call that meets one lasts as long as a lock timeout.
ISOLATION_SECONDS = 5.0
#: How many tasks that failed a flow remembers.
MAX_REMEMBERED = 10_000
#: How many failing tasks one trial costs, at most, while an outage lasts that only tasks can tell.
MOST_PATIENCE = 64


class LookAgain(Retry):
    """Not now, because something that this task alone needs is unavailable. Nothing is counted or reset."""

    def __init__(self, task: Task, error: Unavailable) -> None:
        super().__init__(1000 * LOOK_AGAIN(task.attempt))
        self.__cause__ = error


@dataclass(slots=True)
class BatchResult:
    """The tasks of a batch, sorted by what became of them."""

    done: list[Task] = field(default_factory=list)
    #: The ids of those that are done because there was nothing to do.
    no_ops: set[str] = field(default_factory=set)
    retries: list[tuple[Task, Retry]] = field(default_factory=list)
    #: Done, and due again: a new appointment.
    rescheduled: list[tuple[Task, Reschedule]] = field(default_factory=list)
    dead: list[tuple[Task, DeadLetter]] = field(default_factory=list)
    #: Each with its error, or with a counted `Retry`, whose delay replaces the backoff.
    failed: list[tuple[Task, BaseException]] = field(default_factory=list)
    #: Not handled, or not done because of an outage: to be released uncounted.
    untouched: list[Task] = field(default_factory=list)
    #: Set when something the handler needs is unavailable.
    outage: Unavailable | None = None
    #: What a call raised that is no outcome.
    raised: BaseException | None = None

    def add(self, task: Task, outcome: Outcome | None) -> None:
        match outcome:
            case None:
                self.done.append(task)
            case NoOp():
                self.done.append(task)
                self.no_ops.add(task.id)
            # With what they need: a subclass may have an __init__ of its own.
            case Retry(delay_ms=delay_ms, counted=True) if _is_delay(delay_ms):
                self.failed.append((task, outcome))
            case Retry(delay_ms=delay_ms) if _is_delay(delay_ms):
                self.retries.append((task, outcome))
            case Reschedule(delay_ms=delay_ms) if _is_delay(delay_ms):
                self.rescheduled.append((task, outcome))
            case DeadLetter(reason=str()):
                self.dead.append((task, outcome))
            case Failed(error=BaseException() as error):
                self.failed.append((task, error))
            case _:
                wrong = TypeError(
                    f"the handler returned {reprlib.repr(outcome)}, which is not an outcome"
                )
                # Running it again would repeat its work, with the same return value.
                self.dead.append((task, DeadLetter(wrong)))

    def worked(self) -> list[Task]:
        """The tasks for which the handler has done what it is for."""
        done = [task for task in self.done if task.id not in self.no_ops]
        return [*done, *(task for task, _ in self.rescheduled)]

    def handled(self) -> list[Task]:
        """The tasks that the handler dealt with, whatever the outcome."""
        others = (self.retries, self.rescheduled, self.dead, self.failed)
        return [*self.done, *(task for outcomes in others for task, _ in outcomes)]

    def tasks(self) -> list[Task]:
        """All tasks."""
        return [*self.handled(), *self.untouched]

    @property
    def all_done(self) -> bool:
        return len(self.done) == len(self.tasks())

    def merge(self, more: "BatchResult") -> None:
        """Add the results of another call."""
        self.done += more.done
        self.no_ops |= more.no_ops
        self.retries += more.retries
        self.rescheduled += more.rescheduled
        self.dead += more.dead
        self.failed += more.failed
        self.untouched += more.untouched
        self.outage = more.outage or self.outage
        self.raised = more.raised or self.raised


def _is_delay(ms: object) -> bool:
    return isinstance(ms, int | float) and abs(ms) <= MAX_DELAY_MS  # false for NaN


class Strikes:
    """Tells an error that strikes every task of a flow from one that is a task's own. Any thread may use it.

    If several tasks fail, each alone, and no more are done meanwhile, it is no task's fault: they are put off. At fault
    is a task that is the only one to fail, or that fails although more were done than failed since it failed before, or
    since its batch began; trials of who was put off do not count, nor does a `NoOp`.
    """

    def __init__(self) -> None:
        #: Who failed alone and was not done since. Cleared once more tasks than these were done in a row, which another
        #: failure of one of these does not break.
        self._struck = set[str]()
        self._in_a_row = 0
        #: How many were done, minus how many failed; and what it was when each task last failed, as far as that counted.
        self.surplus = 0
        self._failed = dict[str, int]()
        #: How many were put off since it last worked, or was last taken for an outage.
        self._put_off = 0
        #: How many to put off until it counts as an outage: more each time, as those that are at fault may be
        #: many, and the others wait behind them.
        self.patience = 1

    def done(self, tasks: Sequence[Task]) -> None:
        """Note that these were done, so the flow seems to work."""
        self.surplus += len(tasks)
        self._in_a_row += len(tasks)
        if self._failed or self._struck:
            for task in tasks:
                self._failed.pop(task.id, None)
                self._struck.discard(task.id)
        if self._in_a_row > len(self._struck):
            self._struck.clear()
            self._put_off, self.patience = 0, 1

    def is_at_fault(self, failed: BatchResult, began: int) -> bool:
        """Whether a task that failed alone is at fault by what came before; ``began``: the surplus before its batch."""
        [(task, _)] = failed.failed
        if len(self._failed) > MAX_REMEMBERED:
            self._failed.clear()  # who is at fault is found again
        is_at_fault = self.surplus > self._failed.get(task.id, began)
        # Once only, or the trials of two would outnumber the tasks that are done beside them, for ever.
        if not is_at_fault and task.id in self._struck and task.id in self._failed:
            return False
        self._failed[task.id] = self.surplus
        self.surplus -= 1
        if not is_at_fault:
            self._struck.add(task.id)
            self._in_a_row = 0
        return is_at_fault

    @property
    def strike_all(self) -> bool:
        return len(self._struck) > 1

    def put_off(self, struck: BatchResult) -> BatchResult:
        """The results of tasks that were struck: each is looked at again, and at last it is an outage."""
        assert struck.raised is not None
        self._put_off += len(struck.failed)
        is_outage = self._put_off >= self.patience
        results = self.outage(struck.raised) if is_outage else BatchResult()
        for task, own in struck.failed:  # each is kept with its own error
            results.add(task, LookAgain(task, Unavailable(described(own))))
        return results

    def outage(self, error: BaseException) -> BatchResult:
        """The outage that shows in this error."""
        self._put_off, self.patience = 0, min(MOST_PATIENCE, 2 * self.patience)
        outage = Unavailable(f"It fails for every task: {described(error)}")
        outage.__cause__ = error
        return BatchResult(outage=outage)


def handle(
    flow: Flow,
    tasks: Sequence[Task],
    keep_going: Callable[[Sequence[Task]], bool],
    clock: Clock = REAL.clock,
    strikes: Strikes | None = None,
) -> Iterator[BatchResult]:
    """Call ``flow.handler`` with ``tasks``; yield the results of each call as soon as they are known.

    If a call raises, it is repeated with each half of its tasks: one bad task among n costs about 2 log2(n)
    more calls. `Unavailable` does the same for up to `ISOLATION_SECONDS`, unless it is an outage. A handler for
    one task at a time gets each task alone from the start. Before each call, ``keep_going`` is asked with its
    tasks. Once it returns false, or there is an outage, the rest is left untouched.

    ``strikes``, which a flow keeps from batch to batch, may tell that there is an outage although the probe passes.
    """
    works = False
    outage: Unavailable | None = None
    #: What struck those that were put off, and those of which the next call tells whether they were struck.
    struck: BaseException | None = None
    unjudged = BatchResult()
    began = strikes.surplus if strikes else 0

    def goes_on(batch: Sequence[Task]) -> bool:
        return not outage and keep_going(batch)

    for each in _isolated(flow, tasks, goes_on, clock):
        results, worked = each, each.worked()
        if strikes and worked:
            strikes.done(worked)
            results.merge(unjudged)
            unjudged = BatchResult()
        elif strikes and results.raised and not strikes.is_at_fault(results, began):
            unjudged.merge(results)
            if not (strikes.strike_all or flow.one_at_a_time):
                continue  # the next call tells
            results = unjudged
            if strikes.strike_all:
                results, struck = strikes.put_off(unjudged), unjudged.raised
            unjudged = BatchResult()
        works, outage = works or bool(worked), outage or results.outage
        yield results
    if unjudged.failed:
        yield BatchResult(untouched=unjudged.tasks()) if outage else unjudged
    elif strikes and struck and not (works or outage or flow.one_at_a_time):
        yield strikes.outage(struck)


def _isolated(
    flow: Flow, tasks: Sequence[Task], keep_going: Callable[[Sequence[Task]], bool], clock: Clock
) -> Iterator[BatchResult]:
    """The results of each call, and of what was left untouched."""
    batches = _first_batches(flow, tasks)
    isolate_until = clock() + ISOLATION_SECONDS
    outage = None
    while batches and outage is None and keep_going(batches[-1]):
        batch = batches.pop()
        alone = len(batch) == 1
        try:
            results = results_of(flow, batch, flow.handler(batch))
        except fatal():
            raise
        except BaseException as error:  # noqa: BLE001  a handler may raise anything
            unavailable = isinstance(error, Unavailable)
            if alone or unavailable:
                results = results_of_error(flow, batch, error)
            late = unavailable and (results.outage or clock() > isolate_until)
            if not (alone or late):
                middle = len(batch) // 2
                batches += [batch[middle:], batch[:middle]]
                continue
        outage = results.outage
        yield results
    if batches:
        yield BatchResult(untouched=[task for batch in reversed(batches) for task in batch])


def _first_batches(flow: Flow, tasks: Sequence[Task]) -> list[Sequence[Task]]:
    """What to call the handler with, the first last. Tasks that did not succeed before follow the others."""
    new = [task for task in tasks if task.attempt == 1]
    tried = [task for task in tasks if task.attempt > 1]
    if flow.one_at_a_time:
        return [(task,) for task in reversed([*new, *tried])]
    return [tuple(batch) for batch in (tried, new) if batch]


def results_of(
    flow: Flow, batch: Sequence[Task], returned: Mapping[str, Outcome] | None
) -> BatchResult:
    """What became of the tasks by what the handler returned; a task that is not named is done.

    If that is no mapping, they become dead letters, and if it names other tasks, the whole batch has failed. It is
    not run again in halves, because the handler may have done its work.
    """
    if returned is None or (isinstance(returned, Mapping) and not returned):
        return BatchResult(done=[*batch])
    if not isinstance(returned, Mapping):
        wrong = TypeError(f"the handler returned a {type(returned).__name__}, not a mapping")
        return BatchResult(dead=[(task, DeadLetter(wrong)) for task in batch])
    named = [task for task in batch if task.id in returned]
    if len(named) < len(returned):
        unknown = reprlib.repr((returned.keys() - {task.id for task in named}).pop())
        wrong = TypeError(f"the handler named {unknown}, which is not a task id")
        return BatchResult(failed=[(task, wrong) for task in batch])
    results = BatchResult(done=[task for task in batch if task.id not in returned])
    refused: dict[Task, Unavailable] = {}
    for task in named:
        match returned[task.id]:
            case Failed(error=Unavailable() as error):
                refused[task] = error
            case outcome:
                results.add(task, outcome)
    if refused:
        results.merge(results_of_error(flow, [*refused], next(iter(refused.values()))))
    return results


def results_of_error(flow: Flow, tasks: Sequence[Task], error: BaseException) -> BatchResult:
    """What becomes of tasks whose call raised ``error``. Asks the probe unless that is an outcome."""
    match error:
        case Failed(error=Unavailable() as unavailable):
            error = unavailable
    results = BatchResult()
    if not isinstance(error, Outcome):
        results.outage = _outage_behind(flow, error)
    # Without a probe, an outage is not told from the trouble of one task. If that were released, it would be
    # claimed first for ever.
    if results.outage and (flow.probe is not None or len(tasks) > 1):
        results.untouched += tasks
        return results
    for task in tasks:
        match error:
            case Unavailable():
                results.add(task, LookAgain(task, error))
            case Retry() | Reschedule() | NoOp() | DeadLetter() | Failed():
                results.add(task, error)
            case _:
                results.add(task, Failed(error))
                results.raised = error
    return results


def _outage_behind(flow: Flow, error: BaseException) -> Unavailable | None:
    """The outage that made a handler raise ``error``: there is one if the probe fails.

    Without a probe, there is one if the error says so.
    """
    outage = error if isinstance(error, Unavailable) else None
    if flow.probe is None:
        return outage
    try:
        flow.probe()
    except fatal():
        raise
    except BaseException as down:  # noqa: BLE001  any error means that it is down
        if outage is None:
            outage = Unavailable(str(down))
            outage.__cause__ = error
        return outage
    return None
