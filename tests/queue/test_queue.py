"""Scheduling, cancelling and waking, as far as the model does not go: see `test_queue_states`."""

import math
from typing import Any

import pytest
import redis

from tests.kit.queue_state import Messages, state
from tests.kit.queue_steps import bury, reply_lost
from tests.kit.settling import ack, release, retry
from worker import Cancelled, DelayQueue, Due, LeaseLost, Scheduled, Settlement, Verb
from worker.queue.formats import SLICE

NEVER = 2**53 - 1


# -- schedule ------------------------------------------------------------------------------


@pytest.mark.parametrize("due", [math.nan, math.inf, -math.inf, -1, -0.001, 2.0**53])
def test_a_due_time_that_cannot_be_stored_is_refused(queue: DelayQueue, due: float) -> None:
    with pytest.raises(ValueError, match="due_at_ms"):
        queue.schedule_many([("good", 1, b""), ("bad", due, b"")])
    assert state(queue) == {}


@pytest.mark.parametrize(
    ("delay_ms", "due"), [(0, 5000), (250, 5250), (0.001, 5001), (-100, 4900), (-6000, 0)]
)
def test_a_delay_counts_from_the_servers_time_and_is_rounded_up(
    queue: DelayQueue, delay_ms: float, due: int
) -> None:
    answer = queue.schedule("a", delay_ms=delay_ms, payload=b"x", now_ms=5000)
    assert answer is Scheduled.CREATED
    assert state(queue) == {"scheduled": {"a": due}, "payloads": {"a": b"x"}}


def test_a_delay_is_never_too_short_by_the_servers_own_clock(
    client: redis.Redis, queue: DelayQueue
) -> None:
    for n in range(100):
        seconds, microseconds = client.time()
        queue.schedule("a", delay_ms=n)
        assert state(queue)["scheduled"]["a"] >= 1000 * seconds + microseconds / 1000 + n


def test_times_and_delays_are_scheduled_together(queue: DelayQueue) -> None:
    answers = queue.schedule_many(
        [("time", 7000, b"t"), Due("delay", 50.5, b"d"), Due("bare", 60)], now_ms=5000
    )
    assert answers == 3 * [Scheduled.CREATED]
    assert state(queue) == {
        "scheduled": {"time": 7000, "delay": 5051, "bare": 5060},
        "payloads": {"time": b"t", "delay": b"d"},
    }


@pytest.mark.parametrize(
    "when", [{}, {"due_at_ms": 1, "delay_ms": 1}, {"due_at_ms": 0, "delay_ms": 0}]
)
def test_a_task_is_scheduled_at_a_time_or_after_a_delay(
    queue: DelayQueue, when: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match="either due_at_ms or delay_ms"):
        queue.schedule("a", **when)  # type: ignore[arg-type]  # mypy thinks of the other arguments
    assert state(queue) == {}


@pytest.mark.parametrize("delay_ms", [math.nan, math.inf, -math.inf, 2**52 + 1, -(2**52) - 1])
def test_a_delay_that_cannot_be_stored_is_refused(queue: DelayQueue, delay_ms: float) -> None:
    with pytest.raises(ValueError, match="delay_ms"):
        queue.schedule_many([("good", 1, b""), Due("bad", delay_ms)])
    assert state(queue) == {}


@pytest.mark.parametrize("delay_ms", [-(2**52), 2**52])
def test_the_longest_delays_are_stored_exactly(queue: DelayQueue, delay_ms: int) -> None:
    queue.schedule("a", delay_ms=delay_ms, now_ms=5001)
    assert state(queue) == {"scheduled": {"a": max(0, 5001 + delay_ms)}}


def test_an_empty_id_is_refused(queue: DelayQueue) -> None:
    with pytest.raises(ValueError, match="empty"):
        queue.schedule("", 1)
    assert state(queue) == {}


