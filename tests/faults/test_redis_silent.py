"""Redis falls silent, or swallows its answers: nothing is run twice, nothing is counted, nothing is lost.

The flows of these tests count what their handlers do, so a second run does not go unnoticed.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import redis

from devtools.processes import wait_until
from devtools.valkey import Valkey, private_valkey
from tests.kit.engine import Heard
from tests.kit.pauses import last
from tests.kit.proxy import Mode, Proxy
from tests.kit.workers import running, tasks
from worker import (
    Backoff,
    DeadLetter,
    DelayQueue,
    Due,
    Flow,
    Outcome,
    Retry,
    Task,
    Worker,
    events,
    one_at_a_time,
)
from worker.runtime import lane
from worker.runtime.sweep import SILENCE_SECONDS

NAME = "silent"
WORKERS = 4
SWEEP_SECONDS = 0.05
#: Longer than a test.
AGES = 3600.0


class Application:
    """Records that are all overdue, and a handler that says of each what it is told to."""

    def __init__(self, *ids: str, **said: Callable[[int], Outcome | None]) -> None:
        self.ids = [*ids]
        self._due_at = time.monotonic() - 1  # each of them
        #: How often the handler was given each.
        self.runs: Counter[str] = Counter()
        #: How often the sweep has read the records.
        self.reads = 0
        self._said = said

    def handle(self, batch: Sequence[Task]) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}
        for task in batch:
            self.runs[task.id] += 1
            outcome = self._said.get(task.id, _done)(self.runs[task.id])
            if outcome is not None:
                outcomes[task.id] = outcome
        return outcomes

    def waiting(self, _after: float | None, _before: float) -> Iterator[list[Due]]:
        self.reads += 1
        delay_ms = 1000 * (self._due_at - time.monotonic())
        yield [Due(name, delay_ms) for name in self.ids]

    def flow(self, without_redis: Literal["wait", "handle"] = "handle", **settings: Any) -> Flow:
        return Flow(
            name=NAME,
            handler=self.handle,
            sweep=self.waiting,
            without_redis=without_redis,
            sweep_seconds=SWEEP_SECONDS,
            **settings,
        )


def _done(_run: int) -> None:
    return None


@pytest.fixture
def proxy(valkey: Valkey) -> Iterator[Proxy]:
    made = Proxy(valkey.port)
    yield made
    made.close()


def through(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


# -- the sweep -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent_ms", "handed_out"), [(1200, 0), (6000, 1)], ids=["a hiccup", "an outage"]
)
def test_a_sweep_runs_no_settled_task_while_redis_is_silent(
    valkey: Valkey,
    redis_client: redis.Redis,
    silent_ms: int,
    handed_out: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not handed_out:  # on a busy machine the silence may seem to be longer than it is
        monkeypatch.setattr("worker.runtime.sweep.SILENCE_SECONDS", 10 * SILENCE_SECONDS)
    go_on = threading.Event()

    def block(_run: int) -> None:
        go_on.wait()

    app = Application(
        *("dead", "later", "slow"),
        dead=lambda _: DeadLetter("no use"),
        later=lambda _: Retry(60_000),
        slow=block,
        new=lambda _: app.ids.remove("new"),
    )
    worker = Worker([app.flow(batch_size=1)], valkey.url, threads=2)
    queue = DelayQueue(redis_client, NAME)
    with running(worker):
        wait_until(lambda: queue.stats().dead and app.runs["later"] and app.runs["slow"], "all")
        wait_until(lambda: worker.counts["retried"], "the one that was put off to be settled")
        redis_client.client_pause(silent_ms)
        app.ids.append("new")
        if handed_out:
            wait_until(lambda: worker.counts["handled without Redis"], "the sweep to handle it")
        redis_client.ping()  # answered when the silence ends
        wait_until(lambda: app.runs["new"], "the new one")
        reads = app.reads
        wait_until(lambda: app.reads > reads + 2, "the sweep to have gone on")
        go_on.set()
    assert app.runs == {"dead": 1, "later": 1, "slow": 1, "new": 1}
    assert worker.counts["handled without Redis"] == handed_out


def test_without_redis_a_flow_waits_unless_it_asked_to_run(tmp_path: Path) -> None:
    apps = [Application("a", "b") for _ in range(WORKERS)]
    with private_valkey(tmp_path, "--save", "") as server, ExitStack() as stack:
        workers = [Worker([app.flow("wait")], server.url) for app in apps]
        server.kill()
        stack.enter_context(running(*workers))
        wait_until(lambda: all(worker._stations[0].failing for worker in workers), "claims to fail")
        last(SILENCE_SECONDS + 10 * SWEEP_SECONDS)
        assert not any(app.runs for app in apps)

        server.start()
        wait_until(lambda: sum((app.runs for app in apps), Counter()).total() >= 2, "both")
        with redis.Redis.from_url(server.url) as client:
            queue = DelayQueue(client, NAME)
            wait_until(lambda: not queue.stats().leased, "the acks")
    assert not any(worker.counts["handled without Redis"] for worker in workers)


def test_without_redis_no_worker_repeats_what_it_has_put_off(tmp_path: Path) -> None:
    apps = [Application("later", "done", later=lambda _: Retry(60_000)) for _ in range(WORKERS)]
    with private_valkey(tmp_path, "--save", "") as server:
        server.kill()
        with running(*(Worker([app.flow()], server.url) for app in apps)):
            wait_until(lambda: all(app.runs["done"] >= 3 for app in apps), "some rounds of each")
    # Its records call a task overdue until it is no more: what is not done comes in each round.
    assert [app.runs["later"] for app in apps] == [1] * WORKERS


def test_without_redis_a_failed_task_comes_after_its_backoff(
    tmp_path: Path,
) -> None:
    times: list[float] = []

    def fail_once(run: int) -> None:
        times.append(time.monotonic())
        if run == 1:
            raise ValueError("passes")
        app.ids.clear()

    app = Application("frail", frail=fail_once)
    backoff = Backoff(base_seconds=0.4, cap_seconds=0.4)
    with private_valkey(tmp_path, "--save", "") as server:
        server.kill()
        worker = Worker([app.flow(backoff=backoff)], server.url)
        with running(worker):
            wait_until(lambda: worker.counts["handled without Redis"], "the second attempt")
    assert app.runs == {"frail": 2}
    [gap] = [after - before for before, after in pairwise(times)]
    assert gap >= 0.2, "half of the backoff at least"


# -- the claims ----------------------------------------------------------------------------


def test_no_claim_whose_reply_is_lost_counts_as_a_delivery(
    redis_client: redis.Redis, proxy: Proxy
) -> None:
    seen: list[Task] = []
    flow = Flow(name=NAME, handler=seen.extend, lease_seconds=0.3, max_deliveries=3)
    queue = DelayQueue(redis_client, NAME)
    ids = [f"task {n:02}" for n in range(20)]
    with running(Worker([flow], through(proxy))):
        queue.schedule("ready", 1)
        wait_until(lambda: seen and tasks(queue) == {}, "the worker to be at work")
        seen.clear()
        proxy.mode = Mode.STALL_SCRIPTS
        queue.schedule_many((name, 1, b"") for name in ids)
        # More often than a task may be delivered: before, each of them was one.
        wait_until(lambda: proxy.swallowed > 2 * flow.max_deliveries, "claims to be lost")
        assert not seen
        proxy.heal()
        wait_until(lambda: not tasks(queue), "all to be done")
    assert sorted(task.id for task in seen) == ids
    assert {task.deliveries for task in seen} == {0}
    assert queue.stats().dead == 0


def test_what_lost_claims_leased_does_not_wait_for_its_lease(
    redis_client: redis.Redis, proxy: Proxy
) -> None:
    seen, heard = list[Task](), Heard()
    queue = DelayQueue(redis_client, NAME)
    flow = Flow(name=NAME, handler=seen.extend, lease_seconds=AGES)
    with running(Worker([flow], through(proxy), listeners=[heard])):
        queue.schedule("ready", 1)
        # A claim that brings nothing would be lost first, and only be given back from then on.
        wait_until(
            lambda: seen and isinstance(heard[-1], events.Waiting), "no claim to be under way"
        )
        proxy.mode = Mode.STALL_SCRIPTS
        queue.schedule_many((f"task {n:02}", 1, b"") for n in range(20))
        wait_until(lambda: queue.stats().leased == 20, "a claim to be lost")
        proxy.heal()
        wait_until(lambda: not tasks(queue), "all to be done")
    assert len(seen) == 1 + 20


@pytest.mark.slow
def test_a_freeze_longer_than_the_lease_is_no_death(tmp_path: Path) -> None:
    runs: Counter[str] = Counter()
    go_on = threading.Event()

    @one_at_a_time
    def work(task: Task) -> None:
        runs[f"{task.id} {task.deliveries}"] += 1
        go_on.wait()

    flow = Flow(name=NAME, handler=work, lease_seconds=3)
    with private_valkey(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        queue = DelayQueue(client, NAME)
        queue.schedule_many((f"{n}", 1, b"") for n in range(8))
        with running(*(Worker([flow], server.url, threads=6) for _ in range(2))):
            wait_until(lambda: len(runs) == 8, "all to be begun")
            for _freeze in range(2):
                assert server.process
                server.process.signal(signal.SIGSTOP)
                last(4)
                server.process.signal(signal.SIGCONT)
                last(3)  # longer than the leases are spared
            go_on.set()
            wait_until(lambda: not tasks(queue), "all to be done")
    assert runs == {f"{n} 0": 1 for n in range(8)}


# -- the acks ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.STALL, Mode.STALL_SCRIPTS], ids=["not sent", "no reply"])
def test_an_unconfirmed_ack_is_repeated_without_the_handler(
    redis_client: redis.Redis, proxy: Proxy, mode: Mode
) -> None:
    runs: Counter[str] = Counter()

    def handle(batch: Sequence[Task]) -> None:
        runs.update(task.id for task in batch)
        proxy.mode = mode  # from now on, until it heals

    queue = DelayQueue(redis_client, NAME)
    worker = Worker([Flow(name=NAME, handler=handle, lease_seconds=AGES)], through(proxy))
    queue.schedule("a", 1)
    with running(worker):
        wait_until(lambda: worker._stations[0].failing, "the ack and a claim to fail")
        assert runs == {"a": 1}
        proxy.heal()
        wait_until(lambda: not tasks(queue), "the ack, long before the lease ends")
        # An ack that went through already finds nothing to do.
        wait_until(lambda: worker.counts["done"] + worker.counts["stale"], "it to be counted")
    assert runs == {"a": 1}


def test_a_slow_ack_is_repeated_while_another_thread_waits(
    valkey: Valkey, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "SLOW_POLL_SECONDS", AGES)
    runs: Counter[str] = Counter()

    def handle(batch: Sequence[Task]) -> None:
        runs.update(task.id for task in batch)
        last(0.2)  # the other thread waits by then, for this lease to end
        redis_client.client_pause(1100)  # a little longer than the worker waits for a reply

    flow = Flow(name=NAME, handler=handle, lease_seconds=AGES)
    queue = DelayQueue(redis_client, NAME)
    worker = Worker([flow], valkey.url, threads=2)
    with running(worker):
        queue.schedule("a", 1)
        wait_until(lambda: runs["a"], "the handler")
        redis_client.ping()
        wait_until(lambda: not tasks(queue), "the ack")
    assert runs == {"a": 1}
