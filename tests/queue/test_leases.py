"""Claiming and settling: who holds a valid lease may write, nobody else."""

from collections.abc import Callable

import pytest
import redis

from tests.kit.queue_state import NOBODY, State, state
from tests.kit.queue_steps import PUTS, claimed_with_counts, one
from tests.kit.settling import ack, dead_letter, release, retry
from tests.queue.conftest import REAL
from worker import DelayQueue, LeaseLost, Task
from worker.flow import MAX_BATCH_SIZE
from worker.queue.replies import Settlement, Verb

Settle = Callable[[DelayQueue, list[Task]], None]


def _putting_back(verb: Verb) -> Settle:
    return lambda queue, tasks: retry(queue, [(task, 50) for task in tasks], verb, now_ms=3000)


VERBS: dict[str, Settle] = {
    "ack": ack,
    **{verb: _putting_back(verb) for verb in PUTS},
    "release": release,
    "dead_letter": lambda queue, tasks: dead_letter(
        queue, [(task, "bad", None) for task in tasks], now_ms=3000
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


def test_the_largest_batch_is_claimed_and_settled(queue: DelayQueue) -> None:
    queue.schedule_many((str(n), 1000, b"x") for n in range(MAX_BATCH_SIZE + 1))
    tasks = queue.claim(MAX_BATCH_SIZE, 1000, now_ms=1000).tasks
    assert len(tasks) == MAX_BATCH_SIZE
    release(queue, tasks)
    ack(queue, queue.claim(MAX_BATCH_SIZE, 1000, now_ms=1000).tasks)
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


@pytest.mark.parametrize("kept", ["", "short", "x" * 80])
def test_a_lease_whose_token_was_spoiled_ends_like_any_other(queue: DelayQueue, kept: str) -> None:
    queue.schedule("a", 1000)
    queue.claim(1, 500, now_ms=1000)
    queue._redis.hset(queue.keys.tokens, "a", kept)
    [task] = queue.claim(1, 500, now_ms=2000).tasks
    assert task == Task(
        "a", deliveries=1, due_at_ms=2000, token=task.token, attempt=2, appointment_ms=2000
    )
    ack(queue, [task])
    assert state(queue) == {}


def test_the_time_to_wait_is_not_rounded_up_to_the_millisecond(queue: DelayQueue) -> None:
    queue.schedule("a", 10_000_000_000_000)
    waits = [queue.claim(1, 1000).next_in_ms for _ in range(20)]
    assert any(wait and wait % 1 for wait in waits)


@pytest.mark.parametrize("notes", ["", " 7", " 3 4 5 6 7 x"])
def test_a_record_of_another_version_loses_no_task(queue: DelayQueue, notes: str) -> None:
    queue.schedule("a", 1000, b"x")
    tasks = queue.claim(1, 5000, now_ms=1000).tasks
    queue._redis.hset(queue.keys.tokens, "a", f"{tasks[0].token}v2 1 2{notes}")
    retry(queue, [(tasks[0], 0)], Verb.FAILED, now_ms=2000)
    task = one(queue, 2000)
    assert (task.payload, task.failures) == (b"x", 1), "its numbers may mean anything"


# -- settle with a valid token -------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [-5, -0.5, -(2**52)])
@pytest.mark.parametrize("put", [Verb.FAILED, Verb.AGAIN])
def test_a_delay_in_the_past_loses_nothing_of_what_was_counted(
    queue: DelayQueue, put: Verb, delay_ms: float
) -> None:
    [task] = claimed_with_counts(queue)
    retry(queue, [(task, delay_ms)], put, now_ms=3000)
    again = one(queue, 3000)
    assert (again.attempt, again.idempotency_key) == (4, task.idempotency_key)
    assert (again.failures, again.deliveries) == ((2, 1) if put is Verb.FAILED else (0, 0))
    retry(queue, [(again, 0)], Verb.FAILED, now_ms=3000)
    assert one(queue, 3000).attempt == 5


def test_settling_no_tasks_is_nothing(queue: DelayQueue, write: Settle) -> None:
    write(queue, [])
    assert state(queue) == {}


def test_tasks_of_several_claims_are_settled_in_one_call_each_once(queue: DelayQueue) -> None:
    queue.schedule_many((name, 1000, b"x") for name in "abcd")
    tasks = [queue.claim(1, 1000, now_ms=1000).tasks[0] for _ in "abcd"]
    verbs = [Verb.DONE, Verb.DEAD, Verb.RELEASED, Verb.LATER]
    rows = [Settlement([task], verb, 9) for task, verb in zip(tasks, verbs, strict=True)]
    with pytest.raises(LeaseLost, match="a, d"):
        queue.settle([*rows, Settlement([tasks[0]], Verb.LATER), rows[3]], now_ms=2000)
    after = state(queue)
    assert (after["scheduled"], after["dead"]) == ({"c": 1000, "d": 2009}, ["b"])
    assert after["payloads"].keys() == {*"bcd"}


def test_tasks_of_several_claims_are_extended_in_one_call(queue: DelayQueue) -> None:
    queue.schedule_many((name, 1000, b"") for name in "abc")
    tasks = [queue.claim(1, 1000, now_ms=1000).tasks[0] for _ in "abc"]
    ack(queue, tasks[1:2])
    with pytest.raises(LeaseLost) as lost:
        queue.extend(tasks, 5000, now_ms=1500)
    assert lost.value.ids == ("b",)
    assert state(queue)["leased"] == {"a": 6500, "c": 6500}


# -- settle without one --------------------------------------------------------------------


@pytest.mark.parametrize("put_back", [release, VERBS["failed"], VERBS["dead_letter"]])
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


def test_who_runs_a_task_settles_no_other_of_the_same_id_and_time(queue: DelayQueue) -> None:
    """Its ack may come late, or twice."""
    queue.schedule("a", 1000, b"old")
    old = one(queue, 1000)
    queue.schedule("a", 1000, b"new")
    with pytest.raises(LeaseLost):
        ack(queue, [old])
    new = one(queue, 1000)
    assert new.payload == b"new"
    with pytest.raises(LeaseLost):
        ack(queue, [old])
    ack(queue, [new])
    assert state(queue) == {}


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
        ack(queue, tasks)
    assert state(queue) == {"scheduled": {"0001": 7000, "1100": 7000}}


def _assert_writes_nothing(queue: DelayQueue, settle: Settle, tasks: list[Task]) -> None:
    before: State = state(queue)
    with pytest.raises(LeaseLost) as lost:
        settle(queue, tasks)
    assert lost.value.ids == tuple(task.id for task in tasks)
    assert state(queue) == before


def test_what_is_done_leaves_with_the_next_claim(client: redis.Redis, queue: DelayQueue) -> None:
    queue.schedule_many([("a", 1000, b"x"), ("b", 1001, b"")])
    with queue.line.opened():
        done = [Settlement(queue.claim(1, 10_000).tasks, Verb.DONE)]
        client.script_flush()
        settled, claimed = queue.settle_and_claim(done, 1, 10_000)
        settled()
        assert [task.id for task in claimed().tasks] == ["b"]
        assert [*state(queue)["tokens"]] == [*state(queue)["leased"]] == ["b"]
        settled, claimed = queue.settle_and_claim(done, 1, 10_000)
        with pytest.raises(LeaseLost, match="a"):
            settled()
        assert not claimed().tasks


@pytest.mark.parametrize("server", REAL, indirect=True, scope="session")
def test_a_line_connects_again_and_tells_each_command_what_failed(
    client: redis.Redis, queue: DelayQueue
) -> None:
    with queue.line.opened():
        assert queue.line.send(("ECHO", b"1"), ("NONSENSE",), ("ECHO", b"2"))[::2] == [b"1", b"2"]
        client.client_kill_filter(_type="normal", skipme=True)
        assert queue.line.send(("ECHO", b"3")) == [b"3"]
