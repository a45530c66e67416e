"""Deaths and lost replies: what counts as a delivery, and how the task that kills is found."""

from typing import Any
from unittest.mock import patch

import pytest
import redis

from tests.contract.conftest import REAL
from tests.contract.state import attempts, state
from tests.contract.steps import never_sent, one, reply_lost
from tests.unit.engine import Clock
from worker import DelayQueue, Task
from worker.queue.replies import Put
from worker.queue.scripted import ScriptedQueue
from worker.queue.worker_side import MAX_LOST_CLAIMS

HOUR = 3_600_000


@pytest.fixture
def other(client: redis.Redis, queue: DelayQueue) -> DelayQueue:
    """The same queue in another worker."""
    return DelayQueue(client, queue.name)


# -- suspects ------------------------------------------------------------------------------


def test_after_a_death_the_batch_comes_a_few_at_a_time(
    queue: DelayQueue,
) -> None:
    batch = {f"{n:03}" for n in range(500)}
    queue.schedule_many((task_id, 1000, b"") for task_id in batch)
    assert len(queue.claim(500, 100, now_ms=1000).tasks) == 500
    queue.schedule_many((f"due {n}", 900, b"") for n in range(500))
    due = state(queue)["scheduled"]
    sizes, seen = [], set()
    for _claim in range(23):
        tasks = queue.claim(500, 100, now_ms=1100).tasks
        assert {task.deliveries for task in tasks} == {1}
        sizes.append(len(tasks))
        seen |= {task.id for task in tasks}
        now = state(queue)
        assert now["scheduled"] == due, "nothing is handed back, nothing that is due is touched"
        assert {*now["leased"]} == batch
    assert sizes == [22] * 22 + [16]
    assert seen == batch
    assert {task.id for task in queue.claim(500, 100, now_ms=1100).tasks} == {*due}


@pytest.mark.parametrize(("limit", "few"), [(1, 1), (3, 1), (4, 2), (99, 9), (100, 10), (2000, 44)])
def test_a_few_are_the_root_of_the_limit(queue: DelayQueue, limit: int, few: int) -> None:
    queue.schedule_many((f"{n}", 1000, b"") for n in range(2000))
    queue.claim(2000, 100, now_ms=1000)
    assert len(queue.claim(limit, 100, now_ms=1100).tasks) == few


def test_after_a_second_death_each_comes_alone(queue: DelayQueue) -> None:
    queue.schedule_many((f"{n}", 1000, b"") for n in range(3))
    queue.claim(9, 100, now_ms=1000)
    assert len(queue.claim(9, 100, now_ms=1100).tasks) == 3
    for name in "012":
        [task] = queue.claim(9, 100, now_ms=1200).tasks
        assert (task.id, task.deliveries) == (name, 2)
        queue.ack([task])
    assert queue.claim(9, 100, now_ms=1200).tasks == []


def test_a_suspect_of_two_deaths_waits_while_one_is_alone(queue: DelayQueue) -> None:
    queue.schedule_many([("1 killer", 1000, b""), ("2 innocent", 1001, b"")])
    queue.claim(9, 100, now_ms=1001)
    queue.claim(9, 100, now_ms=1101)
    queue.schedule("fresh", 1000)
    killer = one(queue, 1201, lease_ms=1000)
    assert killer.id == "1 killer"
    assert one(queue, 1201).id == "fresh"  # whoever dies now, the innocent is not held
    assert queue.claim(9, 100, now_ms=1202).next_in_ms is not None
    queue.ack([killer])
    innocent = one(queue, 1301)
    assert (innocent.id, innocent.deliveries) == ("2 innocent", 2)


def test_a_suspect_that_outlives_a_lease_keeps_none_waiting(queue: DelayQueue) -> None:
    queue.schedule_many([("1 slow", 1000, b""), ("2 innocent", 1001, b"")])
    queue.claim(9, 99, now_ms=1001)
    queue.claim(9, 99, now_ms=1100)
    slow = one(queue, 1200, lease_ms=99)
    for now in (1233, 1266, 1298):
        queue.extend([slow], 99, now_ms=now)
        assert queue.claim(9, 99, now_ms=now).tasks == []
    queue.extend([slow], 99, now_ms=1331)
    assert one(queue, 1400).id == "2 innocent"


