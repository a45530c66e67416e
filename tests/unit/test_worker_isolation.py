"""A batch that fails is run again in halves until the tasks at fault stand alone."""

from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import DeadLetter, Failed, Flow, Outcome, Retry, Task, Unavailable, one_at_a_time
from worker.isolation import Handled, handle


def _run(
    handler: Callable[[Sequence[Task]], Any],
    tasks: Sequence[Task],
    *,
    probe: Callable[[], None] | None = None,
    keep_going: Callable[[], bool] = lambda: True,
) -> Handled:
    handled = Handled()
    flow = Flow(name="a", handler=handler, probe=probe)
    for part in handle(flow, tasks, lambda _: keep_going()):
        handled.merge(part)
    return handled


def _ids(tasks: Sequence[Task]) -> set[str]:
    return {task.id for task in tasks}


def _tasks(count: int) -> list[Task]:
    return [Task(str(n)) for n in range(count)]


class Poisoned:
    """A handler that raises when any of these is in its batch."""

    def __init__(self, *poison: str) -> None:
        self.poison = set(poison)
        self.calls = 0
        self.done: set[str] = set()

    def __call__(self, tasks: Sequence[Task]) -> None:
        self.calls += 1
        if self.poison & _ids(tasks):
            raise ValueError("poison")
        assert not self.done & _ids(tasks), "done twice"
        self.done |= _ids(tasks)


def test_a_batch_that_succeeds_is_run_once() -> None:
    handler = Poisoned()
    handled = _run(handler, _tasks(500))
    assert handler.calls == 1
    assert handled == Handled(done=_tasks(500))


@pytest.mark.parametrize("poison", ["0", "333", "999"])
def test_one_poison_task_is_found_in_about_twice_the_logarithm_of_calls(poison: str) -> None:
    handler = Poisoned(poison)
    handled = _run(handler, _tasks(1000))
    assert [task.id for task, _ in handled.failed] == [poison]
    assert _ids(handled.done) == _ids(_tasks(1000)) - {poison}
    assert handler.calls <= 2 * log2(1000) + 2


@given(count=st.integers(1, 60), poison=st.sets(st.integers(0, 59)))
def test_exactly_the_poison_tasks_fail_and_all_others_are_done_once(
    count: int, poison: set[int]
) -> None:
    handler = Poisoned(*map(str, poison))
    handled = _run(handler, _tasks(count))
    bad = handler.poison & _ids(_tasks(count))
    assert _ids([task for task, _ in handled.failed]) == bad
    assert _ids(handled.done) == handler.done == _ids(_tasks(count)) - bad
    assert not handled.untouched


def test_each_outcome_is_sorted_to_its_list() -> None:
    retry, dead, error = Retry(5), DeadLetter("bad"), ValueError("x")
    a, b, c, d = Task("a"), Task("b"), Task("c"), Task("d")
    handled = _run(lambda _: {"a": retry, "b": dead, "c": Failed(error)}, [a, b, c, d])
    assert handled == Handled(done=[d], retries=[(a, retry)], dead=[(b, dead)], failed=[(c, error)])


@pytest.mark.parametrize("outcome", [Retry(5), DeadLetter("bad"), Failed(ValueError("x"))])
def test_an_outcome_raised_for_a_batch_of_one_is_that_tasks_own(outcome: Outcome) -> None:
    def handler(tasks: Sequence[Task]) -> None:
        if "3" in _ids(tasks):
            raise outcome

    handled = _run(handler, _tasks(8))
    assert _ids(handled.done) == _ids(_tasks(8)) - {"3"}
    assert len(handled.retries) + len(handled.dead) + len(handled.failed) == 1


def test_an_outage_leaves_the_whole_batch_untouched_after_one_call() -> None:
    calls: list[int] = []
    down = Unavailable("no answer")

    def handler(tasks: Sequence[Task]) -> None:
        calls.append(len(tasks))
        raise down

    assert _run(handler, _tasks(100)) == Handled(untouched=_tasks(100), outage=down)
    assert calls == [100]


def test_an_outage_in_the_middle_leaves_the_rest_untouched_and_keeps_what_is_done() -> None:
    done: set[str] = set()

    def handler(tasks: Sequence[Task]) -> None:
        if len(tasks) == 100:
            raise ValueError("something in this batch")
        if done:
            raise Unavailable("gone meanwhile")
        done.update(_ids(tasks))

    handled = _run(handler, _tasks(100))
    assert _ids(handled.done) == done == _ids(_tasks(50))
    assert _ids(handled.untouched) == _ids(_tasks(100)) - done
    assert handled.outage is not None
    assert handled.failed == []


def test_an_unknown_error_counts_while_the_probe_passes() -> None:
    probed: list[None] = []
    handled = _run(Poisoned("0"), _tasks(1), probe=lambda: probed.append(None))
    assert len(handled.failed) == len(probed) == 1


@pytest.mark.parametrize("error", [Unavailable("down"), OSError("down"), KeyError("down")])
def test_an_unknown_error_is_an_outage_while_the_probe_fails_in_any_way(error: Exception) -> None:
    def probe() -> None:
        raise error

    handled = _run(Poisoned("0", "1", "2"), _tasks(3), probe=probe)
    assert handled.failed == []
    assert _ids(handled.untouched) == _ids(_tasks(3))
    assert isinstance(handled.outage, Unavailable)
    assert isinstance(handled.outage.__cause__, ValueError)


