"""Scheduling, waking, counting and pausing; each test names what it finds and what it leaves."""

import math
import random
from typing import Any

import pytest
import redis

from tests.contract.state import Messages, attempts, state
from tests.contract.steps import bury, reply_lost
from worker import Cancelled, DelayQueue, Due, LeaseLost, Scheduled
from worker.queue.formats import SLICE
from worker.queue.replies import Put, Stats

#: Not text: invalid UTF-8, line breaks, NUL.
ANY_BYTES = b"\xff\xfe\r\n\x00 \x1b[31m"
NEVER = 2**53 - 1


# -- schedule ------------------------------------------------------------------------------


def test_a_waiting_task_stores_nothing_but_its_member(queue: DelayQueue) -> None:
    assert queue.schedule("a", 5000) is Scheduled.CREATED
    assert state(queue) == {"scheduled": {"a": 5000}}


def test_due_times_are_rounded_up_and_never_early(queue: DelayQueue) -> None:
    queue.schedule_many([("exact", 5000, b""), ("part", 5000.001, b""), ("most", 5000.999, b"")])
    assert state(queue) == {"scheduled": {"exact": 5000, "part": 5001, "most": 5001}}
    assert [task.id for task in queue.claim(9, 1000, now_ms=5000).tasks] == ["exact"]


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


def test_a_scheduled_task_moves_with_its_payload_replaced(queue: DelayQueue) -> None:
    queue.schedule("a", 5000, b"old")
    assert queue.schedule("a", 7000, b"new") is Scheduled.RESCHEDULED
    assert state(queue) == {"scheduled": {"a": 7000}, "payloads": {"a": b"new"}}
    assert queue.schedule("a", 6000) is Scheduled.RESCHEDULED
    assert state(queue) == {"scheduled": {"a": 6000}}


def test_a_new_payload_alone_is_a_change(queue: DelayQueue) -> None:
    queue.schedule("a", 5000, b"old")
    assert queue.schedule("a", 5000, b"new") is Scheduled.RESCHEDULED
    assert state(queue) == {"scheduled": {"a": 5000}, "payloads": {"a": b"new"}}


def test_scheduling_the_same_again_changes_nothing(queue: DelayQueue) -> None:
    queue.schedule("a", 5000, b"x")
    before = state(queue)
    assert queue.schedule("a", 5000, b"x") is Scheduled.UNCHANGED
    assert state(queue) == before


