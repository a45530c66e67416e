"""Several flows in one worker, several workers in one process: none harms another."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from devtools.processes import wait_until
from devtools.valkey import Valkey
from tests.kit.settling import dead_letter
from tests.kit.workers import running, tasks
from worker import DelayQueue, Due, Flow, Task, Unavailable, Worker, events, one_at_a_time

#: Longer than a test.
AGES = 3600.0


def nothing(_tasks: Sequence[Task]) -> None:
    """Done."""


# -- several flows -------------------------------------------------------------------------


def test_a_flow_whose_handler_blocks_does_not_delay_another(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    go_on = threading.Event()
    served: list[str] = []
    flows = [
        Flow(name="slow", handler=lambda _: _wait(go_on)),
        Flow(name="quick", handler=lambda batch: served.extend(task.id for task in batch)),
    ]
    slow, quick = (DelayQueue(redis_client, flow.name) for flow in flows)
    slow.schedule_many((str(n), 1, b"") for n in range(3))
    with running(Worker(flows, valkey.url)):
        wait_until(lambda: slow.stats().leased, "the slow one to begin")
        quick.schedule("a", 1)
        wait_until(lambda: served == ["a"], "the quick one")
        assert slow.stats().leased
        go_on.set()
        wait_until(lambda: not tasks(slow), "the slow one")


def test_a_wrong_type_in_one_queue_does_not_stop_another(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever the worker does, it was woken for.
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", threading.TIMEOUT_MAX)
    served: list[str] = []

    def serve(batch: Sequence[Task]) -> None:
        served.extend(task.id for task in batch)

    flows = [Flow(name=name, handler=serve) for name in ("broken", "sound")]
    broken, sound = (DelayQueue(redis_client, flow.name) for flow in flows)
    redis_client.set(broken.keys.leased, "a string")
    seen: list[events.Event] = []
    worker = Worker(flows, valkey.url, listeners=[seen.append])
    with running(worker):
        wait_until(lambda: worker._stations[0]._failed_claims >= 3, "claims to be refused")
        for n in range(3):
            sound.schedule(f"sound {n}", 1)
            wait_until(lambda: not tasks(sound), "the sound one")
            assert len(served) == n + 1
        assert worker._stations[0].failing
        redis_client.delete(broken.keys.leased)
        broken.schedule("mended", 1)
        wait_until(lambda: "mended" in served, "the broken one")
    lost = [event.queue for event in seen if isinstance(event, events.RedisLost)]
    assert lost == ["broken"], "told once, and of nobody else"


def test_a_hanging_probe_delays_no_other_flow_and_is_reported(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.hangs.HANGS_SECONDS", 0.1)
    go_on = threading.Event()
    seen: list[events.Event] = []
    flows = [
        Flow(name="hanging", handler=nothing, probe=lambda: _wait(go_on)),
        Flow(name="sound", handler=nothing),
    ]
    hanging, sound = (DelayQueue(redis_client, flow.name) for flow in flows)
    for queue in (hanging, sound):
        queue.schedule("a", 1)
    worker = Worker(flows, valkey.url, listeners=[seen.append])
    with capture_logs() as lines, running(worker):
        wait_until(lambda: not tasks(sound), "the sound one")
        wait_until(lambda: any(isinstance(event, events.Hangs) for event in seen), "the report")
        assert tasks(hanging) == {"scheduled": {"a": 1}}
        # A later probe may take as long on a busy machine.
        [hangs] = (event for event in seen if isinstance(event, events.Hangs))
        assert [line["event"] for line in lines].count("a call hangs") == 1
        go_on.set()
        wait_until(lambda: not tasks(hanging), "the one that hung")
    assert (hangs.queue, hangs.what) == ("hanging", "probe")


def test_an_error_while_the_probe_fails_is_no_tasks_failure(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    up = threading.Event()
    up.set()
    done: list[str] = []

    def probe() -> None:
        if not up.is_set():
            raise Unavailable("no answer")

    def work(task: Task) -> None:
        if not done and not worker.counts["released"]:
            up.clear()  # what it needs goes away while it is at work
        if not up.is_set():
            raise ConnectionError("reset by peer")
        done.append(task.id)

    flow = Flow(name="mail", handler=one_at_a_time(work), probe=probe, max_failures=1)
    queue = DelayQueue(redis_client, "mail")
    queue.schedule_many((str(n), 1, b"") for n in range(5))
    worker = Worker([flow], valkey.url)
    with running(worker):
        wait_until(lambda: worker.counts["released"], "the task to be given back")
        assert not queue.stats().dead
        up.set()
        wait_until(lambda: not tasks(queue), "all to be done")
    assert sorted(done) == [str(n) for n in range(5)]
    assert worker.counts["failed"] == worker.counts["dead"] == 0


# -- sweeps --------------------------------------------------------------------------------


def test_a_held_task_does_not_hide_a_lost_one_from_the_sweep(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    queue = DelayQueue(redis_client, "pages")
    queue.schedule("held", 1)
    assert len(queue.claim(1, 1000 * round(AGES)).tasks) == 1
    done: list[str] = []

    def waiting(after: float | None, _before: float) -> Iterator[list[Due]]:
        if after is None or after < 0:
            yield [Due("held", -2000)]
            if not done:
                yield [Due("lost", -1000)]

    flow = Flow(
        name="pages",
        handler=lambda batch: done.extend(task.id for task in batch),
        sweep=waiting,
        sweep_seconds=0.05,
        lookahead_seconds=AGES,
    )
    with running(Worker([flow], valkey.url)):
        wait_until(lambda: done == ["lost"], "the lost one")
    assert [*tasks(queue)["leased"]] == ["held"]


class Letters:
    """Records of tasks that are dead, long overdue: counts who reads how many of them."""

    def __init__(self, count: int) -> None:
        began = time.monotonic()
        self._due_at = {f"{n:04}": began - 60 + n / 1000 for n in range(count)}
        self.calls: Counter[int] = Counter()
        self.rows: Counter[int] = Counter()

    def read_by(self, reader: int, after: float | None, before: float) -> Iterator[list[Due]]:
        self.calls[reader] += 1
        now = time.monotonic()
        page = [
            Due(task_id, 1000 * (due_at - now))
            for task_id, due_at in self._due_at.items()
            if due_at <= now + before and (after is None or due_at > now + after)
        ]
        self.rows[reader] += len(page)
        for start in range(0, len(page), 100):
            yield page[start : start + 100]


def test_not_every_round_or_worker_reads_dead_letters(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    letters = Letters(500)
    queue = DelayQueue(redis_client, "dead")
    queue.schedule_many((f"{n:04}", 1, b"") for n in range(500))
    buried = queue.claim(500, 60_000).tasks
    dead_letter(queue, [(task, "no use", None) for task in buried])

    def flow(reader: int) -> Flow:
        return Flow(
            name="dead",
            handler=nothing,
            sweep=lambda after, before: letters.read_by(reader, after, before),
            sweep_seconds=0.02,
            lookahead_seconds=AGES,
            lease_seconds=AGES,
        )

    with running(*(Worker([flow(reader)], valkey.url) for reader in range(3))):
        wait_until(lambda: letters.calls.total() > 5, "some rounds")
        rows, calls = letters.rows.total(), letters.calls.total()
        assert rows >= 500
        wait_until(lambda: letters.calls.total() >= calls + 20, "twenty more rounds")
        assert letters.rows.total() == rows, "they were to be read once"
        assert len(letters.calls) == 1, "one worker was to sweep"
    assert queue.stats().dead == 500


# -- the end -------------------------------------------------------------------------------


def test_run_ends_only_after_the_handler_that_a_sweep_has_called() -> None:
    begun, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def handle(batch: Sequence[Task]) -> None:
        begun.set()
        _wait(go_on)
        ended.extend(task.id for task in batch)

    def waiting(_after: float | None, _before: float) -> Iterator[list[Due]]:
        yield [Due("a", -1000)]

    flow = Flow(
        name="sweeping", handler=handle, sweep=waiting, without_redis="handle", sweep_seconds=0.05
    )
    worker = Worker([flow], "redis://127.0.0.1:1/0")  # where no Redis is
    with ThreadPoolExecutor(1) as executor:
        end = executor.submit(worker.run)
        wait_until(begun.is_set, "the sweep to call it")
        worker.stop()
        wait_until(lambda: not _thread("heartbeat"), "the rest to end")
        assert not end.done()
        go_on.set()
        end.result()
    assert ended == ["a"]


def test_three_workers_in_one_process_leave_nothing_behind(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    def waiting(_after: float | None, _before: float) -> Iterator[list[Due]]:
        yield []

    flows = [
        Flow(name="a", handler=nothing, sweep=waiting),
        Flow(name="b", handler=nothing, probe=lambda: None),
    ]
    redis_client.ping()
    threads, connections = {*threading.enumerate()}, _connections(redis_client)
    workers = [Worker(flows, valkey.url, threads=2) for _ in range(3)]
    queues = [DelayQueue(redis_client, flow.name) for flow in flows]
    with running(*workers):
        for n, queue in enumerate(queues * 3):
            queue.schedule(str(n), 1)
        wait_until(lambda: sum(worker.counts["done"] for worker in workers) == 6, "six tasks")
        assert len(_connections(redis_client)) > len(connections)
    left = {*threading.enumerate()} - threads
    wait_until(lambda: not any(thread.is_alive() for thread in left), "threads to end")
    # Those of other tests may end, too.
    wait_until(lambda: _connections(redis_client) <= connections, "connections to end")


# -- the heartbeat -------------------------------------------------------------------------


def test_each_worker_reports_life_and_holdings_and_signs_off(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.heartbeat.BEAT_SECONDS", 0.0)  # at each of its looks
    go_on = threading.Event()
    flow = Flow(name="beating", handler=lambda _: _wait(go_on), batch_size=1)
    queue = DelayQueue(redis_client, "beating")
    workers = [Worker([flow], valkey.url) for _ in range(2)]
    with running(*workers):
        wait_until(lambda: len(queue.workers()) == 2, "both")
        assert {status.id for status in queue.workers()} == {worker.id for worker in workers}
        queue.schedule("a", 1)
        wait_until(lambda: sum(_holds(queue)) == 1, "one to say that it holds it")
        assert sorted(_holds(queue)) == [0, 1]
        [busy] = (status for status in queue.workers() if status.details["holds"])
        assert busy.details["held"] == ["a"]
        assert busy.details["up"] is True
        assert busy.details["oldest_seconds"] >= 0
        assert busy.heard_ms_ago < 60_000
        go_on.set()
        wait_until(lambda: not any(_holds(queue)), "it to be done")
    assert queue.workers() == []


def test_a_fast_handler_costs_no_extension_of_its_lease(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    extended: list[str] = []
    extend = DelayQueue.extend

    def noted(queue: DelayQueue, held: Sequence[Task], *args: Any, **more: Any) -> None:
        extended.append(queue.name)
        extend(queue, held, *args, **more)

    monkeypatch.setattr(DelayQueue, "extend", noted)
    flows = [
        # The renewer looks several times meanwhile, and each time some task is being handled.
        Flow(name="fast", handler=lambda _: time.sleep(0.1), batch_size=1, lease_seconds=6),
        Flow(name="slow", handler=lambda _: _wait_for(lambda: "slow" in extended), lease_seconds=1),
    ]
    fast, slow = (DelayQueue(redis_client, flow.name) for flow in flows)
    slow.schedule("a", 1)
    fast.schedule_many((str(n), 1, b"") for n in range(20))
    with running(Worker(flows, valkey.url)):
        wait_until(lambda: not tasks(slow) and not tasks(fast), "all to be done")
    assert "fast" not in extended


def _holds(queue: DelayQueue) -> list[int]:
    return [status.details["holds"] for status in queue.workers()]


def _thread(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


def _connections(client: redis.Redis) -> set[str]:
    clients: Any = client.client_list()
    return {each["id"] for each in clients}


def _wait(event: threading.Event) -> None:
    event.wait(60)


def _wait_for(condition: Any) -> None:
    with contextlib.suppress(TimeoutError):
        wait_until(condition, "it")
