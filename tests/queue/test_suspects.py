"""Deaths and lost replies: what counts as a delivery, and how the task that kills is found."""

from typing import Any
from unittest.mock import patch

import pytest
import redis

from tests.kit.engine import Clock
from tests.kit.queue_state import state
from tests.kit.queue_steps import never_sent, one, reply_lost
from tests.kit.settling import ack, dead_letter
from tests.queue.conftest import REAL
from worker import DelayQueue, Due, Task
from worker.queue.replies import Settlement, Verb
from worker.queue.scripted import ScriptedQueue


@pytest.fixture
def other(client: redis.Redis, queue: DelayQueue) -> DelayQueue:
    """The same queue in another worker."""
    return DelayQueue(client, queue.name)


# -- suspects ------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "few"), [(1, 1), (3, 1), (4, 2), (99, 9), (100, 10), (2000, 44)])
def test_a_few_are_the_root_of_the_limit(queue: DelayQueue, limit: int, few: int) -> None:
    queue.schedule_many((f"{n}", 1000, b"") for n in range(2000))
    queue.claim(2000, 100, now_ms=1000)
    assert len(queue.claim(limit, 100, now_ms=1100).tasks) == few


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
                ack(queue, [task])
                done[task.id] = held.pop(task.id)[0].deliveries
            elif (now - began) % 30 == 0 and now > began:
                queue.extend([task], 100, now_ms=now)
        for task in queue.claim(1, 100, now_ms=now).tasks:
            assert task.deliveries < 5 or task.id == killer
            if task.deliveries < 5:
                held[task.id] = task, now
            else:
                dead_letter(queue, [(task, "delivered too often", None)], now_ms=now)
        if len(done) == 6:
            break
    assert state(queue)["letters"].keys() == {killer}
    assert done.keys() == {*names} - {killer}
    assert now < 1200 + 6 * 1000, "they did not wait for one another"


@pytest.mark.parametrize("delay_ms", [10, 55, 170])
@pytest.mark.parametrize("verb", [Verb.FAILED, Verb.LATER])
def test_a_killer_buries_no_suspect_that_is_put_back_again_and_again(
    queue: DelayQueue, verb: Verb, delay_ms: int
) -> None:
    """One worker with a thread for each, which is started again at once. The innocent is soon due again, too."""
    queue.schedule_many([("innocent", 1000, b""), ("killer", 1001, b"")])
    queue.claim(9, 100, now_ms=1001)
    queue.claim(9, 100, now_ms=1101)
    held: dict[str, tuple[Task, int]] = {}
    for now in range(1201, 20_000, 5):
        if "killer" in held and now >= held["killer"][1] + 50:
            held.clear()
        if "innocent" in held and now >= held["innocent"][1] + 60:
            queue.settle([Settlement([held.pop("innocent")[0]], verb, delay_ms)], now_ms=now)
        for task in queue.claim(1, 100, now_ms=now).tasks:
            held[task.id] = task, now
        if "killer" in held and held["killer"][0].deliveries == 5:
            break
        assert "innocent" not in held or held["innocent"][0].deliveries <= 3
    else:
        pytest.fail("the killer was not found")


def beside_a_killer(queue: DelayQueue, delay_ms: int = 0) -> None:
    """At 1200, a killer is claimed alone, and an innocent put back that was redelivered as often."""
    queue.schedule_many([("innocent", 1000, b""), ("killer", 1000, b"")])
    queue.claim(9, 100, now_ms=1000)
    queue.claim(9, 100, now_ms=1100)
    innocent = one(queue, 1200, 10_000)
    queue.settle([Settlement([innocent], Verb.LATER, delay_ms)], now_ms=1200)
    assert (innocent.id, one(queue, 1200, 10_000).id) == ("innocent", "killer")