def test_rescheduling_a_task_in_backoff_resets_its_counts(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    [task] = queue.claim(1, 1000, now_ms=1000).tasks
    queue.retry([(task, 5000)], Put.FAILED, now_ms=1000)
    assert state(queue)["tokens"] == {"a": attempts(1000, span=5000, failures=1, before=1)}
    assert queue.schedule("a", 9000) is Scheduled.RESCHEDULED
    assert state(queue) == {"scheduled": {"a": 9000}}


def test_rescheduling_a_leased_task_fences_its_holder(queue: DelayQueue) -> None:
    queue.schedule("a", 1000, b"old")
    [task] = queue.claim(1, 1000, now_ms=1000).tasks
    assert queue.schedule("a", 9000, b"new") is Scheduled.RESCHEDULED
    rescheduled = {"scheduled": {"a": 9000}, "payloads": {"a": b"new"}}
    assert state(queue) == rescheduled
    with pytest.raises(LeaseLost):
        queue.ack([task])
    assert state(queue) == rescheduled


def test_scheduling_a_dead_task_says_dead_and_changes_nothing(queue: DelayQueue) -> None:
    bury(queue, "a")
    before = state(queue)
    assert queue.schedule("a", 5000, b"x") is Scheduled.DEAD
    assert state(queue) == before


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


@pytest.mark.parametrize(
    "payload", [b"\x00", b"\xff\xfe\x80", b"{", b"\r\n$5\r\n", bytes(range(256))]
)
def test_payloads_are_any_bytes_and_come_back_as_they_were(
    queue: DelayQueue, payload: bytes
) -> None:
    queue.schedule("a", 1000, payload)
    [task] = queue.claim(1, 1000, now_ms=1000).tasks
    assert task.payload == payload
    queue.dead_letter([(task, "bad", None)], now_ms=1000)
    assert queue.dead()[0].payload == payload


def test_ids_pushed_by_others_are_any_bytes_and_can_be_settled(
    client: redis.Redis, queue: DelayQueue
) -> None:
    client.zadd(queue.keys.scheduled, {ANY_BYTES: 1000})
    [task] = queue.claim(1, 1000, now_ms=1000).tasks
    assert task.id.encode(errors="surrogateescape") == ANY_BYTES
    queue.retry([(task, 1)], Put.FAILED, now_ms=1000)
    [task] = queue.claim(1, 1000, now_ms=1001).tasks
    queue.release([task])
    [task] = queue.claim(1, 1000, now_ms=1001).tasks
    queue.dead_letter([(task, "bad", None)], now_ms=1000)
    assert [letter.id for letter in queue.dead()] == [task.id]
    assert queue.requeue([task.id], now_ms=2000) == [task.id]
    assert state(queue) == {
        "scheduled": {task.id: 2000},
        "tokens": {task.id: attempts(2000, appointment=1000)},
    }
    queue.ack(queue.claim(1, 1000, now_ms=2000).tasks)
    assert state(queue) == {}


@pytest.mark.parametrize("score", [1000.5, -5, -1e18, -math.inf])
def test_a_due_time_pushed_by_others_is_never_fatal(
    client: redis.Redis, queue: DelayQueue, score: float
) -> None:
    client.zadd(queue.keys.scheduled, {"odd": score})
    [task] = queue.claim(1, 1000, now_ms=2000).tasks
    assert task.due_at_ms == max(0, math.floor(max(score, -1)))
    queue.release([task])
    queue.ack(queue.claim(1, 1000, now_ms=2000).tasks)
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


# -- the wake channel ----------------------------------------------------------------------


def test_a_message_is_published_only_when_the_head_moves_earlier(
    queue: DelayQueue, messages: Messages
) -> None:
    queue.schedule("a", 5000)
    assert messages.count() == 1
    queue.schedule_many([("later", 6000, b""), ("same", 5000, b""), ("a", 7000, b"")])
    assert messages.count() == 0
    queue.schedule_many([("earlier", 4000, b""), ("earliest", 3000, b"")])
    assert messages.count() == 1
    queue.restore([Due("b", 6000)], now_ms=0)
    assert messages.count() == 0
    queue.restore([Due("c", 2000)], now_ms=0)
    assert messages.count() == 1
    [task, other] = queue.claim(2, 1000, now_ms=3000).tasks
    queue.retry([(task, 90_000)], now_ms=3000)
    assert messages.count() == 0
    queue.retry([(other, 1)], now_ms=3000)
    assert messages.count() == 1


def test_a_release_a_requeue_and_a_resume_wake_workers(
    queue: DelayQueue, messages: Messages
) -> None:
    bury(queue, "a")
    messages.count()
    queue.requeue(["a"], now_ms=1000)
    assert messages.count() == 1
    tasks = queue.claim(1, 1000, now_ms=1000).tasks
    queue.release(tasks)
    assert messages.count() == 1
    queue.pause()
    assert messages.count() == 0
    queue.resume()
    assert messages.count() == 1
    queue.requeue(["unknown"], now_ms=1000)
    assert messages.count() == 0


# -- stats, pause --------------------------------------------------------------------------


def test_the_stats_of_an_empty_queue_are_zeros(queue: DelayQueue) -> None:
    assert queue.stats(now_ms=1000) == Stats(
        scheduled=0,
        due=0,
        due_within_minute=0,
        leased=0,
        dead=0,
        paused=False,
        next_due_in_ms=None,
        oldest_due_age_ms=0,
        oldest_dead_age_ms=0,
    )


def test_the_stats_count_each_place(queue: DelayQueue) -> None:
    bury(queue, "dead")
    queue.schedule("leased", 500)
    queue.claim(1, 1000, now_ms=500)
    waiting = {"overdue": 900, "due": 1000, "soon": 1001, "in a minute": 61_000, "later": 61_001}
    queue.schedule_many((name, due, b"") for name, due in waiting.items())
    queue.pause()
    assert queue.stats(now_ms=1000) == Stats(
        scheduled=5,
        due=2,
        due_within_minute=4,
        leased=1,
        dead=1,
        paused=True,
        next_due_in_ms=0,
        oldest_due_age_ms=100,
        oldest_dead_age_ms=999,
    )
    assert queue.stats(now_ms=800).next_due_in_ms == 100
    assert queue.stats(now_ms=800).oldest_due_age_ms == 0


def test_a_paused_queue_gives_nothing_out_until_it_is_resumed(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    queue.pause()
    assert state(queue) == {"scheduled": {"a": 1000}, "paused": "1"}
    claim = queue.claim(1, 1000, now_ms=9000)
    assert claim == ([], 9000, None, True)
    assert queue.memory.paused
    queue.resume()
    assert [task.id for task in queue.claim(1, 1000, now_ms=9000).tasks] == ["a"]
    assert not queue.memory.paused


def test_what_is_leased_can_be_settled_while_the_queue_is_paused(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    tasks = queue.claim(1, 1000, now_ms=1000).tasks
    queue.pause()
    queue.ack(tasks)
    assert state(queue) == {"paused": "1"}


def test_two_queues_on_one_server_do_not_meet(client: redis.Redis, queue: DelayQueue) -> None:
    other = DelayQueue(client, "other")
    queue.schedule("a", 1000)
    other.schedule("a", 2000)
    other.pause()
    queue.ack(queue.claim(9, 1000, now_ms=9000).tasks)
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
    assert claim.next_in_ms is None, "there are tasks"
    assert claim.now_ms >= now_ms
    wait = queue.claim(9, 60_000).next_in_ms
    assert wait is not None
    assert 0 < wait <= 60_000
    queue.retry([(claim.tasks[0], 60_000)])
    assert state(queue)["scheduled"]["past"] >= now_ms + 60_000


def test_tasks_come_in_the_order_of_their_due_times(queue: DelayQueue) -> None:
    due = list(range(1000, 1300))
    random.Random(1).shuffle(due)
    queue.schedule_many((f"{at}", at, b"") for at in due)
    assert [int(task.id) for task in queue.claim(1000, 1000, now_ms=9999).tasks] == sorted(due)


# -- destroy -------------------------------------------------------------------------------


def test_a_destroyed_queue_leaves_no_key_and_no_lease(
    client: redis.Redis, queue: DelayQueue
) -> None:
    other = DelayQueue(client, "other")
    other.schedule("a", 1)
    bury(queue, "dead")
    queue.schedule("suspect", 0)
    for now in (0, 10, 20):  # alone after its second death
        assert len(queue.claim(1, 5, now_ms=now).tasks) == 1
    queue.schedule_many([("held", 1, b"x"), ("waiting", 5000, b"y")])
    [task] = queue.claim(1, 1000, now_ms=1).tasks
    with reply_lost(queue):
        queue.claim(1, 1000, now_ms=2)
    queue.beat("w", {})
    queue.memory.silent_since = 0.0  # an outage
    queue.claim(1, 1000, now_ms=10**12)
    queue.claim(1, 1000, now_ms=1, waits_ms=1000)
    queue.restore([], worker_id="w", term_ms=1000)
    queue.seed("daily", 1, ("occurrence", 9000))
    queue.pause()
    keys = {key for key in vars(queue.keys).values() if key != queue.keys.wake}
    stored: Any = client.keys("{contract}:*")
    assert {key.decode() for key in stored} == keys

    queue.destroy()

    assert state(queue) == {}
    assert state(other) == {"scheduled": {"a": 1}}
    for settle in (queue.ack, queue.release, lambda held: queue.extend(held, 1000)):
        with pytest.raises(LeaseLost, match="held"):
            settle([task])
    with pytest.raises(LeaseLost, match="held"):
        queue.retry([(task, 1)])
    with pytest.raises(LeaseLost, match="held"):
        queue.dead_letter([(task, "bad", None)])
    assert state(queue) == {}


def test_a_destroyed_queue_can_be_used_again_at_once(queue: DelayQueue) -> None:
    bury(queue, "a")
    queue.destroy()
    assert queue.schedule("a", 1) is Scheduled.CREATED
    assert [task.id for task in queue.claim(1, 1000, now_ms=1).tasks] == ["a"]


def test_a_queue_that_is_not_there_can_be_destroyed(queue: DelayQueue) -> None:
    queue.destroy()
    assert state(queue) == {}


@pytest.mark.parametrize(("due", "second"), [(1001, "0001"), (1002, "1001")])
def test_in_a_backlog_oldest_and_newest_are_claimed_in_turn(
    queue: DelayQueue, due: int, second: str
) -> None:
    queue.schedule_many((f"{n:04}", 1000 + n, b"") for n in range(due))
    order = [queue.claim(1, 10_000, now_ms=5000).tasks[0].id for _ in range(3)]
    assert order == ["0000", second, "0001" if second == "1001" else "0002"]