@pytest.mark.parametrize("killer", ["a killer", "z killer"])
@pytest.mark.parametrize("kills_after_ms", [0, 20, 50, 90])
def test_a_killer_buries_no_suspect_that_takes_long(
    queue: DelayQueue, killer: str, kills_after_ms: int
) -> None:
    """One worker with threads for all, which is started again at once. The innocent take ten leases."""
    names = [killer, *(f"i{n}" for n in range(6))]
    queue.schedule_many((name, 1000, b"") for name in names)
    queue.claim(9, 100, now_ms=1000)
    queue.claim(99, 100, now_ms=1100)
    held: dict[str, tuple[Task, int]] = {}
    done: dict[str, int] = {}
    for now in range(1200, 9000, 10):
        if killer in held and now >= held[killer][1] + kills_after_ms:
            held.clear()
        for task, began in [*held.values()]:
            if now >= began + 1000:
                queue.ack([task])
                done[task.id] = held.pop(task.id)[0].deliveries
            elif (now - began) % 30 == 0 and now > began:
                queue.extend([task], 100, now_ms=now)
        for task in queue.claim(1, 100, now_ms=now).tasks:
            assert task.deliveries < 5 or task.id == killer
            if task.deliveries < 5:
                held[task.id] = task, now
            else:
                queue.dead_letter([(task, "delivered too often", None)], now_ms=now)
        if len(done) == 6:
            break
    assert state(queue)["letters"].keys() == {killer}
    assert done.keys() == {*names} - {killer}
    assert now < 1200 + 6 * 1000, "they did not wait for one another"


def test_a_killer_buries_no_task_of_its_workers_other_threads(queue: DelayQueue) -> None:
    """Four threads claim one task each, and all die with the killer as soon as it is claimed."""
    queue.schedule_many((name, 1000, b"") for name in ("killer", "i0", "i1", "i2"))
    now, most = 1000, 0
    for _death in range(9):
        tasks = [task for _ in range(4) for task in queue.claim(1, 100, now_ms=now).tasks]
        for task in tasks:
            if task.id != "killer":
                most = max(most, task.deliveries)
                if "killer" not in {each.id for each in tasks}:
                    queue.ack([task])
            elif task.deliveries == 5:
                queue.dead_letter([(task, "delivered too often", None)], now_ms=now)
        now += 300
    assert state(queue)["dead"] == ["killer"]
    assert most <= 2
    assert set(state(queue)) == {"dead", "letters", "tokens", "alone"}


def test_a_suspect_that_was_put_back_comes_alone_too(queue: DelayQueue) -> None:
    queue.schedule_many([("suspect", 1000, b""), ("a", 1001, b""), ("b", 1001, b"")])
    queue.claim(1, 100, now_ms=1000)
    queue.release([one(queue, 1100)])
    assert one(queue, 1200).id == "suspect"
    assert [task.id for task in queue.claim(9, 100, now_ms=1200).tasks] == ["a", "b"]


def test_a_suspect_put_back_is_passed_over_until_it_is_first(
    queue: DelayQueue,
) -> None:
    queue.schedule("suspect", 1000)
    queue.claim(1, 100, now_ms=1000)
    queue.retry([(one(queue, 1100), 100)], Put.FAILED, now_ms=1100)
    queue.schedule_many([("a", 1001, b""), ("b", 1300, b"")])
    assert [task.id for task in queue.claim(9, 100, now_ms=1300).tasks] == ["a", "b"]
    assert one(queue, 1300).id == "suspect"


@pytest.mark.parametrize(("lease_ms", "order"), [(101, ["twice", "once"]), (50, ["once", "twice"])])
def test_suspects_of_one_and_two_deaths_are_not_mixed(
    queue: DelayQueue, lease_ms: int, order: list[str]
) -> None:
    queue.schedule("twice", 1000)
    queue.claim(9, 100, now_ms=1000)
    queue.claim(9, 100, now_ms=1100)
    queue.schedule("once", 1000)
    queue.claim(9, lease_ms, now_ms=1100)
    assert [one(queue, 1300).id for _ in order] == order


