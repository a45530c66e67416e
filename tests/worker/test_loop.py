"""A worker in this process: what it settles, and what it does when something goes away."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.processes import wait_until
from devtools.valkey import Valkey, private_valkey
from tests.kit.queue_state import attempts, state
from tests.kit.workers import running, tasks
from worker import (
    Backoff,
    DeadLetter,
    DelayQueue,
    Due,
    Failed,
    Flow,
    Outcome,
    Retry,
    Task,
    Unavailable,
    Worker,
)
from worker.queue.connection import Line


class Dependency:
    """What a handler needs; down until it is put up."""

    def __init__(self) -> None:
        self.up = threading.Event()
        self.calls = 0
        self.handled: list[str] = []

    def probe(self) -> None:
        if not self.up.is_set():
            raise Unavailable("no answer")

    def handle(self, tasks: Sequence[Task]) -> None:
        self.calls += 1
        self.probe()
        self.handled += [task.id for task in tasks]


def test_an_outage_counts_nothing_and_ends_by_itself(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    dependency = Dependency()
    probes = iter([None])  # the first probe passes, or nothing would be claimed

    def probe() -> None:
        if next(probes, dependency) is dependency:
            dependency.probe()

    flow = Flow(name="outage", handler=dependency.handle, probe=probe)
    queue = DelayQueue(redis_client, "outage")
    ids = [str(n) for n in range(100)]
    waiting = {"scheduled": dict.fromkeys(ids, 1), "tokens": dict.fromkeys(ids, attempts(1))}
    queue.schedule_many((name, 1, b"") for name in ids)
    worker = Worker([flow], valkey.url)
    with running(worker):
        wait_until(lambda: worker.counts["released"], "the batch to be given back")
        assert tasks(queue) == waiting
        dependency.up.set()
        wait_until(lambda: queue.stats().scheduled == 0 == queue.stats().leased, "all to be done")
    assert state(queue) == {}
    assert sorted(dependency.handled) == sorted(ids)
    assert dependency.calls == 2
    assert worker.counts == {"released": 100, "done": 100}


@pytest.fixture
def no_slow_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker waits for ever that nothing wakes: whatever it does, it was woken for."""
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", threading.TIMEOUT_MAX)