@pytest.mark.parametrize(
    ("due", "taken"), [(1200, ["0000", "0001"]), (5000, ["1499", "1498"])], ids=["first", "last"]
)
def test_a_suspect_that_must_wait_lets_the_others_pass(
    queue: DelayQueue, due: int, taken: list[str]
) -> None:
    beside_a_killer(queue, due - 1200)
    queue.schedule_many((f"{n:04}", 1300 + n, b"") for n in range(1500))
    if due == 5000:  # in a backlog, the next claim takes those that were due last
        queue.memory.takes_newest = True
    scheduled = state(queue)["scheduled"]
    assert [task.id for task in queue.claim(3, 10_000, now_ms=5000).tasks] == taken
    for task_id in taken:
        del scheduled[task_id]
    assert state(queue)["scheduled"] == {**scheduled, "innocent": 5100}


def test_two_deaths_without_a_killer_hold_the_others_up_for_thirds_of_a_lease(
    queue: DelayQueue,
) -> None:
    """Twelve tasks that take five leases, and a thread for each."""
    queue.schedule_many((f"{n}", 1000, b"") for n in range(12))
    queue.claim(200, 900, now_ms=1000)
    queue.claim(200, 900, now_ms=1900)
    held: dict[str, tuple[Task, int]] = {}
    for now in range(2800, 12_000, 10):
        for task, began in held.values():
            if (now - began) % 300 == 0 and now > began:
                queue.extend([task], 900, now_ms=now)
        for task in queue.claim(1, 900, now_ms=now).tasks:
            held[task.id] = task, now
        if len(held) == 12:
            break
    assert now < 2800 + 12 * 400


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
                    ack(queue, [task])
            elif task.deliveries == 5:
                dead_letter(queue, [(task, "delivered too often", None)], now_ms=now)
        now += 300
    assert state(queue)["dead"] == ["killer"]
    assert most <= 2
    assert set(state(queue)) == {"dead", "letters", "tokens", "alone"}


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
        dead_letter(queue, [(task, "kills", None) for task in given_up], now_ms=now)
        handled = [task for task in tasks if task.deliveries < 5]
        if killers & {task.id for task in handled}:
            deaths += 1
            now += 100
        else:
            ack(queue, handled)
    assert {*state(queue)["dead"]} == {*state(queue)["tokens"]} == killers
    assert max(times for task_id, times in deliveries.items() if task_id not in killers) <= 2
    assert deaths <= 1 + 4 * len(killers)


def test_a_killer_from_before_the_clock_was_set_back_holds_up_nobody(queue: DelayQueue) -> None:
    beside_a_killer(queue)
    queue.restore([Due("innocent", 0)], now_ms=1000)
    assert one(queue, 1000).id == "innocent"


def test_none_that_is_put_off_is_claimed_ahead(queue: DelayQueue) -> None:
    beside_a_killer(queue)
    queue.schedule_many([("next", 1200, b""), ("soon", 1299, b""), ("later", 1350, b"")])
    claim = queue.claim(9, 10_000, ahead_ms=200, now_ms=1200)
    assert [task.id for task in claim.tasks] == ["next", "soon"]
    assert state(queue)["scheduled"] == {"innocent": 1300, "later": 1350}


# -- lost replies --------------------------------------------------------------------------


def test_a_claim_whose_redelivery_is_refused_brings_its_tasks_later(queue: DelayQueue) -> None:
    def refused(name: str, *args: Any) -> Any:
        if name == "redeliver":
            raise redis.ReadOnlyError("no")
        return ScriptedQueue._run(queue, name, *args)

    queue.schedule("a", 1000)
    with patch.object(queue, "_run", refused), pytest.raises(redis.ReadOnlyError):
        queue.claim(1, 100, now_ms=1000)
    assert one(queue, 1050).deliveries == 0


