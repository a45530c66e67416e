"""What the API tells Redis: later, together, and never at a customer's cost."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from devtools.processes import ROOT, free_port, wait_until
from devtools.valkey import Valkey
from orders.bootstrap import QUEUE
from orders.scheduler import MOST_WAITING, RedisScheduler
from tests.clock import bound
from worker import DelayQueue, connect

DUE_AT_MS = 4_000_000_000_000


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    return DelayQueue(redis_client, QUEUE)


@pytest.fixture
def scheduler(queue: DelayQueue) -> Iterator[RedisScheduler]:
    made = RedisScheduler(queue)
    yield made
    made.close()


def calls(client: redis.Redis) -> int:
    """Scripts that the server has run; it fails those that it does not know yet."""
    stats = client.info("commandstats")
    ran = [stats[name] for name in stats if name.startswith("cmdstat_eval")]
    return sum(each["calls"] - each["failed_calls"] for each in ran)


def test_checks_are_scheduled_and_cancelled_many_in_a_call(
    scheduler: RedisScheduler, queue: DelayQueue, redis_client: redis.Redis
) -> None:
    before = calls(redis_client)
    for n in range(1000):
        scheduler.schedule(f"order-{n}", DUE_AT_MS + n)
    wait_until(lambda: redis_client.zcard(queue.keys.scheduled) == 1000, "them to be scheduled")
    assert redis_client.zscore(queue.keys.scheduled, "order-7") == DUE_AT_MS + 7
    for n in range(1, 1000):
        scheduler.cancel(f"order-{n}")
    wait_until(lambda: redis_client.zcard(queue.keys.scheduled) == 1, "them to be cancelled")
    assert calls(redis_client) - before < 100


def test_what_is_told_while_it_gathers_goes_in_one_call(
    scheduler: RedisScheduler,
    queue: DelayQueue,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathering, enough = threading.Event(), threading.Event()

    def sleep(_seconds: float) -> None:
        gathering.set()
        assert enough.wait(60)

    monkeypatch.setattr("orders.scheduler.sleep", sleep)
    scheduler.schedule("first", DUE_AT_MS)
    assert gathering.wait(60)
    before = calls(redis_client)
    for n in range(10):
        scheduler.schedule(f"order-{n}", DUE_AT_MS)
    enough.set()
    wait_until(lambda: redis_client.zcard(queue.keys.scheduled) == 11, "them to be scheduled")
    assert calls(redis_client) - before == 1


def test_the_last_word_on_an_order_counts(
    scheduler: RedisScheduler, queue: DelayQueue, redis_client: redis.Redis
) -> None:
    scheduler.schedule("paid at once", DUE_AT_MS)
    scheduler.cancel("paid at once")
    scheduler.cancel("put back")
    scheduler.schedule("put back", DUE_AT_MS)
    scheduler.close()
    assert redis_client.zrange(queue.keys.scheduled, 0, -1) == [b"put back"]


def test_closing_says_what_is_left_and_need_not_be_the_end(
    scheduler: RedisScheduler, queue: DelayQueue
) -> None:
    scheduler.close()  # nothing was ever said
    for n in range(3):
        scheduler.schedule(f"order-{n}", DUE_AT_MS)
        scheduler.close()
        assert queue.stats().scheduled == n + 1


@pytest.mark.parametrize("where", ["Thread", "get_context('fork').Process"])
def test_a_process_that_ends_says_what_is_left(
    queue: DelayQueue, valkey: Valkey, where: str
) -> None:
    """A server's workers are forked, and end otherwise than a program does."""
    program = f"""
from multiprocessing import get_context
from threading import Thread
from orders.scheduler import RedisScheduler
from worker import DelayQueue, connect

def say():
    RedisScheduler(DelayQueue(connect({valkey.url!r}), {QUEUE!r})).schedule("last", {DUE_AT_MS})

said = {where}(target=say)
said.start()
said.join()
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    assert queue.stats().scheduled == 1


@pytest.mark.clock
def test_without_redis_nobody_waits_and_nothing_is_raised() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    scheduler = RedisScheduler(DelayQueue(client, QUEUE))
    began = time.monotonic()
    for n in range(1000):
        scheduler.schedule(f"order-{n}", DUE_AT_MS)
        scheduler.cancel(f"order-{n}")
    assert time.monotonic() - began < bound(1)
    scheduler.close()


def test_what_waits_is_bounded_and_a_slow_redis_is_told_in_the_end(
    scheduler: RedisScheduler,
    queue: DelayQueue,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, quick = threading.Event(), threading.Event()
    plain = queue.schedule_many

    def schedule_many(*args: object) -> object:
        slow.set()
        assert quick.wait(60)
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(queue, "schedule_many", schedule_many)
    scheduler.schedule("first", DUE_AT_MS)
    assert slow.wait(60)
    for n in range(MOST_WAITING + 1):
        scheduler.schedule(f"order-{n}", DUE_AT_MS)
    quick.set()
    wait_until(lambda: queue.stats().scheduled == 1 + MOST_WAITING, "all but one to be told")
    scheduler.close()
    assert redis_client.zscore(queue.keys.scheduled, f"order-{MOST_WAITING}") is None


def test_no_error_ends_it(
    scheduler: RedisScheduler, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def schedule_many(*_: object) -> None:
        failed.set()
        raise ValueError("not Redis's")

    with monkeypatch.context() as patch:
        patch.setattr(queue, "schedule_many", schedule_many)
        scheduler.schedule("lost", DUE_AT_MS)
        assert failed.wait(60)
    thread = scheduler._thread
    scheduler.schedule("next", DUE_AT_MS)
    wait_until(lambda: queue.stats().scheduled == 1, "the next to be scheduled")
    assert scheduler._thread is thread


def test_without_a_thread_nothing_is_raised_and_the_next_change_tries_again(
    scheduler: RedisScheduler, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for n in range(MOST_WAITING + 1):
            scheduler.schedule(f"order-{n}", DUE_AT_MS)
    scheduler.schedule("the one that is too many", DUE_AT_MS)
    wait_until(lambda: queue.stats().scheduled == MOST_WAITING, "them to be scheduled")