def test_an_outcome_said_for_a_task_is_taken_at_its_word_without_a_probe() -> None:
    def probe() -> None:
        raise AssertionError("not asked")

    def handler(_tasks: Sequence[Task]) -> None:
        raise DeadLetter("bad")

    assert len(_run(handler, _tasks(1), probe=probe).dead) == 1


@pytest.mark.parametrize("nonsense", [["0"], "0", 7, True, object(), {"0"}])
def test_a_handler_that_returns_no_mapping_fails_each_task_alone(nonsense: object) -> None:
    handled = _run(lambda _: nonsense, _tasks(3))
    assert _ids([task for task, _ in handled.failed]) == {"0", "1", "2"}
    assert handled.done == []


@pytest.mark.parametrize("nonsense", ["done", 0, True, ValueError("returned"), Retry])
def test_an_outcome_that_is_none_fails_only_the_task_it_was_said_of(nonsense: Any) -> None:
    said: Mapping[str, Any] = {"1": nonsense}
    handled = _run(lambda _: said, _tasks(3))
    assert _ids(handled.done) == {"0", "2"}
    [(task, error)] = handled.failed
    assert task.id == "1"
    assert isinstance(error, TypeError)


def test_nothing_new_is_begun_once_it_is_time_to_stop() -> None:
    handler = Poisoned("0")
    going = iter([True, True])
    handled = _run(handler, _tasks(8), keep_going=lambda: next(going, False))
    assert handler.calls == 2
    assert _ids(handled.untouched) == _ids(_tasks(8))
    assert handled.failed == []


@pytest.mark.parametrize("key", [Task("1"), b"1", 1, "2", "01"])
def test_a_handler_that_names_anything_but_ids_has_failed(key: Any) -> None:
    calls: list[Sequence[Task]] = []

    def handler(tasks: Sequence[Task]) -> Mapping[Any, Outcome]:
        calls.append(tasks)
        return {key: Retry(1000)}

    handled = _run(handler, [Task("0"), Task("1")])
    assert len(calls) == 1
    assert _ids([task for task, _ in handled.failed]) == {"0", "1"}
    assert all("is not a task id" in str(error) for _, error in handled.failed)


# -- one at a time -------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Retry(5), DeadLetter("bad"), Failed(ValueError("x"))])
@pytest.mark.parametrize("raised", [True, False])
def test_one_at_a_time_each_outcome_is_that_tasks_own(outcome: Outcome, raised: bool) -> None:  # noqa: FBT001  a parameter
    seen: list[str] = []

    def function(task: Task) -> Outcome | None:
        seen.append(task.id)
        if task.id != "3":
            return None
        if raised:
            raise outcome
        return outcome

    handled = _run(one_at_a_time(function), _tasks(8))
    assert seen == [task.id for task in _tasks(8)]
    assert _ids(handled.done) == _ids(_tasks(8)) - {"3"}
    assert {*handled.tasks()} == {*_tasks(8)}


def test_one_at_a_time_what_became_of_a_task_is_known_before_the_next_begins() -> None:
    seen: list[str] = []

    def function(task: Task) -> None:
        seen.append(task.id)

    flow = Flow(name="a", handler=one_at_a_time(function))
    for number, part in enumerate(handle(flow, _tasks(3), lambda _: True), start=1):
        assert len(seen) == number
        assert part == Handled(done=[Task(str(number - 1))])


def test_one_at_a_time_nothing_is_begun_after_the_worker_was_told_to_stop() -> None:
    seen: list[str] = []
    function = one_at_a_time(lambda task: seen.append(task.id))
    handled = _run(function, _tasks(5), keep_going=lambda: len(seen) < 2)
    assert handled == Handled(done=_tasks(5)[:2], untouched=_tasks(5)[2:])


@pytest.mark.parametrize("error", [Unavailable("down"), ConnectionError("refused")])
def test_one_at_a_time_an_outage_counts_nothing_and_leaves_the_rest(error: Exception) -> None:
    def function(task: Task) -> None:
        if task.id == "1":
            raise error

    def probe() -> None:
        raise Unavailable("down")

    handled = _run(one_at_a_time(function), _tasks(4), probe=probe)
    assert (handled.done, handled.failed) == ([Task("0")], [])
    assert handled.untouched == _tasks(4)[1:]
    assert isinstance(handled.outage, Unavailable)


def test_a_handler_cannot_lose_tasks_by_emptying_its_batch() -> None:
    def handler(tasks: Sequence[Task]) -> None:
        assert isinstance(tasks, tuple)

    assert _run(handler, _tasks(3)) == Handled(done=_tasks(3))


def test_a_failure_may_be_given_as_text_and_its_error_need_not_be_readable() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def handler(tasks: Sequence[Task]) -> Mapping[str, Outcome]:
        return {task.id: Failed("no such customer") for task in tasks[:1]}

    [(_, error)] = _run(handler, _tasks(2)).failed
    assert str(error) == "no such customer"
    assert "Unreadable: (it has no readable message)" in str(Failed(Unreadable()))
