"""The operator's side: look at dead letters, put them back, delete them."""

from collections.abc import Callable

import pytest

from tests.contract.state import attempts, state
from tests.contract.steps import bury, claimed_with_counts
from worker import DelayQueue
from worker.queue.replies import Letter

MANY = 2600


def test_dead_letters_are_listed_newest_first(queue: DelayQueue) -> None:
    bury(queue, "a", "b", "c")
    assert [letter.id for letter in queue.dead()] == ["c", "b", "a"]
    assert [letter.id for letter in queue.dead(limit=1)] == ["c"]
    assert [letter.id for letter in queue.dead(limit=5, offset=1)] == ["b", "a"]
    assert queue.dead(offset=3) == []


def test_a_letter_says_why_and_what_the_task_carried(queue: DelayQueue) -> None:
    queue.schedule("a", 1000, b"\xff")
    [task] = queue.claim(1, 1000, now_ms=1500).tasks
    queue.dead_letter([(task, 'said "no"\n', ValueError("bad"))], now_ms=2000)
    story = {
        "reason": 'said "no"\n',
        "error": "ValueError: bad",
        "traceback": "ValueError: bad\n",
        "failures": 0,
        "deliveries": 0,
        "due_at_ms": 1000,
        "died_at_ms": 2000,
    }
    assert queue.dead() == [Letter("a", b"\xff", story)]


def test_the_times_in_a_letter_are_exact(queue: DelayQueue) -> None:
    queue.schedule("a", 1234567890123456)
    [task] = queue.claim(1, 1000, now_ms=1234567890123456).tasks
    queue.dead_letter([(task, "bad", None)], now_ms=1234567890123457)
    [letter] = queue.dead()
    assert letter.story["due_at_ms"] == 1234567890123456
    assert letter.story["died_at_ms"] == 1234567890123457
    assert letter.story["error"] is None


def test_the_stats_tell_the_age_of_the_oldest_letter(queue: DelayQueue) -> None:
    bury(queue, "a", "b")
    queue.schedule("c", 1)
    [task] = queue.claim(1, 1000, now_ms=50).tasks
    queue.dead_letter([(task, "bad", ValueError('"died_at_ms":7}'))], now_ms=60)
    assert queue.stats(now_ms=100).oldest_dead_age_ms == 99
    queue.purge(["a", "b"])
    assert queue.stats(now_ms=100).oldest_dead_age_ms == 40
    assert queue.stats(now_ms=10).oldest_dead_age_ms == 0, "a clock that was set back"
    queue.requeue(["c"])
    assert queue.stats(now_ms=100).oldest_dead_age_ms == 0


def test_a_long_error_is_cut(queue: DelayQueue) -> None:
    queue.schedule("a", 1)
    [task] = queue.claim(1, 1000, now_ms=1).tasks
    queue.dead_letter([(task, "bad" * 100_000, ValueError("x" * 100_000))], now_ms=1)
    assert len(queue.dead()[0].story["reason"]) == 2000
    assert len(queue.dead()[0].story["error"]) == 2000
    assert len(queue.dead()[0].story["traceback"]) == 4000


def test_a_letter_says_where_its_error_was_raised(queue: DelayQueue) -> None:
    def overdrawn() -> None:
        raise ValueError("too much")

    queue.schedule("a", 1)
    [task] = queue.claim(1, 1000, now_ms=1).tasks
    try:
        overdrawn()
    except ValueError as error:
        queue.dead_letter([(task, "bad", error)], now_ms=1)
    [letter] = queue.dead()
    assert letter.story["traceback"].startswith("Traceback")
    assert "in overdrawn\n" in letter.story["traceback"]
    assert letter.story["traceback"].endswith("ValueError: too much\n")


def test_a_requeued_task_is_due_now_with_its_counts_reset(
    queue: DelayQueue,
) -> None:
    [task] = claimed_with_counts(queue)
    queue.dead_letter([(task, "bad", None)], now_ms=2000)
    assert queue.requeue(["a"], now_ms=5000) == ["a"]
    assert state(queue) == {
        "scheduled": {"a": 5000},
        "tokens": {"a": attempts(5000, appointment=1000)},
        "payloads": {"a": b"x"},
    }


def test_a_purged_task_leaves_nothing_behind(queue: DelayQueue) -> None:
    [task] = claimed_with_counts(queue)
    queue.dead_letter([(task, "bad", None)], now_ms=2000)
    assert queue.purge(["a"]) == ["a"]
    assert state(queue) == {}