@pytest.mark.parametrize("due", [0, NEVER])
def test_the_first_and_the_last_due_time_are_kept_exactly(queue: DelayQueue, due: int) -> None:
    queue.schedule("a", due)
    assert queue.claim(1, 1000, now_ms=due).tasks[0].due_at_ms == due


def test_many_tasks_are_answered_in_order_across_slices(queue: DelayQueue) -> None:
    queue.schedule(f"{SLICE}", 7)
    answers = queue.schedule_many((str(n), 7, b"") for n in range(SLICE + 2))
    assert answers == [
        Scheduled.UNCHANGED if n == SLICE else Scheduled.CREATED for n in range(SLICE + 2)
    ]
    assert len(state(queue)["scheduled"]) == SLICE + 2


def test_an_id_named_twice_is_scheduled_once_and_the_last_wins(queue: DelayQueue) -> None:
    answers = queue.schedule_many([("a", 1, b"x"), ("a", 2, b"")])
    assert answers == [Scheduled.CREATED, Scheduled.RESCHEDULED]
    assert state(queue) == {"scheduled": {"a": 2}}


@pytest.mark.parametrize("score", [1000.5, -5, -1e18, -math.inf])
def test_a_due_time_pushed_by_others_is_never_fatal(
    client: redis.Redis, queue: DelayQueue, score: float
) -> None:
    client.zadd(queue.keys.scheduled, {"odd": score})
    [task] = queue.claim(1, 1000, now_ms=2000).tasks
    assert task.due_at_ms == max(0, math.floor(max(score, -1)))
    release(queue, [task])
    ack(queue, queue.claim(1, 1000, now_ms=2000).tasks)
    assert state(queue) == {}


def test_a_due_time_of_never_pushed_by_others_is_never_claimed(
    client: redis.Redis, queue: DelayQueue
) -> None:
    client.zadd(queue.keys.scheduled, {"never": math.inf})
    queue.schedule("a", 1000)
    assert [task.id for task in queue.claim(9, 1000, now_ms=NEVER).tasks] == ["a"]


