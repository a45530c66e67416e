"""Claiming and settling: who holds a valid lease may write, nobody else."""

from collections.abc import Callable

import pytest
import redis

from tests.contract.state import NOBODY, State, attempts, state
from tests.contract.steps import claimed_with_counts, one
from worker import DelayQueue, LeaseLost, Task
from worker.flow import MAX_BATCH_SIZE
from worker.queue.replies import Put

Settle = Callable[[DelayQueue, list[Task]], None]


def _putting_back(put: Put) -> Settle:
    return lambda queue, tasks: queue.retry([(task, 50) for task in tasks], put, now_ms=3000)


VERBS: dict[str, Settle] = {
    "ack": DelayQueue.ack,
    **{put: _putting_back(put) for put in Put},
    "release": DelayQueue.release,
    "dead_letter": lambda queue, tasks: queue.dead_letter(
        [(task, "bad", None) for task in tasks], now_ms=3000
    ),
}


#: What needs the lease: settling, and holding for longer.
FENCED: dict[str, Settle] = {
    **VERBS,
    "extend": lambda queue, tasks: queue.extend(tasks, 100, now_ms=3000),
}


@pytest.fixture(params=VERBS)
def settle(request: pytest.FixtureRequest) -> Settle:
    return VERBS[request.param]


@pytest.fixture(params=FENCED)
def write(request: pytest.FixtureRequest) -> Settle:
    return FENCED[request.param]


# -- claim ---------------------------------------------------------------------------------


def test_a_task_that_is_not_due_is_not_claimed(queue: DelayQueue) -> None:
    queue.schedule("a", 1001)
    before = state(queue)
    claim = queue.claim(9, 1000, now_ms=1000)
    assert (claim.tasks, claim.next_in_ms) == ([], 1)
    assert state(queue) == before


def test_a_task_is_claimed_in_the_millisecond_it_is_due(queue: DelayQueue) -> None:
    queue.schedule("a", 1000, b"x")
    claim = queue.claim(9, 500, now_ms=1000)
    [task] = claim.tasks
    assert task == Task(
        "a",
        b"x",
        failures=0,
        deliveries=0,
        due_at_ms=1000,
        token=task.token,
        attempt=1,
        appointment_ms=1000,
    )
    assert claim == ([task], 1000, None, False)
    assert state(queue) == {
        "leased": {"a": 1500},
        "tokens": {"a": attempts(1000, task.token, span=500, claimed=1000)},
        "payloads": {"a": b"x"},
    }


def test_an_empty_queue_gives_nothing_and_no_time_to_wait_for(queue: DelayQueue) -> None:
    claim = queue.claim(9, 1000, now_ms=1000)
    assert claim == ([], 1000, None, False)
    assert state(queue) == {}


def test_a_claim_takes_no_more_than_its_limit(queue: DelayQueue) -> None:
    queue.schedule_many((name, 1000, b"") for name in "abc")
    claim = queue.claim(2, 1000, now_ms=1000)
    assert [task.id for task in claim.tasks] == ["a", "b"]
    assert claim.next_in_ms is None, "whoever got tasks asks again anyway"
    assert state(queue)["scheduled"] == {"c": 1000}


def test_the_largest_batch_is_claimed_and_settled(queue: DelayQueue) -> None:
    queue.schedule_many((str(n), 1000, b"x") for n in range(MAX_BATCH_SIZE + 1))
    tasks = queue.claim(MAX_BATCH_SIZE, 1000, now_ms=1000).tasks
    assert len(tasks) == MAX_BATCH_SIZE
    queue.release(tasks)
    queue.ack(queue.claim(MAX_BATCH_SIZE, 1000, now_ms=1000).tasks)
    left = state(queue)
    assert len(left["scheduled"]) == len(left["payloads"]) == 1
    assert "leased" not in left


def test_a_claim_larger_than_a_script_can_hold_is_refused(queue: DelayQueue) -> None:
    queue.schedule_many((str(n), 0, b"") for n in range(4500))
    for limit in (-1, 0, MAX_BATCH_SIZE + 1, 4500):
        with pytest.raises(ValueError, match="a claim's limit is 1 to"):
            queue.claim(limit, 1000)
    assert queue.stats().scheduled == 4500