@pytest.mark.parametrize("method", [DelayQueue.requeue, DelayQueue.purge])
def test_what_is_not_dead_is_neither_requeued_nor_purged(
    queue: DelayQueue, method: Callable[[DelayQueue, list[str]], list[str]]
) -> None:
    bury(queue, "dead")
    queue.schedule("leased", 1, b"x")
    queue.claim(1, 10, now_ms=1)
    queue.schedule("scheduled", 5, b"x")
    before = state(queue)
    assert method(queue, ["leased", "scheduled", "unknown"]) == []
    assert state(queue) == before
    assert method(queue, ["unknown", "dead", "dead"]) == ["dead"]


def test_a_requeued_task_can_die_again(queue: DelayQueue) -> None:
    bury(queue, "a", "b")
    queue.requeue(["a"], now_ms=1)
    [task] = queue.claim(1, 10, now_ms=1).tasks
    queue.dead_letter([(task, "again", None)], now_ms=2)
    assert state(queue)["dead"] == ["a", "b"]
    assert queue.dead()[0].story["reason"] == "again"


def test_all_dead_ids_come_oldest_first_as_they_are_removed(
    queue: DelayQueue,
) -> None:
    bury(queue, *(f"{n:03}" for n in range(250)))
    taken: list[str] = []
    for ids in queue.dead_ids():
        assert len(ids) <= 100
        assert queue.purge(ids) == ids
        taken += ids
    assert taken == [f"{n:03}" for n in range(250)]
    assert state(queue) == {}


def test_letters_that_come_during_a_removal_are_left(queue: DelayQueue) -> None:
    bury(queue, *(f"{n:03}" for n in range(150)))
    for ids in queue.dead_ids():
        queue.purge(ids)
        bury(queue, f"new after {ids[0]}")
    assert [letter.id for letter in queue.dead()] == ["new after 100", "new after 000"]


def test_all_dead_ids_come_once_when_none_is_removed(queue: DelayQueue) -> None:
    ids = [f"{n:03}" for n in range(250)]
    bury(queue, *ids)
    before = state(queue)
    assert [task_id for some in queue.dead_ids() for task_id in some] == ids
    assert state(queue) == before


def test_all_dead_ids_come_once_when_some_are_removed(
    queue: DelayQueue,
) -> None:
    ids = [f"{n:03}" for n in range(350)]
    bury(queue, *ids)
    seen: list[str] = []
    for some in queue.dead_ids():
        queue.purge(some[::3])
        queue.requeue(some[1::3], now_ms=1)
        seen += some
    assert seen == ids


def test_there_are_no_dead_ids_in_an_empty_queue(queue: DelayQueue) -> None:
    assert list(queue.dead_ids()) == []


def test_each_letter_is_listed_once_and_nothing_else(queue: DelayQueue) -> None:
    ids = [f"{n:04}" for n in range(MANY)]
    bury(queue, *ids)
    middle = ids[MANY // 3 : 2 * MANY // 3]
    assert queue.purge(middle) == middle
    left = [task_id for task_id in ids if task_id not in middle]
    assert state(queue)["dead"] == left[::-1]
    assert queue.requeue(middle) == []
    taken = [task_id for slice_ in queue.dead_ids() for task_id in queue.requeue(slice_, now_ms=9)]
    assert taken == left
    assert state(queue) == {
        "scheduled": dict.fromkeys(taken, 9),
        "tokens": {task_id: attempts(9, appointment=int(task_id)) for task_id in taken},
    }


def test_letters_that_die_again_come_once_among_all_ids(queue: DelayQueue) -> None:
    ids = [f"{n:03}" for n in range(250)]
    bury(queue, *ids)
    seen: list[str] = []
    for some in queue.dead_ids():
        seen += some
        queue.requeue(some[:3], now_ms=1)
        tasks = queue.claim(9, 10, now_ms=1).tasks
        queue.dead_letter([(task, "again", None) for task in tasks], now_ms=2)
    assert seen == ids


def test_a_task_that_died_twice_in_a_long_list_is_shown_once(queue: DelayQueue) -> None:
    ids = [f"{n:04}" for n in range(MANY)]
    bury(queue, *ids)
    middle = ids[MANY // 2]
    queue.requeue([middle], now_ms=1)
    [task] = queue.claim(1, 10, now_ms=1).tasks
    queue.dead_letter([(task, "again", None)], now_ms=2)
    assert [letter.id for letter in queue.dead(limit=MANY + 1)].count(middle) == 1
