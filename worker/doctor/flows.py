"""Checks of a flow: its settings, its probe, and its records compared with Redis."""

import reprlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain

from ..errors import Unavailable, described
from ..findings import Finding, failure, ok, quantity, warning
from ..flow import Due, Flow, Sweep
from ..queue.delay_queue import DelayQueue
from ..queue.formats import checked_due
from ..queue.replies import Place
from .queues import pause_finding, queue_findings

#: A task that is overdue by less is probably being handled.
LATE_SECONDS = 5.0
#: How many overdue records, and how many that are due soon, are checked.
SAMPLE = 500
#: A new task may still be on its way to Redis.
SETTLE_SECONDS = 1.0


def application_findings(flow: Flow, known: list[Finding]) -> Iterator[Finding]:
    """What the application's own checks find, which is put into ``known``. Raises whatever they raise."""
    for finding in flow.checks() if flow.checks is not None else ():
        known.append(finding)
        yield finding


def flow_findings(
    flow: Flow, queue: DelayQueue | None, known: Sequence[Finding] = ()
) -> Iterator[Finding]:
    """Everything about a flow and its queue except its own checks. ``queue`` is None if Redis does not answer.

    If its probe fails, the rest follows from that. Even the failure is left out if one of the ``known`` findings
    says the same.
    """
    yield _settings(flow)
    if flow.probe is not None:
        try:
            flow.probe()
        except BaseException as error:  # noqa: BLE001  the application's code may raise anything
            reason = described(error).removeprefix(described(Unavailable())).strip()
            if not any(reason in f"{each.summary} {each.advice}" for each in known):
                advice = "Workers claim nothing while the probe fails. Fix what it reports."
                yield failure("flow.probe", f"{flow.name}: {reason}", advice)
            return
        yield ok("flow.probe", f"{flow.name}: the probe succeeds")
    if queue is not None:
        yield from queue_findings(queue, flow)
    elif flow.pauses is not None:
        yield pause_finding(flow.name, flow.pauses.find())
    if flow.sweep is not None:
        yield from _records(flow, flow.sweep, queue)


def _settings(flow: Flow) -> Finding:
    contradictions = []
    if flow.sweep is not None and flow.sweep_seconds > flow.lookahead_seconds:
        contradictions.append(
            f"sweep_seconds ({flow.sweep_seconds:g}) is more than lookahead_seconds "
            f"({flow.lookahead_seconds:g}): tasks that Redis lost are found late"
        )
    if flow.max_runtime_seconds < flow.lease_seconds:
        contradictions.append(
            f"max_runtime_seconds ({flow.max_runtime_seconds:g}) is less than lease_seconds "
            f"({flow.lease_seconds:g}): a hung handler keeps its tasks for the whole lease"
        )
    if contradictions:
        summary = f"{flow.name}: {'; '.join(contradictions)}"
        return warning("flow.settings", summary, "Change one of the two.")
    return ok("flow.settings", f"{flow.name}: no contradictions")


def _records(flow: Flow, sweep: Sweep, queue: DelayQueue | None) -> Iterator[Finding]:
    """The records compared with the queue."""
    wrong: dict[str, str] = {}

    def sample(after_seconds: float | None, before_seconds: float) -> list[Due]:
        """The first records within these bounds."""
        found: list[Due] = []
        for row in chain.from_iterable(sweep(after_seconds, before_seconds)):
            try:
                found.append(checked_due(row))
            except Exception as error:  # noqa: BLE001  a row may be anything
                wrong[reprlib.repr(row)] = str(error)
            if len(found) + len(wrong) >= SAMPLE:
                break
        return found

    yield _overdue(flow.name, sample(None, -LATE_SECONDS), queue)
    if queue is not None:
        yield _lost_tasks(flow, partial(sample, 0.0, 2 * flow.lookahead_seconds), queue)
    for row, why in [*wrong.items()][:1]:
        advice = "Correct them: no sweep restores what cannot be scheduled."
        count = quantity(len(wrong), "record")
        yield warning("flow.rows", f"{flow.name}: {count} skipped, such as {row}: {why}", advice)


def _overdue(name: str, sample: Sequence[Due], queue: DelayQueue | None) -> Finding:
    """Whether nobody attends to what is overdue: no worker holds it, it is not put off, and not dead."""
    late = {due.id: due.delay_ms for due in sample if due.delay_ms <= 0}
    found = queue.look_up_many(sorted(late, key=lambda each: late[each])) if queue else {}
    later = {each: state for each, state in found.items() if state.in_ms and state.in_ms > 0}
    dead = {each for each, state in found.items() if state.place is Place.DEAD}
    waiting = late.keys() - dead - later.keys()
    put_off = [each for each in later if later[each].place is Place.SCHEDULED]
    failing = [each for each in put_off if later[each].error]
    such = next(iter([*failing, *put_off]), "")
    said = f"{len(put_off)} put off, such as {such}: {later[such]}" if such else ""
    if waiting:
        oldest = -min(late[each] for each in waiting) / 1000
        many = f"{len(waiting)}{' or more' if len(late) >= SAMPLE else ''}"
        advice = "Check that it is not paused, and a worker running and up. If so, see its log and `dead list`."
        summary = f"{name}: {many} overdue, the oldest by {oldest:,.0f} s"
        return failure("flow.overdue", f"{summary}; {said}".removesuffix("; "), advice)
    if failing:
        advice = "Workers try again by themselves. Mend what it says, or see their log."
        return warning("flow.overdue", f"{name}: {said}", advice)
    summary = said or f"nothing is overdue by more than {LATE_SECONDS:g} s"
    return ok("flow.overdue", f"{name}: {summary}")


def _lost_tasks(flow: Flow, sample: Callable[[], list[Due]], queue: DelayQueue) -> Finding:
    """Whether Redis has the tasks that are due next by the records, as far ahead as the sweep looks."""
    page = {due.id for due in sample()}
    soon = f"{quantity(len(page), 'task')} due within {2 * flow.lookahead_seconds:g} s"
    lost = page - queue.look_up_many(page).keys()
    if lost:  # some may be done by now, or may only just have been created
        time.sleep(SETTLE_SECONDS)
        again = lost & {due.id for due in sample()}
        lost = again - queue.look_up_many(again).keys()
    if not lost:
        return ok("flow.tasks", f"{flow.name}: Redis has lost none of {soon}")
    return warning(
        "flow.tasks",
        f"{flow.name}: Redis has lost {len(lost)} of {soon}",
        f"A running worker restores them within {flow.lookahead_seconds:g} s.",
    )