@pytest.mark.parametrize("killers", [{"250"}, {"000"}, {"499"}, {"100", "101", "400"}])
def test_a_killers_neighbors_get_two_deliveries_at_most(
    queue: DelayQueue, killers: set[str]
) -> None:
    queue.schedule_many((f"{n:03}", 1000, b"") for n in range(500))
    deaths, now = 0, 1000
    deliveries: dict[str, int] = {}
    while len(deliveries) < 500 or state(queue).get("leased"):
        tasks = queue.claim(500, 100, now_ms=now).tasks
        deliveries |= {task.id: task.deliveries for task in tasks}
        given_up = [task for task in tasks if task.deliveries >= 5]
        queue.dead_letter([(task, "kills", None) for task in given_up], now_ms=now)
        handled = [task for task in tasks if task.deliveries < 5]
        if killers & {task.id for task in handled}:
            deaths += 1
            now += 100
        else:
            queue.ack(handled)
    assert {*state(queue)["dead"]} == {*state(queue)["tokens"]} == killers
    assert max(times for task_id, times in deliveries.items() if task_id not in killers) <= 2
    assert deaths <= 1 + 4 * len(killers)


# -- lost replies --------------------------------------------------------------------------


def test_a_real_death_counts_a_delivery_and_an_attempt(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    for deaths in range(6):
        task = one(queue, 1000 + 100 * deaths)
        assert (task.deliveries, task.attempt) == (deaths, deaths + 1)


@pytest.mark.parametrize("error", [redis.TimeoutError, redis.ConnectionError])
def test_a_claim_whose_reply_was_lost_counts_nothing(
    queue: DelayQueue, error: type[redis.RedisError]
) -> None:
    queue.schedule("a", 1000)
    with reply_lost(queue, error):
        queue.claim(1, 100, now_ms=1000)
    assert state(queue)["leased"] == {"a": 1100}
    task = one(queue, 1001)
    assert (task.deliveries, task.attempt) == (0, 1)


def test_only_what_lost_claims_leased_is_given_back(queue: DelayQueue, other: DelayQueue) -> None:
    queue.schedule_many((f"{n:04}", 900 + n, b"x") for n in range(2500))
    theirs = other.claim(500, 10_000, now_ms=9000).tasks
    with reply_lost(queue):
        queue.claim(2000, 10_000, now_ms=9000)
    assert queue.claim(1, 10_000, now_ms=9001).tasks[0].id == "0500", "one of those"
    before = state(queue)
    assert before["leased"] == {
        **dict.fromkeys((task.id for task in theirs), 19_000),
        "0500": 19_001,
    }
    assert before["scheduled"] == {f"{n:04}": 900 + n for n in range(501, 2500)}


@pytest.mark.parametrize("server", REAL, indirect=True, scope="session")
def test_a_lost_reply_costs_the_same_in_a_long_queue(
    client: redis.Redis, queue: DelayQueue, other: DelayQueue
) -> None:
    queue.schedule_many((f"{n:04}", 1000, b"") for n in range(6000))
    while other.claim(2000, 10_000, now_ms=1000).tasks:
        pass
    queue.schedule("a", 1000)
    with reply_lost(queue):
        queue.claim(1, 10_000, now_ms=1001)
    client.config_resetstat()
    assert one(queue, 1002).id == "a"
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_hmget"]["calls"] == 2, "one of them for the tasks of the lost claim"


def test_a_suspect_of_a_lost_claim_stays_one_unless_cancelled(
    queue: DelayQueue,
) -> None:
    queue.schedule_many([("a", 1000, b"x"), ("b", 1001, b"x")])
    queue.claim(2, 100, now_ms=1001)
    with reply_lost(queue):
        queue.claim(4, 100, now_ms=1101)
    queue.cancel("b")
    task = one(queue, 1102)
    assert (task.id, task.deliveries, task.attempt) == ("a", 1, 2)
    queue.ack([task])
    assert state(queue).keys() == {"lost_claims"}


def test_a_claim_that_redis_refused_was_not_lost(queue: DelayQueue) -> None:
    with reply_lost(queue, redis.ResponseError):
        queue.claim(1, 100, now_ms=1000)
    queue.claim(1, 100, now_ms=1000)
    assert state(queue) == {}


def test_replies_lost_for_long_count_no_delivery(queue: DelayQueue, other: DelayQueue) -> None:
    queue.schedule("a", 1000)
    for now in range(1000, 3000, 100):
        with reply_lost(queue):
            queue.claim(1, 100, now_ms=now)
    queue.pause()
    assert queue.claim(1, 100, now_ms=3000 - 1).paused
    queue.resume()
    task = one(other, 3000 - 1)
    assert (task.deliveries, task.attempt) == (0, 1)


def test_a_lost_reply_is_reported_once_and_known_for_an_hour(
    queue: DelayQueue, other: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    with reply_lost(queue):
        queue.claim(1, 100, now_ms=1000)
    [token] = {kept[:64] for kept in state(queue)["tokens"].values()}
    queue.claim(1, 100, now_ms=1001)
    assert state(queue)["lost_claims"] == {token: 1001 + 100 + HOUR}
    queue._redis.delete(queue.keys.lost_claims)
    queue.claim(1, 100, now_ms=1002)
    assert "lost_claims" not in state(queue)
    with reply_lost(other):
        other.claim(1, 100, now_ms=1003)
    other.claim(1, 100, now_ms=1004)
    assert [*state(queue)["lost_claims"].values()] == [1004 + 100 + HOUR]
    with reply_lost(queue):
        queue.claim(1, 100, now_ms=1005 + 100 + HOUR)
    queue.claim(1, 100, now_ms=1005 + 100 + HOUR)
    assert [*state(queue)["lost_claims"].values()] == [1005 + 200 + 2 * HOUR], "the other is over"


def test_a_lost_reply_is_reported_while_the_queue_is_paused(
    queue: DelayQueue, other: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    with reply_lost(queue):
        queue.claim(1, 100, now_ms=1000)
    queue.pause()
    assert queue.claim(1, 100, now_ms=1050).paused
    queue.resume()
    assert one(other, 1100).deliveries == 0


def test_a_death_after_a_lost_reply_counts_again(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    with reply_lost(queue):
        queue.claim(1, 100, now_ms=1000)
    assert one(queue, 1100).deliveries == 0
    assert one(queue, 1200).deliveries == 1


def test_a_lost_reply_keeps_what_was_counted_before(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    queue.claim(1, 100, now_ms=1000)
    with reply_lost(queue):
        queue.claim(1, 100, now_ms=1100)
    task = one(queue, 1200)
    assert (task.deliveries, task.attempt) == (1, 2)


def test_a_suspect_whose_last_reply_was_lost_still_comes_alone(queue: DelayQueue) -> None:
    queue.schedule_many((name, 1000, b"") for name in "ab")
    for now in (1000, 1100):
        assert len(queue.claim(9, 100, now_ms=now).tasks) == 2
    with reply_lost(queue):
        queue.claim(9, 50, now_ms=1200)
    assert [task.deliveries for task in queue.claim(9, 100, now_ms=1250).tasks] == [2]


def test_a_claim_that_never_reached_the_server_does_no_harm(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    for _attempt in range(3):
        with never_sent(queue):
            queue.claim(1, 100, now_ms=1000)
    task = one(queue, 1000)
    assert (task.deliveries, task.attempt) == (0, 1)
    assert len(state(queue)["lost_claims"]) == 3
    assert one(queue, 1100).deliveries == 1


def test_only_the_latest_hundred_lost_replies_are_reported(
    queue: DelayQueue,
) -> None:
    with reply_lost(queue):
        queue.claim(1, 100, now_ms=1000)
    for _attempt in range(MAX_LOST_CLAIMS - 1):
        with never_sent(queue):
            queue.claim(1, 100, now_ms=1000)
    queue.schedule("a", 1000)
    with reply_lost(queue):
        queue.claim(1, 100, now_ms=1000)
    assert len(state(queue)["lost_claims"]) == MAX_LOST_CLAIMS
    queue._redis.delete(queue.keys.lost_claims)
    assert one(queue, 1100).deliveries == 0
    assert len(state(queue)["lost_claims"]) == MAX_LOST_CLAIMS


# -- outages -------------------------------------------------------------------------------


@pytest.fixture
def clock(queue: DelayQueue, other: DelayQueue) -> Clock:
    """The clock of the workers, in seconds."""
    clock = Clock()
    queue.environment = other.environment = clock.environment
    return clock


def fail(queue: DelayQueue) -> None:
    """A call that Redis does not answer."""
    error = redis.ConnectionError("refused")
    with (
        patch.object(ScriptedQueue, "_run", side_effect=error),
        pytest.raises(redis.ConnectionError),
    ):
        queue.claim(1, 1, now_ms=0)


def test_an_outage_is_not_the_death_of_a_worker(
    queue: DelayQueue, other: DelayQueue, clock: Clock
) -> None:
    queue.schedule_many([("a", 1000, b""), ("b", 1000, b"")])
    [a, _] = queue.claim(2, 10_000, now_ms=1000).tasks
    queue.schedule("due", 1000)
    fail(other)
    clock.move(11)
    assert one(other, 12_000, lease_ms=9000).id == "due"
    assert other.claim(9, 100, now_ms=12_000).next_in_ms == 2000
    queue.extend([a], 10_000, now_ms=13_500)
    assert queue.claim(9, 100, now_ms=13_999).tasks == []
    assert one(queue, 14_000)[:4] == ("b", b"", 0, 1)


def test_an_outage_spares_the_leases_once(
    queue: DelayQueue, other: DelayQueue, clock: Clock
) -> None:
    queue.schedule("a", 1000)
    one(queue, 1000)
    fail(queue)
    fail(other)
    clock.move(4)
    assert queue.claim(9, 9000, now_ms=5000).tasks == []
    clock.move(3)
    assert one(other, 8000).deliveries == 1, "the same outage, which it tells of late"
    fail(other)
    clock.move(4)
    assert other.claim(9, 9000, now_ms=12_000).next_in_ms == 2000, "another one"


@pytest.mark.parametrize("seconds", [0.9, 3.3])
def test_a_short_silence_spares_nobody(queue: DelayQueue, clock: Clock, seconds: float) -> None:
    queue.schedule("a", 1000)
    one(queue, 1000)
    fail(queue)
    clock.move(seconds)
    [task] = queue.claim(9, 10_000, now_ms=5000).tasks
    assert task.deliveries == 1


def test_a_worker_started_after_all_died_waits_for_nothing(
    queue: DelayQueue, other: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    one(queue, 1000, lease_ms=10_000)
    assert one(other, 11_000).deliveries == 1


def test_sparing_ends_although_the_clock_is_set_back(queue: DelayQueue, clock: Clock) -> None:
    queue.schedule("a", 1000)
    one(queue, 1000)
    fail(queue)
    clock.move(11)
    assert queue.claim(9, 9000, now_ms=3_600_000).tasks == []
    assert one(queue, 2000).deliveries == 1


def test_a_claim_that_waited_out_an_outage_leases_nothing(
    queue: DelayQueue, other: DelayQueue, clock: Clock
) -> None:
    queue.schedule_many([("held", 900, b""), ("due", 1000, b"")])
    held = queue.claim(1, 1000, now_ms=900).tasks
    with patch.object(other, "_run", return_value=[0, 1000, -1]):
        other.claim(9, 1000)
    clock.move(1)
    with reply_lost(other):
        other.claim(9, 1000, now_ms=5000)  # expected at 2000
    assert state(queue)["leased"] == {"held": 1900}
    assert queue.claim(9, 1000, now_ms=5001).tasks[0].id == "due"
    queue.extend(held, 1000, now_ms=5002)


def test_after_a_leap_of_the_clock_a_claim_is_repeated(queue: DelayQueue, clock: Clock) -> None:
    queue.claim(1, 60_000)
    queue.schedule("due", 0)
    clock.move(-10)
    assert queue.claim(1, 60_000)[::2] == ([], 0)
    assert [task.id for task in queue.claim(1, 60_000).tasks] == ["due"]


# -- what resets the counts, and what goes on ----------------------------------------------


def test_a_task_that_keeps_coming_collects_no_deliveries(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", 1000)
    now, most = 1000, 0
    for rearmed in range(55):
        task = one(queue, now)
        if rearmed % 10 == 5:  # its worker dies: five times in all
            now += 100
            task = one(queue, now)
        most = max(most, task.deliveries)
        queue.retry([(task, 10)], Put.AGAIN, now_ms=now)
        now += 10
    task = one(queue, now)
    assert (most, task.deliveries, task.failures) == (1, 0, 0)
    assert task.attempt == 1 + 55 + 5


@pytest.mark.parametrize("put", [Put.AGAIN, Put.NEW])
def test_coming_again_resets_deliveries_and_failures(queue: DelayQueue, put: Put) -> None:
    queue.schedule("a", 1000)
    queue.retry([(one(queue, 1000), 100)], Put.FAILED, now_ms=1000)
    one(queue, 1100)
    task = one(queue, 1200)
    assert (task.failures, task.deliveries) == (1, 1)
    queue.retry([(task, 0)], put, now_ms=1200)
    task = one(queue, 1200)
    assert (task.failures, task.deliveries) == (0, 0)


def test_success_resets_deliveries_and_failures(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    queue.retry([(one(queue, 1000), 100)], Put.FAILED, now_ms=1000)
    one(queue, 1100)
    queue.ack([one(queue, 1200)])
    queue.schedule("a", 1300)
    task = one(queue, 1300)
    assert (task.failures, task.deliveries, task.attempt) == (0, 0, 1)


def test_every_end_but_a_release_makes_another_attempt(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", 1000)
    numbers = [one(queue, 1000).attempt]
    numbers.append(one(queue, 1100).attempt)  # its lease ended
    queue.release([one(queue, 1200)])
    task = one(queue, 1200)
    numbers.append(task.attempt)
    queue.retry([(task, 0)], Put.FAILED, now_ms=1200)
    task = one(queue, 1200)
    numbers.append(task.attempt)
    queue.retry([(task, 0)], Put.AGAIN, now_ms=1200)
    task = one(queue, 1200)
    numbers.append(task.attempt)
    with reply_lost(queue):
        queue.release([task])  # any other lost reply changes nothing
    task = one(queue, 1200)
    numbers.append(task.attempt)
    assert numbers == [1, 2, 3, 4, 5, 5]
    queue.dead_letter([(task, "bad", None)], now_ms=1200)
    queue.requeue(["a"], now_ms=1200)
    task = one(queue, 1200)
    assert task.attempt == 1
    queue.retry([(task, 0)], Put.FAILED, now_ms=1200)
    task = one(queue, 1200)
    queue.retry([(task, 0)], Put.NEW, now_ms=1200)
    assert one(queue, 1200).attempt == 1


def test_one_appointment_has_one_idempotency_key(
    queue: DelayQueue,
) -> None:
    queue.schedule("a", 1000)
    task = one(queue, 1500)
    keys = {task.idempotency_key}
    queue.retry([(task, 100)], Put.FAILED, now_ms=1500)
    task = one(queue, 1600)
    keys.add(task.idempotency_key)
    queue.retry([(task, 100)], Put.AGAIN, now_ms=1600)
    task = one(queue, 1700)
    keys.add(task.idempotency_key)
    queue.release([task])
    keys.add(one(queue, 1700).idempotency_key)
    task = one(queue, 1800)  # its lease ended
    keys.add(task.idempotency_key)
    queue.dead_letter([(task, "bad", None)], now_ms=1800)
    queue.requeue(["a"], now_ms=1900)
    task = one(queue, 1900)
    assert {*keys, task.idempotency_key} == {"a:1000"}
    queue.release([task])
    assert one(queue, 1900).idempotency_key == "a:1000"


@pytest.mark.parametrize("method", ["new", "done and scheduled", "scheduled over"])
def test_another_appointment_has_another_idempotency_key(queue: DelayQueue, method: str) -> None:
    queue.schedule("a", 1000)
    task = one(queue, 1000)
    if method == "new":
        queue.retry([(task, 500)], Put.NEW, now_ms=1000)
    if method == "done and scheduled":
        queue.ack([task])
    if method != "new":
        queue.schedule("a", 1500)
    assert one(queue, 1500).idempotency_key == "a:1500"


def test_a_suspect_that_is_put_back_keeps_what_counts_against_it(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    one(queue, 1000)
    queue.release([one(queue, 1100)])
    assert state(queue)["tokens"] == {"a": attempts(1000, deliveries=1, before=1)}
    queue.retry([(one(queue, 1100), 0)], Put.FAILED, now_ms=1100)
    assert one(queue, 1100).deliveries == 1
