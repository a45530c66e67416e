"""Runs a batch through a flow's handler, and isolates the tasks that make it fail."""

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import FATAL, Unavailable
from ..flow import DeadLetter, Failed, Flow, Outcome, Reschedule, Retry, Task
from ..queue.environment import REAL, Clock
from .results import BatchResult, LookAgain

#: How long to look for the tasks whose rows are locked: each call that meets one lasts as long as a lock timeout.
ISOLATION_SECONDS = 5.0


def handle(
    flow: Flow,
    tasks: Sequence[Task],
    keep_going: Callable[[Sequence[Task]], bool],
    clock: Clock = REAL.clock,
) -> Iterator[BatchResult]:
    """Call ``flow.handler`` with ``tasks``; yield the results of each call as soon as it returns.

    If a call raises, it is repeated with each half of its tasks: one bad task among n costs about 2 log2(n)
    more calls. `Unavailable` does the same for up to `ISOLATION_SECONDS`, unless it is an outage. A handler for
    one task at a time gets each task alone from the start. Before each call, ``keep_going`` is asked with its
    tasks. Once it returns false, or there is an outage, the rest is left untouched.
    """
    batches = _first_batches(flow, tasks)
    isolate_until = clock() + ISOLATION_SECONDS
    outage = None
    while batches and outage is None and keep_going(batches[-1]):
        batch = batches.pop()
        alone = len(batch) == 1
        try:
            results = results_of(flow, batch, flow.handler(batch))
        except FATAL:
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
    results = BatchResult()
    refused: dict[Task, Unavailable] = {}
    for task, outcome in zip(batch, _outcomes(returned, batch), strict=True):
        match outcome:
            case Failed(error=Unavailable() as error):
                refused[task] = error
            case _:
                results.add(task, outcome)
    if refused:
        results.merge(results_of_error(flow, [*refused], next(iter(refused.values()))))
    return results


def _outcomes(returned: Mapping[str, Outcome], batch: Sequence[Task]) -> list[Outcome | None]:
    if not isinstance(returned, Mapping):
        wrong = TypeError(f"the handler returned a {type(returned).__name__}, not a mapping")
        return [DeadLetter(wrong)] * len(batch)
    unknown = returned.keys() - {task.id for task in batch}
    if unknown:
        named = reprlib.repr(unknown.pop())
        wrong = TypeError(f"the handler named {named}, which is not a task id")
        return [Failed(wrong)] * len(batch)
    return [returned.get(task.id) for task in batch]


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
            case Retry() | Reschedule() | DeadLetter() | Failed():
                results.add(task, error)
            case _:
                results.add(task, Failed(error))
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
    except FATAL:
        raise
    except BaseException as down:  # noqa: BLE001  any error means that it is down
        if outage is None:
            outage = Unavailable(str(down))
            outage.__cause__ = error
        return outage
    return None