def test_a_server_without_the_scripts_is_given_them_again(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    client.script_flush()
    assert queue.schedule("a", 1000) is Scheduled.UNCHANGED
    client.script_flush()
    assert queue.stats(now_ms=0).scheduled == 1
    client.script_flush()
    assert queue.cancel("a") is Cancelled.REMOVED


# -- cancel, seed --------------------------------------------------------------------------


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


@pytest.mark.parametrize("verb", ["cancel_many", "requeue", "purge"])
def test_one_id_is_not_taken_for_a_list_of_letters(queue: DelayQueue, verb: str) -> None:
    with pytest.raises(TypeError, match="list of task ids"):
        getattr(queue, verb)("ab")


def test_the_last_hundred_occurrences_are_recorded(queue: DelayQueue) -> None:
    for n in range(150):
        queue.seed("daily", 0, (str(n), 1000 + n), now_ms=999 + n)
    assert {*state(queue)["seeded"]} == {str(n) for n in range(50, 150)}


# -- the wake channel ----------------------------------------------------------------------


def test_a_message_is_published_only_when_the_head_moves_earlier(
    queue: DelayQueue, messages: Messages
) -> None:
    queue.schedule("a", 5000, now_ms=1000)
    assert messages.texts() == ["4000000"]  # in so many us
    queue.schedule_many([("later", 6000, b""), ("same", 5000, b""), ("a", 7000, b"")])
    assert messages.count() == 0
    queue.schedule_many([("earlier", 4000, b""), ("earliest", 3000, b"")])
    assert messages.count() == 1
    queue.restore([Due("b", 6000)], now_ms=0)
    assert messages.count() == 0
    queue.restore([Due("c", 2000)], now_ms=0)
    assert messages.count() == 1
    [task, other] = queue.claim(2, 1000, now_ms=3000).tasks
    retry(queue, [(task, 90_000)], now_ms=3000)
    assert messages.count() == 0
    retry(queue, [(other, 1)], now_ms=3000)
    assert messages.count() == 1


def test_whatever_puts_back_and_a_resume_wake_workers(
    queue: DelayQueue, messages: Messages
) -> None:
    bury(queue, "a")
    messages.count()
    queue.requeue(["a"], now_ms=1000)
    assert messages.count() == 1
    tasks = queue.claim(1, 1000, now_ms=1000).tasks
    release(queue, tasks)
    assert messages.count() == 1
    with reply_lost(queue):
        queue.claim(1, 1000, now_ms=1000)
    queue.give_back(now_ms=1000)
    assert messages.count() == 1
    queue.pause()
    assert messages.count() == 0
    queue.resume()
    assert messages.count() == 1
    queue.requeue(["unknown"], now_ms=1000)
    assert messages.count() == 0


# -- stats, pause --------------------------------------------------------------------------


def test_two_queues_on_one_server_do_not_meet(client: redis.Redis, queue: DelayQueue) -> None:
    other = DelayQueue(client, "other")
    queue.schedule("a", 1000)
    other.schedule("a", 2000)
    other.pause()
    ack(queue, queue.claim(9, 1000, now_ms=9000).tasks)
    assert state(queue) == {}
    assert state(other) == {"scheduled": {"a": 2000}, "paused": "1"}


def test_the_servers_own_clock_is_used_unless_a_time_is_given(
    client: redis.Redis, queue: DelayQueue
) -> None:
    seconds, micros = client.time()
    now_ms = seconds * 1000 + micros // 1000
    queue.schedule_many([("past", now_ms, b""), ("future", now_ms + 3_600_000, b"")])
    claim = queue.claim(9, 60_000)
    assert [task.id for task in claim.tasks] == ["past"]
    assert claim.now_ms >= now_ms
    assert claim.next_in_ms == 0, "a first claim looks at the leases, and asks again"
    assert 0 < (queue.claim(9, 60_000).next_in_ms or 0) <= 60_000
    retry(queue, [(claim.tasks[0], 60_000)])
    assert state(queue)["scheduled"]["past"] >= now_ms + 60_000


# -- destroy -------------------------------------------------------------------------------


def test_a_destroyed_queue_leaves_no_key_and_no_lease(
    client: redis.Redis, queue: DelayQueue
) -> None:
    other = DelayQueue(client, "other")
    other.schedule("a", 1)
    bury(queue, "dead")
    queue.beat("w", {})
    queue.schedule("suspect", 0)
    for now in (0, 10, 20):  # alone after its second death
        assert len(queue.claim(1, 5, now_ms=now).tasks) == 1
    queue.schedule_many([("held", 1, b"x"), ("waiting", 5000, b"y")])
    [task] = queue.claim(1, 1000, now_ms=1).tasks
    queue.restore([], worker_id="w", term_ms=1000)
    queue.seed("daily", 1, ("occurrence", 9000))
    queue.pause()
    keys = {key for key in vars(queue.keys).values() if key != queue.keys.channel}
    stored: Any = client.keys("{contract}:*")
    assert {key.decode() for key in stored} == keys

    queue.destroy()

    assert state(queue) == {}
    assert state(other) == {"scheduled": {"a": 1}}
    for verb in Verb:
        with pytest.raises(LeaseLost, match="held"):
            queue.settle([Settlement([task], verb, 1)])
    with pytest.raises(LeaseLost, match="held"):
        queue.extend([task], 1000)
    assert state(queue) == {}


@pytest.mark.parametrize(("due", "second"), [(1001, "0001"), (1002, "1001")])
def test_in_a_backlog_oldest_and_newest_are_claimed_in_turn(
    queue: DelayQueue, due: int, second: str
) -> None:
    queue.schedule_many((f"{n:04}", 1000 + n, b"") for n in range(due))
    order = [queue.claim(1, 10_000, now_ms=5000).tasks[0].id for _ in range(3)]
    assert order == ["0000", second, "0001" if second == "1001" else "0002"]