def test_each_claim_has_a_token_of_its_own(queue: DelayQueue) -> None:
    queue.schedule_many((name, 1000, b"") for name in "abcd")
    first = queue.claim(2, 1000, now_ms=1000).tasks
    second = queue.claim(2, 1000, now_ms=1000).tasks
    assert len({task.token for task in first}) == len({task.token for task in second}) == 1
    assert first[0].token != second[0].token
    assert len(first[0].token) == 64


def test_a_lease_holds_until_the_millisecond_it_ends(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    queue.claim(1, 500, now_ms=1000)
    before = state(queue)
    claim = queue.claim(1, 500, now_ms=1499)
    assert (claim.tasks, claim.next_in_ms) == ([], 1)
    assert state(queue) == before
    assert queue.claim(1, 500, now_ms=1500).tasks[0].deliveries == 1


@pytest.mark.parametrize("kept", ["", "short", "x" * 80])
def test_a_lease_whose_token_was_spoiled_ends_like_any_other(queue: DelayQueue, kept: str) -> None:
    queue.schedule("a", 1000)
    queue.claim(1, 500, now_ms=1000)
    queue._redis.hset(queue.keys.tokens, "a", kept)
    [task] = queue.claim(1, 500, now_ms=2000).tasks
    assert task == Task(
        "a", deliveries=1, due_at_ms=2000, token=task.token, attempt=2, appointment_ms=2000
    )
    queue.ack([task])
    assert state(queue) == {}


def test_each_further_expired_lease_counts_one_delivery(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    for n in range(5):
        assert queue.claim(1, 10, now_ms=1000 + 10 * n).tasks[0].deliveries == n


def test_the_time_to_wait_is_to_the_next_due_task_or_lease_end(queue: DelayQueue) -> None:
    queue.schedule_many([("a", 1000, b""), ("b", 4000, b"")])
    assert queue.claim(1, 9000, now_ms=900).next_in_ms == 100
    assert queue.claim(1, 9000, now_ms=1000).next_in_ms is None, "there is a task"
    assert queue.claim(1, 9000, now_ms=1000).next_in_ms == 3000
    assert queue.claim(1, 9000, now_ms=3999).next_in_ms == 1
    assert len(queue.claim(1, 9000, now_ms=4000).tasks) == 1
    assert queue.claim(1, 9000, now_ms=4000).next_in_ms == 6000


def test_the_time_to_wait_is_not_rounded_up_to_the_millisecond(queue: DelayQueue) -> None:
    queue.schedule("a", 10_000_000_000_000)
    waits = [queue.claim(1, 1000).next_in_ms for _ in range(20)]
    assert any(wait and wait % 1 for wait in waits)


def test_an_expired_lease_is_claimed_alone_before_due_tasks(
    queue: DelayQueue,
) -> None:
    queue.schedule("orphan", 1000, b"x")
    queue.claim(1, 500, now_ms=1000)
    queue.schedule_many([("b", 900, b""), ("c", 901, b"")])
    claim = queue.claim(100, 500, now_ms=2000)
    [task] = claim.tasks
    assert task == Task(
        "orphan",
        b"x",
        deliveries=1,
        due_at_ms=1000,
        token=task.token,
        attempt=2,
        appointment_ms=1000,
    )
    assert state(queue) == {
        "scheduled": {"b": 900, "c": 901},
        "leased": {"orphan": 2500},
        "tokens": {
            "orphan": attempts(1000, task.token, span=500, deliveries=1, before=1, claimed=2000)
        },
        "payloads": {"orphan": b"x"},
    }


#: What a later release may append to a record: numbers, words.
NOTES = ["", " 7", " 7 cancelling x"]


@pytest.mark.parametrize("notes", NOTES)
@pytest.mark.parametrize(
    "put_back", [DelayQueue.release, *(VERBS[put] for put in Put)], ids=["release", *Put]
)
def test_what_another_release_appended_is_kept(
    queue: DelayQueue, notes: str, put_back: Settle
) -> None:
    queue.schedule("a", 1000, b"x")
    tasks = queue.claim(1, 5000, now_ms=1000).tasks
    _append(queue, notes)
    queue.extend(tasks, 6000, now_ms=1000)
    put_back(queue, tasks)
    task = one(queue, 4000)
    assert (task.payload, task.deliveries) == (b"x", 0)
    assert state(queue)["tokens"]["a"].endswith(f" 4000{notes}")
    queue.cancel("a")
    assert state(queue)["tokens"]["a"].endswith(f"{notes} cancelled")
    _append(queue, notes)
    queue.release([task])
    assert state(queue) == {}


@pytest.mark.parametrize("notes", [*NOTES, " cancelled", " 3 4 5 6 7"])
def test_a_record_of_another_version_loses_no_task(queue: DelayQueue, notes: str) -> None:
    queue.schedule("a", 1000, b"x")
    tasks = queue.claim(1, 5000, now_ms=1000).tasks
    queue._redis.hset(queue.keys.tokens, "a", f"{tasks[0].token}v2 1 2{notes}")
    queue.retry([(tasks[0], 0)], Put.FAILED, now_ms=2000)
    task = one(queue, 2000)
    assert (task.payload, task.failures) == (b"x", 1), "its numbers may mean anything"


def _append(queue: DelayQueue, notes: str) -> None:
    kept = state(queue)["tokens"]["a"]
    queue._redis.hset(queue.keys.tokens, "a", kept + notes)


# -- settle with a valid token -------------------------------------------------------------


def test_an_extended_lease_ends_later_and_nothing_else_changes(queue: DelayQueue) -> None:
    queue.schedule_many([("a", 0, b"x"), ("b", 0, b"")])
    tasks = queue.claim(2, 100, now_ms=1000).tasks
    before = state(queue)
    queue.extend(tasks[:1], 100, now_ms=1090)
    assert state(queue) == before | {"leased": {"a": 1190, "b": 1100}}
    assert [task.id for task in queue.claim(2, 100, now_ms=1189).tasks] == ["b"]
    queue.ack(tasks[:1])
    assert list(state(queue)["leased"]) == ["b"]


def test_an_extension_is_counted_from_the_servers_clock(queue: DelayQueue) -> None:
    queue.schedule("a", 0)
    tasks = queue.claim(1, 60_000).tasks
    [first] = state(queue)["leased"].values()
    queue.extend(tasks, 120_000)
    [second] = state(queue)["leased"].values()
    assert 60_000 <= second - first < 120_000


def test_an_acked_task_leaves_nothing_behind(queue: DelayQueue) -> None:
    [task] = claimed_with_counts(queue)
    queue.ack([task])
    assert state(queue) == {}


def test_counts_are_reset_by_an_ack(queue: DelayQueue) -> None:
    queue.ack(claimed_with_counts(queue))
    queue.schedule("a", 3000)
    [task] = queue.claim(1, 1000, now_ms=3000).tasks
    assert task == Task("a", due_at_ms=3000, token=task.token, appointment_ms=3000)


def test_a_failed_task_comes_back_with_a_failure_counted(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", 1000, b"x")
    for failures in range(3):
        task = one(queue, 2000 + 50 * failures)
        assert task.failures == failures
        queue.retry([(task, 49.2)], Put.FAILED, now_ms=2000 + 50 * failures)
    assert state(queue) == {
        "scheduled": {"a": 2150},
        "payloads": {"a": b"x"},
        "tokens": {"a": attempts(1000, span=50, failures=3, before=3)},
    }


def test_a_retry_has_a_new_due_time_and_its_counts_reset(
    queue: DelayQueue,
) -> None:
    [task] = claimed_with_counts(queue)
    queue.retry([(task, 0.5)], Put.AGAIN, now_ms=3000)
    assert state(queue) == {
        "scheduled": {"a": 3001},
        "payloads": {"a": b"x"},
        "tokens": {"a": attempts(3001, span=1001, appointment=1000, before=3)},
    }
    assert one(queue, 3001).due_at_ms == 3001


def test_a_new_appointment_counts_from_the_start(
    queue: DelayQueue,
) -> None:
    [task] = claimed_with_counts(queue)
    queue.retry([(task, 0.5)], Put.NEW, now_ms=3000)
    assert state(queue) == {
        "scheduled": {"a": 3001},
        "payloads": {"a": b"x"},
        "tokens": {"a": attempts(3001, span=1001)},
    }


@pytest.mark.parametrize("delay_ms", [-5, -0.5, -(2**52)])
@pytest.mark.parametrize("put", [Put.FAILED, Put.AGAIN])
def test_a_delay_in_the_past_loses_nothing_of_what_was_counted(
    queue: DelayQueue, put: Put, delay_ms: float
) -> None:
    [task] = claimed_with_counts(queue)
    queue.retry([(task, delay_ms)], put, now_ms=3000)
    again = one(queue, 3000)
    assert (again.attempt, again.idempotency_key) == (4, task.idempotency_key)
    assert (again.failures, again.deliveries) == ((2, 1) if put is Put.FAILED else (0, 0))
    queue.retry([(again, 0)], Put.FAILED, now_ms=3000)
    assert one(queue, 3000).attempt == 5


def test_a_failure_does_not_hide_the_deliveries(queue: DelayQueue) -> None:
    [task] = claimed_with_counts(queue)
    queue.retry([(task, 1)], Put.FAILED, now_ms=3000)
    [task] = queue.claim(1, 1000, now_ms=3001).tasks
    assert (task.failures, task.deliveries) == (2, 1)


def test_a_released_task_has_its_due_time_and_counts_back(
    queue: DelayQueue,
) -> None:
    [task] = claimed_with_counts(queue)
    queue.release([task])
    assert state(queue) == {
        "scheduled": {"a": 1000},
        "payloads": {"a": b"x"},
        "tokens": {"a": attempts(1000, failures=1, deliveries=1, before=2)},
    }


def test_a_buried_task_keeps_its_payload_and_tells_its_story(queue: DelayQueue) -> None:
    [task] = claimed_with_counts(queue)
    queue.dead_letter([(task, "no use", KeyError("sku"))], now_ms=3000)
    assert state(queue) == {
        "dead": ["a"],
        "letters": {
            "a": {
                "reason": "no use",
                "error": "KeyError: 'sku'",
                "traceback": "KeyError: 'sku'\n",
                "failures": 1,
                "deliveries": 1,
                "due_at_ms": 1000,
                "died_at_ms": 3000,
            }
        },
        "payloads": {"a": b"x"},
        "tokens": {"a": attempts(1000, span=10, failures=1, deliveries=1, before=2)},
    }


def test_settling_no_tasks_is_nothing(queue: DelayQueue, write: Settle) -> None:
    write(queue, [])
    assert state(queue) == {}


def test_tasks_of_two_claims_are_not_settled_in_one_call(queue: DelayQueue, settle: Settle) -> None:
    queue.schedule_many((name, 1000, b"") for name in "ab")
    tasks = [queue.claim(1, 1000, now_ms=1000).tasks[0] for _ in "ab"]
    before = state(queue)
    with pytest.raises(ValueError, match="several claims"):
        settle(queue, tasks)
    assert state(queue) == before


def test_tasks_of_several_claims_are_extended_in_one_call(queue: DelayQueue) -> None:
    queue.schedule_many((name, 1000, b"") for name in "abc")
    tasks = [queue.claim(1, 1000, now_ms=1000).tasks[0] for _ in "abc"]
    queue.ack(tasks[1:2])
    with pytest.raises(LeaseLost) as lost:
        queue.extend(tasks, 5000, now_ms=1500)
    assert lost.value.ids == ("b",)
    assert state(queue)["leased"] == {"a": 6500, "c": 6500}


# -- settle without one --------------------------------------------------------------------


def test_a_token_is_void_once_another_worker_has_the_task(queue: DelayQueue, write: Settle) -> None:
    queue.schedule("a", 1000, b"x")
    stale = queue.claim(1, 100, now_ms=1000).tasks
    queue.claim(1, 100, now_ms=2000)
    _assert_writes_nothing(queue, write, stale)


def test_a_token_is_void_for_the_same_id_and_time_scheduled_again(
    queue: DelayQueue, write: Settle
) -> None:
    queue.schedule("a", 1000, b"x")
    stale = queue.claim(1, 100, now_ms=1000).tasks
    queue.schedule("a", 1000, b"y")
    for now in (1200, 1400):  # a later attempt than the stale one
        [task] = queue.claim(1, 100, now_ms=now).tasks
        assert task.payload == b"y"
    _assert_writes_nothing(queue, write, stale)


def test_a_token_is_void_once_the_task_is_rescheduled(queue: DelayQueue, write: Settle) -> None:
    queue.schedule("a", 1000, b"x")
    stale = queue.claim(1, 100, now_ms=1000).tasks
    queue.schedule("a", 5000, b"y")
    _assert_writes_nothing(queue, write, stale)


@pytest.mark.parametrize("put_back", [DelayQueue.release, VERBS["failed"], VERBS["dead_letter"]])
def test_what_stands_where_no_token_does_is_no_proof(
    queue: DelayQueue, put_back: Settle, write: Settle
) -> None:
    queue.schedule("a", 1000)
    tasks = queue.claim(1, 1000, now_ms=1000).tasks
    put_back(queue, tasks)
    _assert_writes_nothing(queue, write, [tasks[0]._replace(token=NOBODY)])


def test_no_token_is_no_proof(queue: DelayQueue, write: Settle) -> None:
    queue.schedule("a", 1000)
    [task] = queue.claim(1, 1000, now_ms=1000).tasks
    before = state(queue)
    for token in ("", task.token[:32], f"{task.token}1000", NOBODY):
        with pytest.raises(LeaseLost):
            write(queue, [task._replace(token=token)])
    assert state(queue) == before


@pytest.mark.parametrize("first", VERBS.values(), ids=VERBS)
def test_a_token_is_void_once_it_was_used(queue: DelayQueue, first: Settle, write: Settle) -> None:
    queue.schedule("a", 1000, b"x")
    tasks = queue.claim(1, 100, now_ms=1000).tasks
    first(queue, tasks)
    _assert_writes_nothing(queue, write, tasks)


def test_a_token_is_void_after_a_flush_even_for_the_same_task(
    client: redis.Redis, queue: DelayQueue, write: Settle
) -> None:
    queue.schedule("a", 1000)
    stale = queue.claim(1, 100, now_ms=1000).tasks
    client.flushall()
    queue.schedule("a", 1000)
    queue.claim(1, 100, now_ms=1000)
    _assert_writes_nothing(queue, write, stale)


def test_an_expired_lease_nobody_has_taken_is_still_its_holders(
    queue: DelayQueue, settle: Settle
) -> None:
    queue.schedule("a", 1000)
    tasks = queue.claim(1, 100, now_ms=1000).tasks
    settle(queue, tasks)
    assert "leased" not in state(queue)


def test_lost_leases_are_named_while_the_others_are_settled(
    queue: DelayQueue, settle: Settle
) -> None:
    queue.schedule_many((name, 1000, b"") for name in "abc")
    tasks = queue.claim(3, 100, now_ms=1000).tasks
    queue.schedule("b", 7000)
    with pytest.raises(LeaseLost) as lost:
        settle(queue, tasks)
    assert lost.value.ids == ("b",)
    after = state(queue)
    assert "leased" not in after
    assert {kept[:64] for kept in after.get("tokens", {}).values()} <= {NOBODY}
    settled = {**after.get("scheduled", {}), **after.get("letters", {})}
    assert settled.pop("b") == 7000
    assert set(settled) == (set() if settle is VERBS["ack"] else {"a", "c"})


def test_lost_leases_are_named_across_slices(queue: DelayQueue) -> None:
    queue.schedule_many((f"{n:04}", 1000, b"") for n in range(1200))
    tasks = queue.claim(1200, 100, now_ms=1000).tasks
    queue.schedule_many([("0001", 7000, b""), ("1100", 7000, b"")])
    with pytest.raises(LeaseLost, match="0001, 1100"):
        queue.ack(tasks)
    assert state(queue) == {"scheduled": {"0001": 7000, "1100": 7000}}


def _assert_writes_nothing(queue: DelayQueue, settle: Settle, tasks: list[Task]) -> None:
    before: State = state(queue)
    with pytest.raises(LeaseLost) as lost:
        settle(queue, tasks)
    assert lost.value.ids == tuple(task.id for task in tasks)
    assert state(queue) == before
