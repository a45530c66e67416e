"""Changes that go to Redis later, together, and never at their caller's cost."""

import gc
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
import redis
import structlog

from devtools.processes import ROOT, free_port, wait_until
from devtools.valkey import Valkey
from tests.kit.clock import bound
from tests.kit.settling import dead_letter
from worker import BatchScheduler, DelayQueue, Due, connect
from worker.queue.environment import Environment
from worker.queue.formats import SLICE
from worker.queue.scheduler import MAX_WAITING

QUEUE = "q"
DUE_AT_MS = 4_000_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    return DelayQueue(redis_client, QUEUE)


@pytest.fixture
def scheduler(queue: DelayQueue) -> Iterator[BatchScheduler]:
    made = BatchScheduler(queue)
    yield made
    made.close()


def calls(client: redis.Redis) -> int:
    """Scripts that the server has run; it fails those that it does not know yet."""
    stats = client.info("commandstats")
    ran = [stats[name] for name in stats if name.startswith("cmdstat_eval")]
    return sum(each["calls"] - each["failed_calls"] for each in ran)


def test_tasks_are_scheduled_and_cancelled_many_in_a_call(
    scheduler: BatchScheduler, queue: DelayQueue, redis_client: redis.Redis
) -> None:
    before = calls(redis_client)
    with scheduler._changed:  # so that none is sent before all are there, however slow the machine
        for n in range(1000):
            scheduler.schedule(f"order-{n}", DUE_AT_MS + n)
    wait_until(lambda: redis_client.zcard(queue.keys.scheduled) == 1000, "them to be scheduled")
    assert redis_client.zscore(queue.keys.scheduled, "order-7") == DUE_AT_MS + 7
    with scheduler._changed:
        for n in range(1, 1000):
            scheduler.cancel(f"order-{n}")
    wait_until(lambda: redis_client.zcard(queue.keys.scheduled) == 1, "them to be cancelled")
    assert calls(redis_client) - before < 100


