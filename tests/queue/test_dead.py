"""The operator's side: look at dead letters, put them back, delete them."""

from tests.kit.queue_steps import bury
from tests.kit.settling import dead_letter
from worker import DelayQueue
from worker.queue.replies import Letter


def test_dead_letters_are_listed_newest_first(queue: DelayQueue) -> None:
    bury(queue, "a", "b", "c")
    assert [letter.id for letter in queue.dead()] == ["c", "b", "a"]
    assert [letter.id for letter in queue.dead(limit=1)] == ["c"]
    assert [letter.id for letter in queue.dead(limit=5, offset=1)] == ["b", "a"]
    assert queue.dead(offset=3) == []


def test_a_letter_says_why_and_what_the_task_carried(queue: DelayQueue) -> None:
    queue.schedule("a", 1000, b"\xff")
    [task] = queue.claim(1, 1000, now_ms=1500).tasks
    dead_letter(queue, [(task, 'said "no"\n', ValueError("bad"))], now_ms=2000)
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
    dead_letter(queue, [(task, "bad", None)], now_ms=1234567890123457)
    [letter] = queue.dead()
    assert letter.story["due_at_ms"] == 1234567890123456
    assert letter.story["died_at_ms"] == 1234567890123457
    assert letter.story["error"] is None


def test_a_long_error_is_cut(queue: DelayQueue) -> None:
    queue.schedule("a", 1)
    [task] = queue.claim(1, 1000, now_ms=1).tasks
    dead_letter(queue, [(task, "bad" * 100_000, ValueError("x" * 100_000))], now_ms=1)
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
        dead_letter(queue, [(task, "bad", error)], now_ms=1)
    [letter] = queue.dead()
    assert letter.story["traceback"].startswith("Traceback")
    assert "in overdrawn\n" in letter.story["traceback"]
    assert letter.story["traceback"].endswith("ValueError: too much\n")
