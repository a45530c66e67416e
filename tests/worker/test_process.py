"""Real worker processes: started, signalled, killed, and what they leave behind."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.processes import Process, events, python, wait_until
from devtools.valkey import Valkey, private_valkey
from tests.kit.clock import bound, bound_of_waking
from tests.kit.flows import DOWN, HANDLED, handled
from tests.kit.queue_state import attempts, state
from tests.kit.workers import deliveries, frozen, tasks
from worker import DelayQueue

Start = Callable[..., Process]


@pytest.fixture
def start(valkey: Valkey, tmp_path: Path) -> Iterator[Start]:
    """Starts a worker on a factory of `tests.kit.flows`; kills it after the test."""
    started: list[Process] = []

    def start(factory: str, *options: str, url: str = valkey.url) -> Process:
        command = ["worker", "run", f"tests.kit.flows:{factory}", *options]
        started.append(python(command, {"REDIS_URL": url}, tmp_path / "worker.log"))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def handled_ids(client: redis.Redis) -> list[str]:
    return [row["id"] for row in handled(client)]


def wait_for(client: redis.Redis, count: int) -> None:
    wait_until(lambda: client.llen(HANDLED) == count, f"{count} tasks")


def ready(client: redis.Redis, queue: DelayQueue) -> None:
    """Wait until a worker works, then forget that it did."""
    queue.schedule("ready", 1)
    wait_for(client, 1)
    wait_until(lambda: tasks(queue) == {}, "the ack")
    client.delete(HANDLED)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- on time -------------------------------------------------------------------------------


def test_tasks_are_handled_by_deadline_and_none_early(
    redis_client: redis.Redis, start: Start
) -> None:
    start("recording")
    queue = DelayQueue(redis_client, "recorded")
    ready(redis_client, queue)
    due = [now_ms() + 200 + 2 * n for n in range(200)]
    shuffled = random.Random(7).sample(due, len(due))
    queue.schedule_many((str(at), at, b"") for at in shuffled)
    wait_for(redis_client, len(due))
    rows = handled(redis_client)
    assert [int(row["id"]) for row in rows] == due
    assert [row["due_at_ms"] for row in rows] == due
    assert all(row["at_ms"] >= row["due_at_ms"] for row in rows)


@pytest.mark.clock
def test_an_earlier_task_wakes_a_worker_that_waits_for_a_far_one(
    redis_client: redis.Redis, start: Start
) -> None:
    start("recording_when_woken")
    queue = DelayQueue(redis_client, "recorded")
    ready(redis_client, queue)
    queue.schedule("far", now_ms() + 3_600_000)
    late = []
    for n in range(5):
        queue.schedule(str(n), now_ms() + 30)
        wait_for(redis_client, n + 1)
        row = handled(redis_client)[n]
        late.append(row["at_ms"] - row["due_at_ms"])
    assert min(late) >= 0
    assert sorted(late)[2] <= bound_of_waking(100)


# -- stopping ------------------------------------------------------------------------------


def test_sigterm_ends_a_busy_worker_cleanly_with_no_lease_left(
    redis_client: redis.Redis, start: Start
) -> None:
    queue = DelayQueue(redis_client, "recorded")
    queue.schedule_many((str(n), 1, b"") for n in range(20_000))
    worker = start("recording")
    wait_until(lambda: redis_client.llen(HANDLED) >= 500, "some to be handled")
    assert worker.stop() == 0
    after = state(queue)
    assert "leased" not in after
    left = after.get("scheduled", {})  # none, if this process was the slower one
    assert sorted([*handled_ids(redis_client), *left]) == sorted(str(n) for n in range(20_000))


def test_a_handler_in_the_middle_may_finish_after_sigterm(
    redis_client: redis.Redis, start: Start
) -> None:
    queue = DelayQueue(redis_client, "frail")
    queue.schedule("block", 1)
    worker = start("frail")
    wait_until(lambda: redis_client.llen("blocked"), "the handler to begin")
    worker.signal(signal.SIGTERM)
    redis_client.rpush("unblock", "now")
    assert worker.wait() == 0
    assert handled_ids(redis_client) == ["block"]
    assert state(queue) == {}


@pytest.mark.slow
def test_a_second_sigterm_does_not_wait(redis_client: redis.Redis, start: Start) -> None:
    DelayQueue(redis_client, "frail").schedule("block", 1)
    worker = start("frail")
    wait_until(lambda: redis_client.llen("blocked"), "the handler to begin")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: _ends(worker), "the end")
    assert worker.wait() == -signal.SIGTERM


@pytest.mark.slow
def test_a_drain_that_runs_out_releases_its_tasks_and_ends(
    redis_client: redis.Redis, start: Start
) -> None:
    queue = DelayQueue(redis_client, "occupied")
    queue.schedule("a", 1)
    for restarts in (1, 2):
        worker = start("occupied")
        wait_until(lambda: redis_client.llen("blocked") == restarts, "the handler to begin")  # noqa: B023
        assert worker.stop() == 0
        assert tasks(queue) == {"scheduled": {"a": 1}, "tokens": {"a": attempts(1)}}


def test_a_child_that_a_handler_forks_ends_when_told_to(
    redis_client: redis.Redis, start: Start
) -> None:
    DelayQueue(redis_client, "occupied").schedule("a", 1)
    start("occupied")
    wait_until(lambda: redis_client.llen("blocked"), "the child to end")
    assert redis_client.lrange("blocked", 0, -1) == [b"%d" % -signal.SIGTERM]


def test_what_is_loaded_is_never_searched_for_garbage(
    redis_client: redis.Redis, start: Start
) -> None:
    DelayQueue(redis_client, "recorded").schedule("a", 1)
    start("recording")
    wait_for(redis_client, 1)
    [row] = handled(redis_client)
    assert row["frozen"] > 10_000


def _ends(worker: Process) -> bool:
    if worker.running():
        worker.signal(signal.SIGTERM)
    return not worker.running()


# -- taking long ---------------------------------------------------------------------------


@pytest.mark.slow
def test_slow_tasks_are_each_done_once_by_sharing_workers(
    redis_client: redis.Redis, start: Start
) -> None:
    queue = DelayQueue(redis_client, "slow")
    ids = [f"mail {n}" for n in range(300)]
    queue.schedule_many((name, 1, b"0.07") for name in ids)  # longer than a lease, all together
    for _ in range(2):
        start("slow", "--threads", "2")
    wait_until(lambda: tasks(queue) == {}, "all to be done")
    assert sorted(handled_ids(redis_client)) == sorted(ids)


@pytest.mark.clock
def test_a_stop_amid_slow_tasks_waits_for_only_one_of_them(
    redis_client: redis.Redis, start: Start
) -> None:
    queue = DelayQueue(redis_client, "slow")
    ids = [f"mail {n}" for n in range(100)]
    queue.schedule_many((name, 1, b"0.2") for name in ids)
    worker = start("slow")
    wait_until(lambda: len(handled_ids(redis_client)) >= 3, "some to be done")
    worker.signal(signal.SIGTERM)
    start_of_end = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - start_of_end <= 0.2 + bound(1)
    left = state(queue)
    assert {*left} <= {"scheduled", "payloads", "tokens"}
    done = handled_ids(redis_client)
    assert len(done) < 50
    assert sorted([*done, *left["scheduled"]]) == sorted(ids)


def test_a_handler_that_outlasts_its_lease_keeps_it(
    redis_client: redis.Redis, start: Start
) -> None:
    queue = DelayQueue(redis_client, "frail")
    queue.schedule("block", 1)
    for _ in range(2):
        start("lasting")
    wait_until(lambda: redis_client.llen("blocked"), "the handler to begin")
    expiry = state(queue)["leased"]["block"]
    wait_until(lambda: state(queue)["leased"]["block"] >= expiry + 3000, "a lease to have passed")
    redis_client.rpush("unblock", "now")
    wait_until(lambda: tasks(queue) == {}, "the ack")
    assert redis_client.llen("blocked") == 1
    assert handled_ids(redis_client) == ["block"]


@pytest.mark.slow
def test_a_hanging_handler_loses_its_lease_and_task(
    redis_client: redis.Redis, start: Start, tmp_path: Path
) -> None:
    queue = DelayQueue(redis_client, "frail")
    queue.schedule("block", 1)
    for _ in range(2):
        start("limited")
    wait_until(lambda: redis_client.llen("blocked") == 2, "the other worker to take it")
    assert "handler runs too long" in (tmp_path / "worker.log").read_text()
    assert deliveries(queue) == {"block": 1}
    redis_client.rpush("unblock", "now", "now")
    wait_until(lambda: tasks(queue) == {}, "the ack")


# -- dying ---------------------------------------------------------------------------------


def test_a_killed_workers_task_comes_again_after_its_lease(
    redis_client: redis.Redis, start: Start
) -> None:
    queue = DelayQueue(redis_client, "frail")
    queue.schedule("block", 1)
    worker = start("frail")
    wait_until(lambda: redis_client.llen("blocked") == 1, "the handler to begin")
    worker.kill()
    assert list(state(queue)["leased"]) == ["block"]
    start("frail")
    wait_until(lambda: redis_client.llen("blocked") == 2, "the handler to begin again")
    assert deliveries(queue) == {"block": 1}
    redis_client.rpush("unblock", "now")
    wait_until(lambda: handled_ids(redis_client) == ["block"], "the task")
    wait_until(lambda: tasks(queue) == {}, "the ack")


def test_a_task_that_kills_its_worker_is_quarantined_alone(
    redis_client: redis.Redis, start: Start, tmp_path: Path
) -> None:
    queue = DelayQueue(redis_client, "frail")
    good = {f"good {n}" for n in range(499)}
    queue.schedule_many((name, 1, b"") for name in [*sorted(good), "killer"])
    workers = [start("frail")]

    def drained() -> bool:
        if not workers[-1].running():
            assert workers[-1].wait() == 7
            workers.append(start("frail"))
        stats = queue.stats()
        return stats.scheduled == stats.leased == 0

    wait_until(drained, "all to be done or dead")
    assert len(workers) == 6, "five died of it"
    assert sorted(handled_ids(redis_client)) == sorted(good)
    deaths: Any = redis_client.lrange("deaths", 0, -1)
    assert int(deaths[2]) == len(good), "all were to be done before it killed for the third time"
    assert max(row["deliveries"] for row in handled(redis_client)) <= 2
    batches = [line for line in events(tmp_path / "worker.log") if line["event"] == "batch"]
    assert len(batches) <= 60, "a few at a time after one death, and only those alone after two"
    [letter] = queue.dead()
    assert letter.id == "killer"
    assert letter.story["reason"] == "delivered 5 times and never settled"
    assert letter.story["deliveries"] == 5


def test_a_killer_buries_no_task_of_another_flow(redis_client: redis.Redis, start: Start) -> None:
    """One worker, which is started again at once. The innocent one takes longer than a lease."""
    frail, slow = DelayQueue(redis_client, "frail"), DelayQueue(redis_client, "slow")
    frail.schedule("killer", 1)
    slow.schedule("innocent", 1, b"3")
    for queue in (frail, slow):  # that died with another worker, twice
        for now in (100, 200):
            assert queue.claim(9, 1, now_ms=now).tasks
    workers = [start("frail_beside_slow")]

    def ended() -> bool:
        if not workers[-1].running():
            workers.append(start("frail_beside_slow"))
        found = [queue.stats() for queue in (frail, slow)]
        return all(each.scheduled == each.leased == 0 for each in found)

    wait_until(ended, "both to be done or dead")
    assert len(workers) > 3, "more died of it"
    assert [letter.id for letter in frail.dead()] == ["killer"]
    assert slow.dead() == []
    [row] = handled(redis_client)
    assert row["id"] == "innocent"
    assert row["deliveries"] in (2, 3), "at most one more, claimed at the moment of a death"


def test_a_poison_task_among_a_thousand_dies_alone(
    redis_client: redis.Redis, start: Start, tmp_path: Path
) -> None:
    queue = DelayQueue(redis_client, "frail")
    good = {f"good {n}" for n in range(1000)}
    queue.schedule_many((name, 1, b"") for name in [*sorted(good), "poison"])
    start("frail")
    wait_until(lambda: queue.stats().dead, "the poison to die")
    wait_until(lambda: set(handled_ids(redis_client)) == good, "the others")
    [letter] = queue.dead()
    assert letter.id == "poison"
    assert letter.story["reason"] == "failed too often"
    assert letter.story["error"] == "ValueError: poison"
    assert letter.story["failures"] == 3
    log = tmp_path / "worker.log"
    wait_until(lambda: '"dead letter"' in log.read_text(), "its end to be logged")
    failures = [line for line in events(log) if "exception" in line]
    told = [(line["event"], line["id"]) for line in failures]
    assert told[0] == ("task failed", "poison")  # the second attempt fails alike, and is counted
    assert told[-1] == ("dead letter", "poison")
    for text in (letter.story["traceback"], *(line["exception"] for line in failures)):
        assert text.startswith("Traceback")
        assert "in handler\n" in text


# -- what a worker needs -------------------------------------------------------------------


def test_a_worker_claims_nothing_before_its_probe_passes(
    redis_client: redis.Redis, start: Start, tmp_path: Path
) -> None:
    queue = DelayQueue(redis_client, "dependent")
    queue.schedule("a", 1)
    redis_client.set(DOWN, "yes")
    start("dependent")
    log = tmp_path / "worker.log"
    wait_until(lambda: "unavailable" in log.read_text(), "the probe to fail")
    assert tasks(queue) == {"scheduled": {"a": 1}}
    redis_client.delete(DOWN)
    wait_until(lambda: tasks(queue) == {}, "the task to be done")
    assert handled_ids(redis_client) == ["a"]


def test_a_worker_outlives_its_redis(tmp_path: Path, start: Start) -> None:
    log_each_write = ("--appendonly", "yes", "--appendfsync", "always")
    with (
        private_valkey(tmp_path / "valkey", *log_each_write) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        queue = DelayQueue(client, "recorded")
        worker = start("recording", url=server.url)
        ready(client, queue)
        with frozen(worker):
            queue.schedule("later", 1)
            server.kill()
        server.start()
        wait_until(lambda: handled_ids(client) == ["later"], "the task")
        wait_until(lambda: tasks(queue) == {}, "the ack")
        assert worker.stop() == 0


def test_a_worker_refuses_a_redis_that_may_evict_its_queue(
    redis_client: redis.Redis, start: Start, tmp_path: Path
) -> None:
    queue = DelayQueue(redis_client, "recorded")
    queue.schedule("a", 1)
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        status = start("recording").wait()
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")
    assert status == 1
    assert state(queue) == {"scheduled": {"a": 1}}
    message = (tmp_path / "worker.log").read_text().splitlines()[-1]
    assert message.startswith("worker: This Redis may delete tasks on its own.")
    assert "allkeys-lru" in message
    assert "noeviction" in message