def test_what_is_changed_while_it_lingers_goes_in_one_call(
    scheduler: BatchScheduler,
    queue: DelayQueue,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lingering, enough = threading.Event(), threading.Event()

    def sleep(_seconds: float) -> None:
        lingering.set()
        assert enough.wait(60)

    monkeypatch.setattr("worker.queue.scheduler.sleep", sleep)
    scheduler.schedule("first", DUE_AT_MS)
    assert lingering.wait(60)
    before = calls(redis_client)
    for n in range(10):
        scheduler.schedule(f"order-{n}", DUE_AT_MS)
    enough.set()
    wait_until(lambda: redis_client.zcard(queue.keys.scheduled) == 11, "them to be scheduled")
    assert calls(redis_client) - before == 1


def test_of_several_changes_to_a_task_the_last_one_counts(
    scheduler: BatchScheduler, queue: DelayQueue, redis_client: redis.Redis
) -> None:
    scheduler.schedule("paid at once", DUE_AT_MS)
    scheduler.cancel("paid at once")
    scheduler.cancel("put back")
    scheduler.schedule("put back", DUE_AT_MS)
    scheduler.close()
    assert redis_client.zrange(queue.keys.scheduled, 0, -1) == [b"put back"]


def test_closing_sends_what_is_left_and_need_not_be_the_end(
    scheduler: BatchScheduler, queue: DelayQueue
) -> None:
    scheduler.close()  # nothing was ever changed
    for n in range(3):
        scheduler.schedule(f"order-{n}", DUE_AT_MS)
        scheduler.close()
        assert queue.stats().scheduled == n + 1


@pytest.mark.parametrize("where", ["Thread", "get_context('fork').Process"])
def test_a_process_that_ends_sends_what_is_left(
    queue: DelayQueue, valkey: Valkey, where: str
) -> None:
    """A server's workers are forked, and end otherwise than a program does."""
    program = f"""
from multiprocessing import get_context
from threading import Thread
from worker import BatchScheduler, DelayQueue, connect

def schedule():
    BatchScheduler(DelayQueue(connect({valkey.url!r}), {QUEUE!r})).schedule("last", {DUE_AT_MS})

scheduling = {where}(target=schedule)
scheduling.start()
scheduling.join()
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    assert queue.stats().scheduled == 1


@pytest.mark.clock
def test_without_redis_nobody_waits_and_nothing_is_raised() -> None:
    client = connect(f"redis://127.0.0.1:{free_port()}/0")
    scheduler = BatchScheduler(DelayQueue(client, QUEUE))
    began = time.monotonic()
    for n in range(1000):
        scheduler.schedule(f"order-{n}", DUE_AT_MS)
        scheduler.cancel(f"order-{n}")
    assert time.monotonic() - began < bound(1)
    scheduler.close()


def test_no_error_ends_it(
    scheduler: BatchScheduler, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
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


@contextmanager
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No thread can be started in here."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield


def test_without_a_thread_the_next_change_tries_again(
    scheduler: BatchScheduler, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with no_threads(monkeypatch):
        for n in range(MAX_WAITING + 1):
            scheduler.schedule(f"order-{n}", DUE_AT_MS)
    scheduler.schedule("the one that is too many", DUE_AT_MS)
    wait_until(lambda: queue.stats().scheduled == MAX_WAITING, "them to be scheduled")


# -- delays --------------------------------------------------------------------------------


def now_ms(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return 1000 * seconds + microseconds / 1000


def due_at_ms(client: redis.Redis, queue: DelayQueue, task_id: str) -> float:
    return float(str(client.zscore(queue.keys.scheduled, task_id)))


def test_a_delay_counts_from_the_call(
    queue: DelayQueue, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited_ms = 0.0, 600_000
    queue.environment = Environment(clock=lambda: now)
    scheduler = BatchScheduler(queue)

    def sleep(_seconds: float) -> None:
        nonlocal now
        now = waited_ms / 1000  # as if Redis had been silent for ten minutes

    monkeypatch.setattr("worker.queue.scheduler.sleep", sleep)
    delays_ms = {"ahead": HOUR_MS, "overdue by now": 60_000, "overdue already": -1000}
    before = now_ms(redis_client)
    with scheduler._changed:  # so that all go in one call
        for task_id, delay_ms in delays_ms.items():
            scheduler.schedule(task_id, delay_ms=delay_ms)
        scheduler.schedule("overdue by as much as can be", delay_ms=-(2**52))
    wait_until(lambda: queue.stats().scheduled == 4, "them to be scheduled")
    after = now_ms(redis_client)
    for task_id, delay_ms in delays_ms.items():
        left = delay_ms - waited_ms
        assert before + left <= due_at_ms(redis_client, queue, task_id) <= after + left + 1
    assert due_at_ms(redis_client, queue, "overdue by as much as can be") == 0


def test_none_is_early_and_none_later_than_it_took_to_send_it(
    scheduler: BatchScheduler, queue: DelayQueue, redis_client: redis.Redis
) -> None:
    called: dict[str, float] = {}
    for n in range(3 * SLICE):
        if n % 100 == 0:
            called[str(n)] = now_ms(redis_client)
        scheduler.schedule(str(n), delay_ms=HOUR_MS)
    wait_until(lambda: queue.stats().scheduled == 3 * SLICE, "them to be scheduled")
    sent = now_ms(redis_client)
    for task_id, at in called.items():
        assert at <= due_at_ms(redis_client, queue, task_id) - HOUR_MS <= sent + 1


# -- what a batch must not suffer from -----------------------------------------------------


def test_a_payload_that_cannot_be_stored_is_refused_at_once(
    scheduler: BatchScheduler, queue: DelayQueue
) -> None:
    wrong: list[tuple[type[Exception], Callable[[], None]]] = [
        (ValueError, lambda: scheduler.schedule("a")),
        (ValueError, lambda: scheduler.schedule("a", 1, delay_ms=1)),
        (ValueError, lambda: scheduler.schedule("a", delay_ms=float("nan"))),
        (ValueError, lambda: scheduler.schedule("a", -1)),
        (ValueError, lambda: scheduler.schedule("", 1)),
        (ValueError, lambda: scheduler.schedule("\ud800", 1)),
        (ValueError, lambda: scheduler.cancel("\ud800")),
        (TypeError, lambda: scheduler.schedule("a", 1, bytearray(b"x"))),  # type: ignore[arg-type]
    ]
    scheduler.schedule("good", 1, b"\x00\xff")
    for error, call in wrong:
        with pytest.raises(error):
            call()
    scheduler.close()
    [task] = queue.claim(10, 1000).tasks
    assert (task.id, task.payload) == ("good", b"\x00\xff")


def test_a_full_server_takes_no_tasks_and_still_cancels(
    scheduler: BatchScheduler, queue: DelayQueue, redis_client: redis.Redis
) -> None:
    queue.schedule("paid", DUE_AT_MS)
    redis_client.config_set("maxmemory", 1)
    try:
        with scheduler._changed:  # so that both go together
            scheduler.schedule("new", DUE_AT_MS)
            scheduler.cancel("paid")
        scheduler.close()
    finally:
        redis_client.config_set("maxmemory", 0)
    assert queue.stats().scheduled == 0


def test_a_delay_may_be_a_decimal_as_a_database_has_it(
    scheduler: BatchScheduler, queue: DelayQueue
) -> None:
    scheduler.schedule("others", delay_ms=HOUR_MS)
    delay_ms: Any = Decimal(HOUR_MS)
    scheduler.schedule("decimal", delay_ms=delay_ms)
    scheduler.close()
    assert queue.stats().scheduled == 2


def stopped(scheduler: BatchScheduler, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold the thread in its first call until the event is set."""
    slow, quick = threading.Event(), threading.Event()
    queue, plain = scheduler._queue, scheduler._queue.schedule_many

    def schedule_many(*args: Any) -> object:
        slow.set()
        assert quick.wait(60)
        return plain(*args)

    monkeypatch.setattr(queue, "schedule_many", schedule_many)
    scheduler.schedule("first", DUE_AT_MS)
    assert slow.wait(60)
    return quick


def test_what_waits_is_bounded_and_can_still_be_changed(
    scheduler: BatchScheduler,
    queue: DelayQueue,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = stopped(scheduler, monkeypatch)
    with structlog.testing.capture_logs() as logs:
        for n in range(MAX_WAITING + 7):
            scheduler.schedule(str(n), DUE_AT_MS)
    scheduler.cancel("0")
    scheduler.schedule("1", DUE_AT_MS + 1)
    quick.set()
    wait_until(lambda: queue.stats().scheduled == MAX_WAITING, "all but one to be sent")
    scheduler.close()
    assert due_at_ms(redis_client, queue, "1") == DUE_AT_MS + 1
    assert redis_client.zscore(queue.keys.scheduled, "0") is None
    assert redis_client.zscore(queue.keys.scheduled, str(MAX_WAITING - 1)) == DUE_AT_MS
    assert redis_client.zscore(queue.keys.scheduled, str(MAX_WAITING)) is None
    assert [log["event"] for log in logs] == ["too many changes waiting"]


def test_what_has_piled_up_is_sent_at_once_a_slice_in_a_call(
    scheduler: BatchScheduler, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = stopped(scheduler, monkeypatch)
    for n in range(4 * SLICE):
        scheduler.schedule(str(n), DUE_AT_MS)

    def sleep(_seconds: float) -> None:
        raise AssertionError("nothing to wait for")

    sizes = []
    plain = queue.schedule_many

    def schedule_many(tasks: Iterable[Due]) -> None:
        due = [*tasks]
        sizes.append(len(due))
        plain(due)

    monkeypatch.setattr("worker.queue.scheduler.sleep", sleep)
    monkeypatch.setattr(queue, "schedule_many", schedule_many)
    quick.set()
    wait_until(lambda: queue.stats().scheduled == 1 + 4 * SLICE, "all to be sent")
    assert sizes == 4 * [SLICE], "so that a refusal loses no more than that"
    assert scheduler._thread.is_alive()


@pytest.mark.clock
def test_closing_waits_a_second_at_most_for_a_silent_redis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout_seconds=60)
        scheduler = BatchScheduler(DelayQueue(client, QUEUE))
        scheduler.schedule("a", DUE_AT_MS)
        thread, began = scheduler._thread, time.monotonic()
        scheduler.close()
        assert 0.9 < time.monotonic() - began < bound(1.5)
    thread.join(60)


def test_closing_sends_what_had_no_thread(
    scheduler: BatchScheduler, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with no_threads(monkeypatch):
        scheduler.schedule("a", DUE_AT_MS)
        scheduler.close()
    scheduler.close()
    assert queue.stats().scheduled == 1


def test_a_closed_scheduler_is_forgotten(queue: DelayQueue) -> None:
    with BatchScheduler(queue) as scheduler:
        scheduler.schedule("a", DUE_AT_MS)
    thread, forgotten = scheduler._thread, weakref.ref(scheduler)
    assert not thread.is_alive()
    del scheduler
    gc.collect()
    assert forgotten() is None
    assert queue.stats().scheduled == 1


def test_a_forked_process_sends_only_its_own_changes(
    queue: DelayQueue, redis_client: redis.Redis, valkey: Valkey
) -> None:
    program = f"""
import os, signal, time
from worker import BatchScheduler, DelayQueue, connect
from worker.queue import scheduler

client = connect({valkey.url!r})
scheduler.LINGER_SECONDS = 0.5
batch = BatchScheduler(DelayQueue(client, {QUEUE!r}))
batch.schedule("parent", {DUE_AT_MS})
with batch._changed:
    child = os.fork()
if child == 0:
    signal.alarm(60)
    assert not batch._waiting
    batch.schedule("child", {DUE_AT_MS})
    batch.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    found: Any = redis_client.zrange(queue.keys.scheduled, 0, -1)
    assert sorted(found) == [b"child", b"parent"]


def test_a_dead_task_stays_dead_unless_told_otherwise(
    queue: DelayQueue, scheduler: BatchScheduler
) -> None:
    queue.schedule_many([("a", 1, b""), ("b", 1, b"")])
    dead_letter(queue, [(task, "bad", None) for task in queue.claim(2, 1000).tasks])
    scheduler.schedule("a", delay_ms=60_000)
    scheduler.schedule("b", delay_ms=60_000, even_if_dead=True)
    scheduler.schedule("new", delay_ms=60_000, even_if_dead=True)
    scheduler.close()
    assert [letter.id for letter in queue.letters(["a", "b"])] == ["a"]
    assert queue.stats().scheduled == 2
