"""Seeding: each occurrence of a recurring task is scheduled once, by whoever comes first."""

import pytest
import redis

from tests.contract.state import State, state
from tests.contract.steps import bury, one, reply_lost
from worker import DelayQueue
from worker.queue.replies import Seeded

A, B, C = ("a", 1000), ("b", 2000), ("c", 3000)
NOTHING = Seeded(in_force=True, ids=())
QUIET = Seeded(in_force=False, ids=())


def stored(queue: DelayQueue) -> State:
    """The queue's whole state, but for the moment until which its schedule is in force."""
    found = state(queue)
    if "recurrence" in found:
        found["recurrence"] = found["recurrence"].partition(" ")[2]
    return found


def seeded(*ids: str) -> Seeded:
    return Seeded(in_force=True, ids=ids)


def scheduled(queue: DelayQueue) -> dict[str, int]:
    return dict(stored(queue).get("scheduled", {}))


def test_the_upcoming_occurrence_is_scheduled_and_recorded(queue: DelayQueue) -> None:
    assert queue.seed("daily", 500, A, now_ms=500) == seeded("a")
    assert stored(queue) == {
        "scheduled": {"a": 1000},
        "seeded": {"a": 1000},
        "recurrence": "500 daily",
    }


def test_it_is_scheduled_once_however_many_seed_it(queue: DelayQueue) -> None:
    queue.seed("daily", 500, A, now_ms=500)
    before = stored(queue)
    assert queue.seed("daily", 400, A, now_ms=600) == NOTHING
    assert stored(queue) == before


@pytest.mark.parametrize("fate", ["leased", "done", "dead", "cancelled"])
def test_one_that_was_seeded_is_never_seeded_again(queue: DelayQueue, fate: str) -> None:
    queue.seed("daily", 500, A, now_ms=500)
    if fate == "cancelled":
        queue.cancel("a")
    else:
        task = one(queue, 1000)
        if fate == "done":
            queue.ack([task])
        elif fate == "dead":
            queue.dead_letter([(task, "bad", None)], now_ms=1001)
    before = stored(queue)
    assert queue.seed("daily", 500, A, now_ms=600) == NOTHING  # the clock was set back
    assert queue.seed("daily", 500, A, A, now_ms=1000) == NOTHING
    assert stored(queue) == before


def test_the_expected_one_is_left_while_anything_is_recorded(queue: DelayQueue) -> None:
    queue.seed("daily", 500, B, now_ms=1500)
    # Whoever looked last before 1000 and was frozen since does not know whether a is done. It is.
    assert queue.seed("daily", 500, C, A, now_ms=2500) == seeded("c")
    assert scheduled(queue) == {"b": 2000, "c": 3000}


