"""Cancelling: what waits goes at once, what a worker holds does not come again."""

from collections.abc import Callable

import pytest

from tests.contract.state import attempts, state
from tests.contract.steps import bury, claimed_with_counts, one
from worker import Cancelled, DelayQueue, LeaseLost, Scheduled, Task
from worker.queue.replies import Put


def test_a_cancelled_task_leaves_nothing_behind(queue: DelayQueue) -> None:
    [task] = claimed_with_counts(queue)
    queue.retry([(task, 5)], Put.FAILED, now_ms=2000)
    assert set(state(queue)) == {"scheduled", "payloads", "tokens"}
    assert queue.cancel("a") is Cancelled.REMOVED
    assert state(queue) == {}


def test_cancelling_a_leased_task_only_marks_it(queue: DelayQueue) -> None:
    [task] = claimed_with_counts(queue)
    before = state(queue)
    counts = {"span": 10, "failures": 1, "deliveries": 1, "before": 2, "claimed": 2000}
    marked = {"tokens": {"a": attempts(1000, task.token, **counts, cancelled=True)}}
    for _again in range(2):
        assert queue.cancel("a") is Cancelled.CANCELLING
        assert state(queue) == before | marked


def test_cancelling_a_dead_task_says_dead_and_changes_nothing(queue: DelayQueue) -> None:
    bury(queue, "a")
    before = state(queue)
    assert queue.cancel("a") is Cancelled.DEAD
    assert state(queue) == before


def test_cancelling_what_is_nowhere_says_missing(queue: DelayQueue) -> None:
    assert queue.cancel("absent") is Cancelled.MISSING
    assert state(queue) == {}


def test_many_are_cancelled_in_one_call_each_with_an_answer(queue: DelayQueue) -> None:
    queue.schedule("leased", 1000)
    queue.claim(1, 1000, now_ms=1000)
    ids = [f"task-{n}" for n in range(1001)]  # more than one slice
    queue.schedule_many((task_id, 2000, b"x") for task_id in ids)
    queue.schedule("kept", 2000, b"y")
    answers = queue.cancel_many([*ids[:700], "leased", "absent", *ids[700:], ids[0]])
    assert answers[700:702] == [Cancelled.CANCELLING, Cancelled.MISSING]
    assert answers[-1] is Cancelled.MISSING, "it was removed before"
    assert {*answers[:700], *answers[702:-1]} == {Cancelled.REMOVED}
    left = state(queue)
    assert {*left["scheduled"]} == {*left["payloads"]} == {"kept"}
    assert queue.cancel_many([]) == []


End = Callable[[DelayQueue, Task], object]


def _putting_back(put: Put) -> End:
    return lambda queue, task: queue.retry([(task, 5)], put)


ENDS: dict[str, End] = {
    "done": lambda queue, task: queue.ack([task]),
    **{put: _putting_back(put) for put in Put},
    "released": lambda queue, task: queue.release([task]),
    "buried": lambda queue, task: queue.dead_letter([(task, "bad", None)]),
    "its worker died": lambda queue, _task: queue.claim(9, 10, now_ms=9000),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_task_cancelled_while_leased_never_comes_again(queue: DelayQueue, end: End) -> None:
    [task] = claimed_with_counts(queue)
    assert queue.cancel("a") is Cancelled.CANCELLING
    end(queue, task)
    assert state(queue) == {}
    assert queue.claim(9, 10, now_ms=2**52).tasks == []
    with pytest.raises(LeaseLost):
        queue.ack([task])


@pytest.mark.parametrize("end", [*ENDS][1:-1])
def test_only_the_cancelled_ones_of_a_batch_are_dropped(queue: DelayQueue, end: str) -> None:
    queue.schedule_many((name, 1000, b"x") for name in "abc")
    tasks = queue.claim(3, 10, now_ms=1000).tasks
    queue.cancel("b")
    for task in tasks:
        ENDS[end](queue, task)
    left = state(queue)
    assert {*left.get("scheduled", {}), *left.get("dead", [])} == {*left["payloads"]} == {*"ac"}
    assert {*left["tokens"]} == {*"ac"}


def test_cancelled_suspects_are_dropped_and_others_claimed(
    queue: DelayQueue,
) -> None:
    queue.schedule_many((f"{n}", 1000, b"x") for n in range(9))
    queue.claim(9, 10, now_ms=1000)
    queue.cancel_many(["0", "2"])
    assert [task.id for task in queue.claim(9, 10, now_ms=1010).tasks] == ["1"]
    assert {*state(queue)["payloads"]} == {*state(queue)["leased"]} == {*"1345678"}


def test_due_tasks_are_claimed_when_all_suspects_were_cancelled(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    queue.claim(9, 10, now_ms=1000)
    queue.cancel("a")
    queue.schedule("b", 1000)
    assert one(queue, 1010).id == "b"


def test_a_cancelled_task_can_still_be_extended_and_done(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    task = one(queue, 1000)
    queue.cancel("a")
    queue.extend([task], 500, now_ms=1100)
    assert queue.claim(9, 10, now_ms=1500).tasks == []
    queue.ack([task])
    assert state(queue) == {}


def test_a_cancelled_task_that_is_scheduled_again_comes(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", 1000, b"old")
    task = one(queue, 1000)
    queue.cancel("a")
    assert queue.schedule("a", 3000, b"new") is Scheduled.RESCHEDULED
    with pytest.raises(LeaseLost):
        queue.release([task])
    assert state(queue) == {"scheduled": {"a": 3000}, "payloads": {"a": b"new"}}


@pytest.mark.parametrize("verb", ["cancel_many", "requeue", "purge"])
def test_one_id_is_not_taken_for_a_list_of_letters(queue: DelayQueue, verb: str) -> None:
    with pytest.raises(TypeError, match="list of task ids"):
        getattr(queue, verb)("ab")