def test_what_a_lost_claim_leased_is_put_back_before_the_next(
    queue: DelayQueue, other: DelayQueue
) -> None:
    queue.schedule_many((f"{n:04}", 900 + n, b"x") for n in range(2500))
    theirs = other.claim(500, 10_000, now_ms=9000).tasks
    with reply_lost(queue):
        queue.claim(2000, 10_000, now_ms=9000)
    with never_sent(queue):
        queue.claim(2000, 10_000, now_ms=9000)
    with reply_lost(queue, redis.ResponseError):  # as of a replica, after a failover
        queue.claim(2000, 10_000, now_ms=9000)
    queue.schedule("older", 1)
    tasks = queue.claim(3, 10_000, now_ms=9001).tasks
    found = [(task.id, task.attempt, task.deliveries) for task in tasks]
    assert found == [("older", 1, 0), ("0500", 1, 0), ("0501", 1, 0)]
    after = state(queue)
    assert after["leased"] == {
        **{task.id: 19_000 for task in theirs},
        **{task.id: 19_001 for task in tasks},
    }
    assert after["scheduled"] == {f"{n:04}": 900 + n for n in range(502, 2500)}


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
    assert [task.id for task in queue.claim(1, 10_000, now_ms=1002).tasks] == ["a"]
    assert queue.memory.unanswered is None, "nor does the next claim pay for it"
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_hget"]["calls"] == 1


def test_who_has_claimed_nothing_for_an_hour_is_forgotten(
    client: redis.Redis, queue: DelayQueue, other: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    ack(queue, [one(queue, 1000, 100)])
    assert not other.claim(1, 100, now_ms=3_601_099).tasks
    assert client.zrange(queue.keys.claims, 0, -1) == [queue.memory.claimer.encode()]
    assert not other.claim(1, 100, now_ms=3_601_100).tasks
    assert not client.exists(queue.keys.claims)


# -- outages -------------------------------------------------------------------------------


@pytest.fixture
def clock(queue: DelayQueue, other: DelayQueue) -> Clock:
    """The clock of the workers, in seconds."""
    clock = Clock()
    queue.environment = other.environment = clock.environment
    return clock


def fail(queue: DelayQueue, error: type[redis.RedisError] = redis.ConnectionError) -> None:
    """A call that Redis does not answer, or refuses."""
    with patch.object(ScriptedQueue, "_run", side_effect=error("no")), pytest.raises(error):
        queue.claim(1, 1, now_ms=0)


@pytest.mark.parametrize("error", [redis.ConnectionError, redis.ReadOnlyError])
def test_an_outage_is_no_death(
    queue: DelayQueue, clock: Clock, error: type[redis.RedisError]
) -> None:
    queue.schedule("a", 1000)
    task = one(queue, 1000)
    fail(queue, error)
    clock.move(20)
    assert queue.claim(9, 10_000, now_ms=21_000).tasks == []
    queue.extend([task], 10_000, now_ms=21_100)


def test_a_server_whose_clock_is_set_forward_is_no_death(queue: DelayQueue, clock: Clock) -> None:
    queue.schedule("a", 1000)
    task = one(queue, 1000, lease_ms=10_000)
    queue.memory.server_ahead_ms = 1000 - 1000 * clock.now
    assert queue.claim(9, 10_000, now_ms=16_000).tasks == []
    queue.memory.server_ahead_ms += 15_000  # as this claim has shown
    assert queue.claim(9, 10_000, now_ms=16_000).tasks == []
    clock.move(4)
    queue.extend([task], 10_000, now_ms=20_000)
    clock.move(2)
    assert queue.claim(9, 10_000, now_ms=22_000).tasks == []


def test_the_servers_time_is_known_however_long_redelivery_takes(
    queue: DelayQueue, clock: Clock
) -> None:
    def slow(name: str, _: None, *args: Any) -> Any:
        answer = ScriptedQueue._run(queue, name, round(1000 * clock.now), *args)
        clock.move(0.4)
        return answer

    with patch.object(queue, "_run", slow):
        assert not queue.claim(1, 100).tasks
    assert queue.memory.server_ahead_ms == pytest.approx(0, abs=1)


@pytest.mark.parametrize("seconds", [0.9, 3.3])
def test_a_short_silence_spares_nobody(queue: DelayQueue, clock: Clock, seconds: float) -> None:
    queue.schedule("a", 1000)
    one(queue, 1000)
    fail(queue)
    clock.move(seconds)
    [task] = queue.claim(9, 10_000, now_ms=5000).tasks
    assert task.deliveries == 1