def test_after_a_flush_the_expected_one_is_scheduled_too(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.seed("daily", 500, A, now_ms=500)
    client.flushall()
    assert queue.seed("daily", 500, B, A, now_ms=1000) == seeded("a", "b")
    assert stored(queue) == {
        "scheduled": {"a": 1000, "b": 2000},
        "seeded": {"a": 1000, "b": 2000},
        "recurrence": "500 daily",
    }
    assert queue.seed("daily", 400, B, A, now_ms=1000) == NOTHING
    assert one(queue, 1000).id == "a"


def test_a_lost_reply_changes_nothing(queue: DelayQueue) -> None:
    with reply_lost(queue):
        queue.seed("daily", 500, B, A, now_ms=1000)
    before = stored(queue)
    assert queue.seed("daily", 500, B, A, now_ms=1000) == NOTHING
    assert stored(queue) == before


def test_one_due_on_the_way_is_seeded_unless_a_later_one_was(
    queue: DelayQueue,
) -> None:
    queue.seed("daily", 500, A, now_ms=500)
    assert queue.seed("daily", 500, B, now_ms=2001) == seeded("b")
    queue.seed("daily", 500, C, now_ms=2500)
    assert queue.seed("daily", 500, ("b2", 2400), now_ms=2500) == NOTHING
    assert scheduled(queue) == {"a": 1000, "b": 2000, "c": 3000}


def test_an_earlier_one_is_seeded_where_the_clock_was_ahead(queue: DelayQueue) -> None:
    queue.seed("daily", 500, C, now_ms=2500)
    assert queue.seed("daily", 500, A, now_ms=600) == seeded("a")
    assert scheduled(queue) == {"a": 1000, "c": 3000}


def test_the_last_hundred_are_recorded(queue: DelayQueue) -> None:
    for n in range(150):
        queue.seed("daily", 0, (str(n), 1000 + n), now_ms=999 + n)
    assert {*stored(queue)["seeded"]} == {str(n) for n in range(50, 150)}


def test_other_tasks_of_the_queue_are_no_occurrences(queue: DelayQueue) -> None:
    bury(queue, "dead")
    queue.schedule("by hand", 700)
    before = scheduled(queue)
    queue.seed("daily", 500, A, now_ms=500)
    queue.seed("hourly", 600, B, now_ms=600)
    assert scheduled(queue) == before | {"b": 2000}


# -- a new schedule ------------------------------------------------------------------------


def test_whoever_started_later_replaces_what_is_ahead(queue: DelayQueue) -> None:
    queue.seed("daily", 500, C, now_ms=500)
    assert queue.seed("hourly", 600, A, now_ms=600) == seeded("a")
    assert stored(queue) == {
        "scheduled": {"a": 1000},
        "seeded": {"a": 1000},
        "recurrence": "600 hourly",
    }


def test_whoever_started_earlier_leaves_it_alone(queue: DelayQueue) -> None:
    queue.seed("hourly", 600, A, now_ms=600)
    before = stored(queue)
    assert queue.seed("daily", 500, C, now_ms=700) == QUIET
    assert queue.seed("daily", 500, C, B, now_ms=700) == QUIET
    assert stored(queue) == before


def test_a_time_that_both_schedules_have_is_kept(queue: DelayQueue) -> None:
    queue.seed("daily", 500, A, now_ms=500)
    assert queue.seed("hourly", 600, A, now_ms=600) == NOTHING
    assert scheduled(queue) == {"a": 1000}
    assert stored(queue)["recurrence"] == "600 hourly"


def test_a_schedule_that_lapsed_gives_way_to_an_older_one(queue: DelayQueue) -> None:
    in_a_year, tonight = ("year", 9_000_000), ("night", 1_000_000)
    queue.seed("yearly", 700, in_a_year, now_ms=700)
    assert queue.seed("daily", 500, tonight, now_ms=180_699) == QUIET
    assert queue.seed("yearly", 700, in_a_year, now_ms=180_699) == NOTHING
    assert queue.seed("daily", 500, tonight, now_ms=360_698) == QUIET
    assert queue.seed("daily", 500, tonight, now_ms=360_699) == seeded("night")
    assert scheduled(queue) == {"night": 1_000_000}
    assert queue.seed("daily", 500, tonight, now_ms=900_000) == NOTHING


def test_what_is_due_or_was_claimed_is_kept(queue: DelayQueue) -> None:
    queue.seed("daily", 500, A, now_ms=500)
    task = one(queue, 1000)
    queue.seed("daily", 500, B, now_ms=1000)
    queue.release([task])
    queue.seed("hourly", 2000, C, now_ms=2000)
    assert scheduled(queue) == {"a": 1000, "b": 2000, "c": 3000}
    queue.seed("weekly", 2100, ("d", 4000), now_ms=900)  # the clock was set back
    assert scheduled(queue) == {"a": 1000, "d": 4000}, "a was claimed, the others never"


def test_of_two_started_in_one_millisecond_one_prevails(queue: DelayQueue) -> None:
    for first, second in (("daily", "hourly"), ("hourly", "daily")):
        queue.destroy()
        answers = {
            first: queue.seed(first, 500, A, now_ms=500),
            second: queue.seed(second, 500, B, now_ms=500),
        }
        again = {name: queue.seed(name, 500, C, now_ms=500).in_force for name in answers}
        assert again == {"daily": False, "hourly": True}


def test_a_schedule_is_as_new_as_its_latest_worker(queue: DelayQueue) -> None:
    queue.seed("daily", 500, A, now_ms=500)
    queue.seed("daily", 700, A, now_ms=700)
    queue.seed("daily", 500, A, now_ms=800)
    assert stored(queue)["recurrence"] == "700 daily"
    assert queue.seed("hourly", 600, B, now_ms=800) == QUIET


def test_the_old_schedule_returns_when_new_workers_are_gone(
    queue: DelayQueue,
) -> None:
    later, much_later = ("b", 300_000), ("c", 900_000)
    queue.seed("hourly", 600, A, now_ms=600)
    assert queue.seed("daily", 500, much_later, now_ms=180_599) == QUIET
    assert queue.seed("daily", 500, much_later, now_ms=180_600) == seeded("c")
    assert scheduled(queue) == {"a": 1000, "c": 900_000}
    # They were only slow.
    assert queue.seed("hourly", 600, later, A, now_ms=180_601) == seeded("b")
    assert scheduled(queue) == {"a": 1000, "b": 300_000}


def test_the_new_schedule_prevails_after_a_flush_too(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.seed("hourly", 600, B, now_ms=600)
    client.flushall()
    assert queue.seed("daily", 500, A, now_ms=700) == seeded("a")
    assert queue.seed("hourly", 600, B, now_ms=800) == seeded("b")
    assert scheduled(queue) == {"b": 2000}


HOUR = 3_600_000


@pytest.mark.parametrize("fate", ["waiting", "done"])
@pytest.mark.parametrize("renewed", [False, True])
def test_a_new_schedule_prevails_although_the_clock_was_set_back(
    queue: DelayQueue, fate: str, *, renewed: bool
) -> None:
    queue.seed("daily", HOUR + 500, ("old", HOUR + 1000), now_ms=HOUR + 500)
    if fate == "done":
        queue.ack([one(queue, HOUR + 1000)])
    if renewed:  # by the right clock
        assert queue.seed("daily", HOUR + 500, ("old", HOUR + 1000), now_ms=650) == NOTHING

    assert queue.seed("weekly", 600, ("new", 5000), now_ms=700) == seeded("new")
    assert queue.seed("daily", HOUR + 500, A, now_ms=800) == QUIET
    assert scheduled(queue) == {"new": 5000}
    again = queue.seed("weekly", 600, ("old", HOUR + 1000), now_ms=HOUR)
    assert again == (NOTHING if fate == "done" else seeded("old"))


def test_a_schedule_renewed_by_a_fast_clock_gives_way_at_once(queue: DelayQueue) -> None:
    for now in (700, HOUR):
        queue.seed("yearly", 700, ("year", 2 * HOUR), now_ms=now)
    assert queue.seed("daily", 500, A, now_ms=800) == seeded("a")