@pytest.mark.usefixtures("no_slow_poll")
def test_a_batch_is_released_at_once_while_a_thread_waits(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    def fail_once(_tasks: Sequence[Task]) -> None:
        if not worker.counts["released"]:
            wait_until(
                worker._watched[0].lane._claim_lock.locked, "another thread to wait for work"
            )
            raise Unavailable("no answer")

    queue = DelayQueue(redis_client, "outage")
    queue.schedule_many((name, 1, b"") for name in "ab")
    worker = Worker(
        [Flow(name="outage", handler=fail_once, lease_seconds=3600)], valkey.url, threads=2
    )
    with running(worker):
        wait_until(lambda: worker.counts["done"] == 2, "both, long before their lease ends")
    assert worker.counts == {"released": 2, "done": 2}
    assert state(queue) == {}


def test_each_outcome_of_a_batch_is_settled_in_its_own_way(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    def handler(tasks: Sequence[Task]) -> dict[str, Outcome]:
        said: dict[str, Outcome] = {
            "retry": Retry(60_000),
            "dead": DeadLetter("no use"),
            "failed": Failed(ValueError("x")),
        }
        return {task.id: said[task.id] for task in tasks if task.id in said}

    flow = Flow(name="mixed", handler=handler, backoff=Backoff(base_seconds=60))
    queue = DelayQueue(redis_client, "mixed")
    queue.schedule_many((name, 1, b"") for name in ("done", "retry", "dead", "failed"))
    worker = Worker([flow], valkey.url)
    with running(worker):
        wait_until(lambda: queue.stats().leased == 0 < queue.stats().dead, "the batch")
    after = state(queue)
    assert set(after["scheduled"]) == {"retry", "failed"}
    assert after["tokens"]["failed"].split()[2:8] == attempts(1, failures=1, before=1).split()[2:]
    assert after["dead"] == ["dead"]
    assert worker.counts == {"done": 1, "retried": 1, "failed": 1, "dead": 1}


@pytest.mark.usefixtures("no_slow_poll")
def test_a_paused_worker_goes_on_at_once_when_it_is_resumed(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, "paused")
    queue.pause()
    queue.schedule("a", 1)
    worker = Worker([Flow(name="paused", handler=lambda _: None)], valkey.url)
    with running(worker):
        known = worker._stations[0].queue
        wait_until(lambda: known.memory.paused, "a claim to find the pause")
        assert tasks(queue) == {"scheduled": {"a": 1}, "paused": "1"}
        queue.resume()
        wait_until(lambda: worker.counts["done"], "the task")


def test_a_redis_that_is_back_unsafe_is_unused_until_safe(tmp_path: Path) -> None:
    with private_valkey(tmp_path) as server:
        worker = Worker([Flow(name="moved", handler=lambda _: None)], server.url)
        with running(worker):
            [station] = worker._stations
            wait_until(lambda: station.gate.up, "the worker to begin")
            server.kill()
            worker._watched[0].lane.alarm.set()  # rather than after a slow poll
            wait_until(lambda: station.failing, "claims to fail")
            evicting = ("--maxmemory-policy", "allkeys-lru")
            with (
                private_valkey(tmp_path, *evicting, port=server.port),
                redis.Redis.from_url(server.url) as client,
            ):
                wait_until(lambda: station._server.unsafe, "the worker to see it")
                DelayQueue(client, "moved").schedule("a", 1)
                assert worker.health().status == "degraded"
                client.config_set("maxmemory-policy", "volatile-lru")
                wait_until(lambda: worker.counts["done"], "the task")


def test_idle_workers_take_turns_at_the_moments_that_all_wait_for(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    herd, ids = 8, [str(n) for n in range(200)]
    workers = [Worker([Flow(name="herd", handler=lambda _: None)], valkey.url) for _ in range(herd)]
    queue = DelayQueue(redis_client, "herd")
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(running(worker))
        wait_until(lambda: redis_client.hlen(queue.keys.workers) == herd, "all to be there")
        for place, worker in enumerate(workers):
            worker._stations[0].place = herd, place  # the next heartbeat tells them
        before = _scripts(redis_client)
        queue.wake()
        wait_until(lambda: _scripts(redis_client) - before >= herd, "all to wait")
        before = _scripts(redis_client)
        queue.schedule_many(Due(name, 200 + 2 * n) for n, name in enumerate(ids))
        wait_until(lambda: sum(worker.counts["done"] for worker in workers) == len(ids), "all")
        # A claim each for every task, and one call to settle it, would be nine.
        assert (_scripts(redis_client) - before) / len(ids) < 4
    assert state(queue) == {}


def test_a_worker_that_stops_gives_back_what_a_lost_claim_leased(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, send = Worker([Flow(name="lost", handler=lambda _: None)], valkey.url), Line.send
    queue = DelayQueue(redis_client, "lost")

    def lose(line: Line, *commands: Any) -> list[Any]:
        replies = send(line, *commands)
        if (
            not any(queue.keys.leased in command for command in commands)
            or not queue.stats().leased
        ):
            return replies
        monkeypatch.undo()
        worker.stop()
        return [redis.ConnectionError("gone")] * len(commands)

    with running(worker):
        monkeypatch.setattr(Line, "send", lose)
        queue.schedule("a", 1)
        wait_until(worker._stopping.is_set, "the claim")
    [task] = queue.claim(1, 1000).tasks
    assert task.deliveries == 0


def _scripts(client: redis.Redis) -> int:
    found: Any = client.info("commandstats")
    return int(found["cmdstat_evalsha"]["calls"])
