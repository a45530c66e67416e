"""A batch that fails is run again in halves until the tasks at fault stand alone."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from math import inf, log2, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.engine import Clock
from worker import (
    DeadLetter,
    Failed,
    Flow,
    NoOp,
    Outcome,
    Reschedule,
    Retry,
    Task,
    Unavailable,
    one_at_a_time,
)
from worker.queue.environment import REAL
from worker.runtime.isolation import ISOLATION_SECONDS, BatchResult, LookAgain, Strikes, handle


def _run(
    handler: Callable[[Sequence[Task]], Any],
    tasks: Sequence[Task],
    *,
    probe: Callable[[], None] | None = None,
    keep_going: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = REAL.clock,
    strikes: Strikes | None = None,
) -> BatchResult:
    results = BatchResult()
    flow = Flow(name="a", handler=handler, probe=probe)
    for part in handle(flow, tasks, lambda _: keep_going(), clock, strikes):
        results.merge(part)
    return results


def _ids(tasks: Sequence[Task]) -> set[str]:
    return {task.id for task in tasks}


def _tasks(count: int) -> list[Task]:
    return [Task(str(n)) for n in range(count)]


class Poisoned:
    """A handler that raises when any of these is in its batch, and has nothing to do for who is "idle…"."""

    def __init__(self, *poison: str, error: Exception | None = None) -> None:
        self.poison = set(poison)
        self.error = error or ValueError("poison")
        self.calls = 0
        self.done: set[str] = set()

    def __call__(self, tasks: Sequence[Task]) -> Mapping[str, Outcome]:
        self.calls += 1
        if self.poison & _ids(tasks):
            raise self.error
        assert not self.done & _ids(tasks), "done twice"
        self.done |= _ids(tasks)
        return {task.id: NoOp() for task in tasks if task.id.startswith("idle")}


@pytest.mark.parametrize("poison", ["0", "333", "999"])
def test_one_poison_task_is_found_in_a_logarithm_of_calls(poison: str) -> None:
    handler = Poisoned(poison)
    results = _run(handler, _tasks(1000))
    assert [task.id for task, _ in results.failed] == [poison]
    assert _ids(results.done) == _ids(_tasks(1000)) - {poison}
    assert handler.calls <= 2 * log2(1000) + 2


@given(count=st.integers(1, 60), poison=st.sets(st.integers(0, 59)))
def test_only_the_poison_tasks_fail_and_others_are_done_once(count: int, poison: set[int]) -> None:
    handler = Poisoned(*map(str, poison))
    results = _run(handler, _tasks(count))
    bad = handler.poison & _ids(_tasks(count))
    assert _ids([task for task, _ in results.failed]) == bad
    assert _ids(results.done) == handler.done == _ids(_tasks(count)) - bad
    assert not results.untouched


#: Each with the list of the results that it belongs in, and what it is kept as there.
OUTCOMES: list[tuple[Outcome, str]] = [
    (Retry(5), "retries"),
    (Retry(5, counted=True), "failed"),
    (Reschedule(5), "rescheduled"),
    (DeadLetter("bad"), "dead"),
    (Failed(ValueError("x")), "failed"),
]


def _kept_as(outcome: Outcome) -> BaseException:
    return outcome.error if isinstance(outcome, Failed) else outcome


@pytest.mark.parametrize(("outcome", "place"), OUTCOMES)
def test_each_outcome_is_sorted_to_its_list(outcome: Outcome, place: str) -> None:
    a, b, c = _tasks(3)
    results = _run(lambda _: {"1": outcome}, [a, b, c])
    expected = BatchResult(done=[a, c])
    getattr(expected, place).append((b, _kept_as(outcome)))
    assert results == expected
    assert [*results.tasks()] == [*results.handled()]
    assert {*results.tasks()} == {a, b, c}


@pytest.mark.parametrize(("outcome", "place"), OUTCOMES)
def test_an_outcome_raised_for_a_batch_of_one_is_that_tasks_own(
    outcome: Outcome, place: str
) -> None:
    def handler(tasks: Sequence[Task]) -> None:
        if "3" in _ids(tasks):
            raise outcome

    results = _run(handler, _tasks(8))
    assert _ids(results.done) == _ids(_tasks(8)) - {"3"}
    assert getattr(results, place) == [(Task("3"), _kept_as(outcome))]


def test_what_a_task_was_left_for_is_no_part_of_what_was_handled() -> None:
    results = BatchResult(done=[Task("a")], untouched=[Task("b")])
    assert [*results.handled()] == [Task("a")]
    assert [*results.tasks()] == [Task("a"), Task("b")]


def _pass() -> None:
    """A probe of what answers."""


def _fail() -> None:
    raise Unavailable("down")


@pytest.mark.parametrize("named", ["raised", "returned"])
@pytest.mark.parametrize(
    ("probe", "outage", "again"),
    [(_pass, False, True), (_fail, True, False), (None, True, True)],
    ids=["probe passes", "probe fails", "no probe"],
)
def test_unavailable_is_an_outage_if_the_probe_says_so(
    probe: Callable[[], None] | None, *, outage: bool, again: bool, named: str
) -> None:
    down = Unavailable("no answer")

    def handler(_: Sequence[Task]) -> dict[str, Outcome]:
        if named == "raised":
            raise down
        return {"0": Failed(down)}

    results = _run(handler, _tasks(1), probe=probe)
    assert results.outage is (down if outage else None)
    assert [task.id for task, _ in results.retries] == ["0"] * again
    assert results.untouched == _tasks(1) * (not again)
    assert [type(retry) for _, retry in results.retries] == [LookAgain] * again


def test_a_locked_row_does_not_keep_others_from_being_done() -> None:
    handler = Poisoned("7", error=Unavailable("lock timeout"))
    results = _run(handler, _tasks(21), probe=_pass)
    assert _ids(results.done) == _ids(_tasks(21)) - {"7"}
    assert [task.id for task, _ in results.retries] == ["7"]
    assert (results.outage, results.failed, results.untouched) == (None, [], [])
    assert handler.calls <= 2 * log2(21) + 2


def test_locked_rows_are_isolated_for_a_limited_time() -> None:
    clock = Clock()
    calls: list[int] = []

    def handler(tasks: Sequence[Task]) -> None:
        calls.append(len(tasks))
        clock.move(ISOLATION_SECONDS / 2 + 0.1)
        raise Unavailable("lock timeout")

    results = _run(handler, _tasks(16), probe=_pass, clock=clock)
    assert calls == [16, 8, 8]
    assert _ids([task for task, _ in results.retries]) == _ids(_tasks(16))


@pytest.mark.parametrize("alone", [False, True])
def test_tasks_that_were_tried_before_follow_the_others(*, alone: bool) -> None:
    calls: list[list[str]] = []

    def handler(tasks: Sequence[Task]) -> None:
        calls.append([task.id for task in tasks])

    tasks = [Task("tried", attempt=2), Task("new"), Task("again", attempt=9), Task("also")]
    _run(one_at_a_time(lambda task: handler([task])) if alone else handler, tasks)
    ordered = [["new", "also"], ["tried", "again"]]
    assert calls == ([[each] for batch in ordered for each in batch] if alone else ordered)


def test_an_outage_in_one_part_is_not_forgotten_with_the_next() -> None:
    down = Unavailable("no answer")
    results = BatchResult(outage=down)
    results.merge(BatchResult(untouched=_tasks(1)))
    assert results == BatchResult(untouched=_tasks(1), outage=down)


def test_an_outage_leaves_the_batch_untouched_after_one_call() -> None:
    calls: list[int] = []
    down = Unavailable("no answer")

    def handler(tasks: Sequence[Task]) -> None:
        calls.append(len(tasks))
        raise down

    assert _run(handler, _tasks(100)) == BatchResult(untouched=_tasks(100), outage=down)
    assert calls == [100]


def test_an_outage_midway_keeps_what_is_done_and_leaves_the_rest() -> None:
    done: set[str] = set()

    def handler(tasks: Sequence[Task]) -> None:
        if len(tasks) == 100:
            raise ValueError("something in this batch")
        if done:
            raise Unavailable("gone meanwhile")
        done.update(_ids(tasks))

    results = _run(handler, _tasks(100))
    assert _ids(results.done) == done == _ids(_tasks(50))
    assert _ids(results.untouched) == _ids(_tasks(100)) - done
    assert results.outage is not None
    assert results.failed == []


def test_an_unknown_error_counts_while_the_probe_passes() -> None:
    probed: list[None] = []
    results = _run(Poisoned("0"), _tasks(1), probe=lambda: probed.append(None))
    assert len(results.failed) == len(probed) == 1


@pytest.mark.parametrize(
    "error", [Unavailable("down"), OSError("down"), KeyError("down"), asyncio.CancelledError()]
)
def test_an_unknown_error_is_an_outage_while_the_probe_fails(
    error: BaseException,
) -> None:
    def probe() -> None:
        raise error

    results = _run(Poisoned("0", "1", "2"), _tasks(3), probe=probe)
    assert results.failed == []
    assert _ids(results.untouched) == _ids(_tasks(3))
    assert isinstance(results.outage, Unavailable)
    assert isinstance(results.outage.__cause__, ValueError)


class Struck:
    """A handler of a flow whose probe passes all the same, and what is known from batch to batch."""

    def __init__(self, *poison: str, alone: bool = False) -> None:
        handler = Poisoned(*poison)
        self.poison = handler.poison
        one = one_at_a_time(lambda task: handler([task]).get(task.id))
        self.handler = one if alone else handler
        self.strikes = Strikes()

    def run(self, *ids: str, attempt: int = 1, **options: Any) -> BatchResult:
        tasks = [Task(task_id, attempt=attempt) for task_id in ids]
        return _run(self.handler, tasks, probe=_pass, strikes=self.strikes, **options)


def _sorted(results: BatchResult) -> tuple[list[str], list[str], list[str], bool]:
    """Those that failed, that are looked at again and that are untouched; and whether it is an outage."""
    failed, again = ([task.id for task, _ in rows] for rows in (results.failed, results.retries))
    return failed, again, [task.id for task in results.untouched], results.outage is not None


def test_what_strikes_every_task_is_an_outage_although_the_probe_passes() -> None:
    flow = Struck(*map(str, range(100)))
    results = flow.run(*map(str, range(100)))
    assert _sorted(results) == ([], ["0", "1"], [str(n) for n in range(2, 100)], True)
    assert "It fails for every task: ValueError: poison" in str(results.outage)
    assert {type(retry) for _, retry in results.retries} == {LookAgain}
    assert results.outage is not None
    assert isinstance(results.outage.__cause__, ValueError)
    assert _sorted(flow.run("50")) == ([], ["50"], [], True), "as long as none is done"
    flow.poison.clear()
    assert _sorted(flow.run("1", "2")) == ([], [], [], False)


@pytest.mark.parametrize("alone", [False, True])
def test_what_strikes_one_task_alone_is_its_failure_each_time(*, alone: bool) -> None:
    flow = Struck("a", alone=alone)
    for attempt in range(1, 20):
        assert _sorted(flow.run("a", attempt=attempt)) == (["a"], [], [], False)


@pytest.mark.parametrize("alone", [False, True])
def test_of_tasks_that_come_one_by_one_only_the_first_may_be_at_fault(*, alone: bool) -> None:
    flow = Struck("a", "b", "c", alone=alone)
    found = [_sorted(flow.run(each)) for each in "abca"]
    assert found[0] == (["a"], [], [], False)
    assert [each[:3] for each in found[1:]] == [([], [each], []) for each in "bca"]
    # One at a time, ever more are tried before it is an outage, as others may wait behind them.
    assert [each[3] for each in found[1:]] == ([True, False, True] if alone else [True] * 3)


@pytest.mark.parametrize("ids", ["axxbxx", "xaxxbx", "xxxxab", "abx"])
def test_tasks_that_fail_while_others_are_done_are_at_fault_for_good(ids: str) -> None:
    flow = Struck("a", "b")
    names = [each if each in "ab" else f"{each}{n}" for n, each in enumerate(ids)]
    flow.run(*names)
    flow.run("more", "than", "failed")
    assert _sorted(flow.run("a", "b", attempt=2)) == (["a", "b"], [], [], False)
    assert _sorted(flow.run("b", attempt=3)) == (["b"], [], [], False)


def test_a_task_that_was_done_since_is_no_longer_at_fault() -> None:
    flow = Struck("a")
    flow.run("a", "x", "y")
    flow.poison.clear()
    flow.run("a")
    flow.poison.update("ab")
    assert _sorted(flow.run("a", "b")) == ([], ["a", "b"], [], True)


def test_an_outage_that_the_probe_finds_is_also_that_of_who_failed_before() -> None:
    answers = iter([None, "down"])

    def probe() -> None:
        if next(answers):
            raise Unavailable

    results = _run(Poisoned("0", "1"), _tasks(2), probe=probe, strikes=Strikes())
    assert _sorted(results) == ([], [], ["1", "0"], True)


def test_who_failed_alone_before_the_stop_has_failed() -> None:
    going = iter([True, True])
    results = Struck("0", "1").run("0", "1", keep_going=lambda: next(going, False))
    assert _sorted(results) == (["0"], [], ["1"], False)


def test_an_outage_is_not_over_because_a_task_was_done_now_and_then() -> None:
    """It may be an outage of most tasks."""
    flow = Struck(*(ids := [str(n) for n in range(90)]))
    for n in range(0, 90, 3):
        failed, again, untouched, is_outage = _sorted(flow.run(*ids[n : n + 3]))
        assert (failed, {*again, *untouched}, is_outage) == ([], {*ids[n : n + 3]}, True)
        assert flow.strikes.strike_all
        flow.run(f"x{n}")
    flow.poison.clear()
    flow.run(*ids)
    assert not flow.strikes.strike_all


@pytest.mark.parametrize("alone", [False, True])
def test_who_has_nothing_to_do_does_not_show_that_others_can_be_done(*, alone: bool) -> None:
    flow, failed = Struck("a", "b", alone=alone), list[str]()
    for n in range(30):
        failed += _sorted(flow.run(f"idle{n}", "a", f"idle{n}x", "b", f"idle{n}y"))[0]
        assert _sorted(flow.run(f"idle{n}z")) == ([], [], [], False)
        assert flow.strikes.strike_all
    assert failed == ["a"] * alone, "the first, when it was the only one"
    flow.poison.clear()
    flow.run("a", "b")
    assert not flow.strikes.strike_all, "whatever comes then"


@pytest.mark.parametrize("alone", [False, True])
def test_two_that_always_fail_become_dead_letters_although_few_others_come(*, alone: bool) -> None:
    flow, failed = Struck("a", "b", alone=alone), list[str]()
    for n in range(30):
        failed += _sorted(flow.run(*(each for each in "ab" if failed.count(each) < 5)))[0]
        flow.run(f"x{n}")
    assert sorted(failed) == [*"aaaaabbbbb"]


def test_however_many_are_at_fault_others_wait_for_few_outages() -> None:
    flow = Struck(*(bad := [str(n) for n in range(100)]))
    waiting, outages, done = [*bad, "good"], 0, list[str]()
    while not done:
        results = flow.run(*waiting[: flow.strikes.patience])
        tried = {task.id for task in results.handled()}
        waiting = [each for each in waiting if each not in tried]
        outages += results.outage is not None
        done = [task.id for task in results.done]
    assert (done, outages) == (["good"], 6)


def test_how_many_failed_tasks_are_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.runtime.isolation.MAX_REMEMBERED", 2)
    flow = Struck(*"abcdef")
    for each in "abcdef":
        flow.run(each, "x")
        assert len(flow.strikes._failed) <= 3


@pytest.mark.parametrize("probe", [_pass, None])
def test_an_outcome_is_believed_of_every_task(probe: Callable[[], None] | None) -> None:
    refused = {str(n): Failed("no such customer") for n in range(3)}
    assert len(_run(lambda _: refused, _tasks(3), probe=probe).failed) == 3
    assert len(_run(Poisoned("0", "1"), _tasks(2)).failed) == 2, "without a probe nothing waits"


def test_an_outcome_said_for_a_task_is_believed_without_a_probe() -> None:
    def probe() -> None:
        raise AssertionError("not asked")

    def handler(_tasks: Sequence[Task]) -> None:
        raise DeadLetter("bad")

    assert len(_run(handler, _tasks(1), probe=probe).dead) == 1


class Unreadable:
    """As a lazy object whose connection is closed."""

    def __repr__(self) -> str:
        raise ValueError("detached")

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


@pytest.mark.parametrize(
    "nonsense", [["0"], "0", 7, True, object(), {"0"}, Unreadable(), False, 0, "", []]
)
def test_a_handler_that_returns_no_mapping_is_not_run_again(nonsense: object) -> None:
    calls: list[Sequence[Task]] = []

    def handler(tasks: Sequence[Task]) -> object:
        calls.append(tasks)
        return nonsense

    results = _run(handler, _tasks(3))
    assert len(calls) == 1
    assert _ids([task for task, _ in results.dead]) == {"0", "1", "2"}
    assert all("not a mapping" in letter.reason for _, letter in results.dead)


def _bare(kind: type[Exception], **parts: Any) -> Any:
    """An outcome of a subclass whose own __init__ leaves out the rest."""
    bare = type("Bare", (kind,), {"__init__": lambda _: None})()
    vars(bare).update(parts)
    return bare


WRONG = ["done", 0, True, ValueError("returned"), Retry, Unreadable()]
BARE = [_bare(kind) for kind in (Retry, Reschedule, DeadLetter, Failed)]
BARE += [_bare(Failed, error=404), _bare(DeadLetter, reason=404)]
BARE += [_bare(Retry, delay_ms=delay_ms) for delay_ms in (None, inf, nan, "5", 10**400)]


@pytest.mark.parametrize(
    ("nonsense", "said"),
    [*product([*WRONG, *BARE], ["of a batch", "alone"]), *product(BARE, ["raised"])],
)
def test_a_wrong_outcome_buries_only_its_own_task(nonsense: Any, said: str) -> None:
    def one(task: Task) -> Any:
        if task.id == "1" and said == "raised":
            raise nonsense
        return nonsense if task.id == "1" else None

    handler = (lambda _: {"1": nonsense}) if said == "of a batch" else one_at_a_time(one)
    results = _run(handler, _tasks(3))
    assert _ids(results.done) == {"0", "2"}
    [(task, letter)] = results.dead
    assert task.id == "1"
    assert isinstance(letter.__cause__, TypeError)


def test_nothing_new_is_begun_once_it_is_time_to_stop() -> None:
    handler = Poisoned("0")
    going = iter([True, True])
    results = _run(handler, _tasks(8), keep_going=lambda: next(going, False))
    assert handler.calls == 2
    assert _ids(results.untouched) == _ids(_tasks(8))
    assert results.failed == []


@pytest.mark.parametrize("key", [Task("1"), b"1", 1, "2", "01"])
def test_a_handler_that_names_anything_but_ids_has_failed(key: Any) -> None:
    calls: list[Sequence[Task]] = []

    def handler(tasks: Sequence[Task]) -> Mapping[Any, Outcome]:
        calls.append(tasks)
        return {key: Retry(1000)}

    results = _run(handler, [Task("0"), Task("1")])
    assert len(calls) == 1
    assert _ids([task for task, _ in results.failed]) == {"0", "1"}
    assert all("is not a task id" in str(error) for _, error in results.failed)


# -- one at a time -------------------------------------------------------------------------


def test_one_at_a_time_a_tasks_outcome_is_known_before_the_next() -> None:
    seen: list[str] = []

    def function(task: Task) -> None:
        seen.append(task.id)

    flow = Flow(name="a", handler=one_at_a_time(function))
    for number, part in enumerate(handle(flow, _tasks(3), lambda _: True), start=1):
        assert len(seen) == number
        assert part == BatchResult(done=[Task(str(number - 1))])


def test_a_handler_cannot_lose_tasks_by_emptying_its_batch() -> None:
    def handler(tasks: Sequence[Task]) -> None:
        assert isinstance(tasks, tuple)

    assert _run(handler, _tasks(3)) == BatchResult(done=_tasks(3))


def test_a_failure_may_be_text_and_its_error_unreadable() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise asyncio.CancelledError

    def handler(tasks: Sequence[Task]) -> Mapping[str, Outcome]:
        return {task.id: Failed(text) for task, text in zip(tasks, texts, strict=True)}

    texts: list[Any] = ["no such customer", 404]
    errors = [error for _, error in _run(handler, _tasks(2)).failed]
    assert [(type(error), str(error)) for error in errors] == [
        (RuntimeError, "no such customer"),
        (RuntimeError, "404"),
    ]
    assert "Unreadable: (it has no readable message)" in str(Failed(Unreadable()))


class Panic(BaseException):
    """As an extension written in Rust raises it."""


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, Panic, SystemExit, KeyboardInterrupt, GeneratorExit]
)
def test_an_error_that_is_no_exception_fails_its_task(error: type[BaseException]) -> None:
    """In a worker's thread, where none ends the process."""

    def handler(tasks: Sequence[Task]) -> None:
        if "3" in _ids(tasks):
            raise error

    with ThreadPoolExecutor(1) as executor:
        results = executor.submit(_run, handler, _tasks(8)).result()
    assert [(task, type(raised)) for task, raised in results.failed] == [(Task("3"), error)]
    assert _ids(results.done) == _ids(_tasks(8)) - {"3"}


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_process_is_raised(fatal: type[BaseException]) -> None:
    def handler(_: Sequence[Task]) -> None:
        raise fatal

    with pytest.raises(fatal):
        _run(handler, _tasks(1))
