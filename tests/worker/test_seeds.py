"""What articles use a delay queue on Redis for, one use a test, written for `DelayQueue` and `Consumer`."""

import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis

from devtools.processes import ROOT, wait_until
from devtools.valkey import Valkey, private_valkey
from tests.kit.databases import DURABLE
from tests.kit.engine import Heard
from tests.kit.workers import running, with_connections
from worker import (
    Backoff,
    Consumer,
    ConsumerClosed,
    DelayQueue,
    Delays,
    Flow,
    Reschedule,
    Retry,
    Task,
    Worker,
    events,
)

#: What only ends a hang, on the busiest machine.
LONG = 60.0
MINUTE_MS = 60_000
DAY_MS = 86_400_000


def taken_id(consumer: Consumer) -> str:
    """Wait for a task, and do it."""
    with consumer.take() as task:
        return task.id


def drained(consumer: Consumer) -> list[str]:
    """Every task that is due now, done, in the order in which it came."""
    ids: list[str] = []
    while True:
        with consumer.take(0) as task:
            if task is None:
                return ids
            ids.append(task.id)


def due_in_ms(queue: DelayQueue) -> float:
    """Until the next task is due."""
    next_due_in_ms = queue.stats().next_due_in_ms
    assert next_due_in_ms is not None
    return next_due_in_ms


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    return DelayQueue(redis_client, "q")


# -- a plain queue -------------------------------------------------------------------------


def test_without_a_delay_tasks_come_in_the_order_offered(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    fruits = ["pear", "apple", "banana"]
    for n, fruit in enumerate(fruits):
        queue.schedule(fruit, n)
    assert queue.stats().scheduled == 3
    with Consumer(redis_client, "q") as consumer:
        for left, fruit in zip((2, 1, 0), fruits, strict=True):
            with consumer.take() as task:
                assert task.id == fruit
            assert queue.stats().scheduled == left
        with consumer.take(0) as nothing:
            assert nothing is None


def test_a_consumer_blocks_until_something_is_offered(
    redis_client: redis.Redis, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "worker.runtime.lane.SLOW_POLL_SECONDS", threading.TIMEOUT_MAX
    )  # it is woken
    with ThreadPoolExecutor(1) as thread, Consumer(redis_client, "q") as consumer:
        ids = thread.submit(taken_id, consumer)
        channel = queue.keys.channel
        wait_until(lambda: dict(redis_client.pubsub_numsub(channel))[channel.encode()], "it")
        queue.schedule("a", delay_ms=20)
        assert ids.result(LONG) == "a"


def test_an_idle_connection_that_is_closed_ends_no_loop(
    tmp_path: Path,
) -> None:
    heard = Heard()
    with (
        private_valkey(tmp_path, "--timeout", "1") as server,
        redis.Redis.from_url(server.url) as client,
        ThreadPoolExecutor(1) as thread,
        Consumer(
            server.url, "q", listeners=[heard], environment=with_connections(client_name="idle")
        ) as consumer,
    ):

        def open_connections() -> int:
            clients: Any = client.client_list(_type="normal")
            return sum(each["name"] == "idle" for each in clients)

        taken = thread.submit(taken_id, consumer)
        wait_until(lambda: heard.of(events.Waiting), "it to wait")
        wait_until(lambda: open_connections() == 0, "the server to close it", every=0.001)
        DelayQueue(client, "q").schedule("a", 1)
        assert taken.result(LONG) == "a"


def test_many_threads_and_processes_get_each_task_once(
    valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue
) -> None:
    ids = [str(n) for n in range(200)]
    queue.schedule_many((task_id, 1, b"") for task_id in ids)
    loop = """
import sys, worker
client = worker.connect(sys.argv[1])
with worker.Consumer(client, "q") as consumer:
    while True:
        with consumer.take(0.5) as task:
            if task is None:
                break
            client.rpush("taken", task.id)
"""
    others = [
        subprocess.Popen([sys.executable, "-c", loop, valkey.url], cwd=ROOT) for _ in range(2)
    ]
    with Consumer(redis_client, "q") as consumer, ThreadPoolExecutor(4) as threads:
        taken = [threads.submit(drained, consumer) for _ in range(4)]
        got = Counter(task_id for each in taken for task_id in each.result(LONG))
    for other in others:
        assert other.wait(LONG) == 0
    taken_there: Any = redis_client.lrange("taken", 0, -1)
    got.update(task_id.decode() for task_id in taken_there)
    assert got == Counter(ids)


def test_one_task_that_fails_does_not_end_the_loop(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule_many([("bad", 1, b""), ("good", 2, b"")])
    done = []
    with Consumer(redis_client, "q") as consumer:
        for _ in range(2):
            with suppress(ZeroDivisionError), consumer.take() as task:
                done.append(task.id if task.id == "good" else str(1 / 0))
    assert done == ["good"]
    assert queue.stats().scheduled == 1


# -- at a time, and after a delay ----------------------------------------------------------


def test_what_is_due_sooner_comes_sooner(redis_client: redis.Redis, queue: DelayQueue) -> None:
    seconds, _ = redis_client.time()
    for n in (5, 4, 3, 2, 1):  # at a time: on a busy machine delays would begin too far apart
        queue.schedule(f"hello, {n}", seconds * 1000 + 1000 + 20 * n)
    with Consumer(redis_client, "q") as consumer:
        got = []
        for _ in range(5):
            with consumer.take() as task:
                got.append(task.id)
    assert got == [f"hello, {n}" for n in (1, 2, 3, 4, 5)]


def test_a_mail_to_the_future_survives_a_restart_of_redis(
    tmp_path: Path,
) -> None:
    with (
        private_valkey(tmp_path, *DURABLE[:3], "always") as server,
        redis.Redis.from_url(server.url) as client,
    ):
        queue = DelayQueue(client, "mails")
        date_ms = 2_000_000_000_000
        queue.schedule("to myself", date_ms, b"Dear me, ...")
        server.kill()
        server.start()
        assert queue.claim(1, 1000, now_ms=date_ms - 1).tasks == []
        [task] = queue.claim(1, 1000, now_ms=date_ms).tasks
        assert (task.id, task.payload) == ("to myself", b"Dear me, ...")


def test_a_device_works_at_the_time_its_user_set_last(queue: DelayQueue) -> None:
    at_ms = 2_000_000_000_000
    queue.schedule("heating on", due_at_ms=at_ms)
    queue.schedule("heating on", due_at_ms=at_ms + MINUTE_MS)
    assert queue.claim(1, 1000, now_ms=at_ms + MINUTE_MS - 1).tasks == []
    [task] = queue.claim(1, 1000, now_ms=at_ms + MINUTE_MS).tasks
    assert task.due_at_ms == at_ms + MINUTE_MS


def test_a_text_message_is_put_off_during_a_rush(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("text to ada", 1)
    with Consumer(redis_client, "q") as consumer, consumer.take():
        raise Retry(2 * MINUTE_MS)
    assert MINUTE_MS < due_in_ms(queue) <= 2 * MINUTE_MS + 1


def test_a_failed_payment_is_reminded_of_until_it_succeeds(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("order-1", 1)
    reminded = 0
    with Consumer(redis_client, "q") as consumer:
        for is_paid in (False, False, True):
            with consumer.take():
                if not is_paid:
                    reminded += 1
                    raise Reschedule(10)
        assert drained(consumer) == []
    assert reminded == 2
    assert queue.stats().scheduled == 0


def test_a_message_is_unique_by_its_id_and_has_a_payload(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    for action in ("cancel", "cancel"):
        queue.schedule(str(uuid4()), 1, json.dumps({"order": "12345", "action": action}).encode())
    with Consumer(redis_client, "q") as consumer:
        for _ in range(2):
            with consumer.take() as task:
                assert json.loads(task.payload)["order"] == "12345"


def test_a_queue_with_different_delays_is_destroyed(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("msg1", delay_ms=10_000)
    queue.schedule("msg2", delay_ms=MINUTE_MS)
    assert queue.stats().scheduled == 2
    queue.destroy()
    assert redis_client.keys("*") == []


# -- retries and crashes -------------------------------------------------------------------


def test_a_request_that_finds_a_lock_taken_is_put_off(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule_many([("locked", 1, b""), ("other", 2, b""), ("locked too", 3, b"")])
    lock = threading.Lock()
    lock.acquire()
    done = []

    def handle(task: Task) -> None:
        if task.id.startswith("locked") and not lock.acquire(blocking=False):
            raise Retry(50)
        done.append(task.id)
        if task.id.startswith("locked"):
            lock.release()

    with Consumer(redis_client, "q") as consumer:
        for _ in range(3):
            with consumer.take() as task:
                handle(task)
        assert done == ["other"]
        lock.release()
        for _ in range(2):
            with consumer.take() as task:
                handle(task)
    assert done == ["other", "locked", "locked too"]
    assert queue.stats().dead == 0


def test_a_failed_call_is_tried_after_5_10_30_and_60_seconds(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    waits = []
    queue.schedule("call", 1)
    with Consumer(redis_client, "q", backoff=Delays(5, 10, 30, 60)) as consumer:
        for _ in range(5):
            with suppress(ConnectionError), consumer.take():
                raise ConnectionError
            waits.append(round(due_in_ms(queue) / 1000))
            _make_due(redis_client, queue)
    assert waits == pytest.approx([5, 10, 30, 60, 60], abs=3)


def _make_due(client: redis.Redis, queue: DelayQueue) -> None:
    ids: Any = client.zrange(queue.keys.scheduled, 0, -1)
    client.zadd(queue.keys.scheduled, dict.fromkeys(ids, 1))


@pytest.mark.parametrize(("factor", "waits"), [(2, [4, 8, 16]), (0.5, [8, 4, 2])])
def test_delays_may_grow_or_shrink_geometrically(
    redis_client: redis.Redis, queue: DelayQueue, factor: float, waits: list[int]
) -> None:
    queue.schedule("message", 1)

    def minutes(failures: int) -> float:
        return 60 * waits[0] * factor ** (failures - 1)

    with Consumer(redis_client, "q", backoff=minutes) as consumer:
        for wait in waits:
            with suppress(ConnectionError), consumer.take():
                raise ConnectionError
            assert (wait - 1) * MINUTE_MS < due_in_ms(queue) <= wait * MINUTE_MS + 1
            _make_due(redis_client, queue)


def test_a_dead_letter_can_be_sent_again(redis_client: redis.Redis, queue: DelayQueue) -> None:
    queue.schedule("order-1", 1, b"payload")
    quick = Backoff(base_seconds=0.001, cap_seconds=0.01)
    with Consumer(redis_client, "q", max_failures=3, backoff=quick) as consumer:
        for _ in range(3):
            with suppress(ValueError), consumer.take():
                raise ValueError("no such order")
        stats = queue.stats()
        assert (stats.scheduled, stats.leased, stats.dead) == (0, 0, 1)
        [letter] = queue.dead()
        assert (letter.payload, letter.story["failures"]) == (b"payload", 3)
        queue.requeue(["order-1"])
        assert drained(consumer) == ["order-1"]


def test_a_task_whose_consumer_crashed_is_taken_by_another(
    valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("a", 1)
    crash = """
import os, sys, worker
with worker.Consumer(sys.argv[1], "q", lease_seconds=0.2).take():
    os._exit(1)
"""
    subprocess.run([sys.executable, "-c", crash, valkey.url], check=False, cwd=ROOT)
    assert queue.stats().leased == 1
    with Consumer(redis_client, "q") as consumer, consumer.take() as task:
        assert (task.id, task.deliveries) == ("a", 1)


def test_a_task_longer_than_its_lease_is_not_taken_twice(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("slow", 1)
    with Consumer(redis_client, "q", lease_seconds=0.3) as consumer, consumer.take():

        def end_ms() -> float:
            return float(str(redis_client.zscore(queue.keys.leased, "slow")))

        first_ms = end_ms()
        wait_until(lambda: end_ms() > first_ms + 1000, "three more leases")
        assert drained(consumer) == []
    assert consumer.counts == {"done": 1}


# -- orders --------------------------------------------------------------------------------


def test_of_two_orders_the_unpaid_one_is_cancelled(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    orders = {"ORDER001": "unpaid", "ORDER002": "unpaid"}
    for order_id in orders:
        queue.schedule(order_id, delay_ms=30)
    orders["ORDER001"] = "paid"
    with Consumer(redis_client, "q") as consumer:
        for _ in orders:
            with consumer.take() as task:
                if orders[task.id] == "unpaid":
                    orders[task.id] = "cancelled"
    assert orders == {"ORDER001": "paid", "ORDER002": "cancelled"}


def test_the_check_of_a_paid_order_need_not_come(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule_many([("paid", 1, b""), ("unpaid", 2, b"")])
    queue.cancel("paid")
    with Consumer(redis_client, "q") as consumer:
        assert drained(consumer) == ["unpaid"]


# -- several queues, many tasks ------------------------------------------------------------


def test_three_queues_are_served_in_the_order_of_their_priority(
    redis_client: redis.Redis,
) -> None:
    names = ["high", "medium", "low"]
    for name in ("low", "high", "medium", "low", "high"):
        DelayQueue(redis_client, name).schedule(f"{name} {uuid4()}", 1)
    DelayQueue(redis_client, "high").schedule("not yet", delay_ms=DAY_MS)
    with Consumer(redis_client, names) as consumer:
        came = [task_id.split()[0] for task_id in drained(consumer)]
    assert came == ["high", "high", "medium", "low", "low"]


def test_a_hundred_tasks_are_handled_by_ten_threads(valkey: Valkey, queue: DelayQueue) -> None:
    queue.schedule_many((str(n), n, b"") for n in range(250))
    handled: list[str] = []
    sizes = []

    def handle(tasks: Sequence[Task]) -> None:
        sizes.append(len(tasks))
        handled.extend(threads.map(lambda task: task.id, tasks))

    flow = Flow(name="q", handler=handle, batch_size=100)
    with ThreadPoolExecutor(10) as threads, running(Worker([flow], valkey.url)):
        wait_until(lambda: len(handled) == 250, "all of them")
    assert sizes == [100, 100, 50]
    assert handled == [str(n) for n in range(250)]


def test_a_pool_of_threads_stops_gracefully(redis_client: redis.Redis, queue: DelayQueue) -> None:
    begun, finish = threading.Event(), threading.Event()
    queue.schedule_many([("in progress", 1, b"")])

    def loop(handle: Callable[[Task], object]) -> None:
        with suppress(ConsumerClosed):
            while True:
                with consumer.take() as task:
                    handle(task)

    def slow(_: Task) -> None:
        begun.set()
        assert finish.wait(LONG)

    consumer = Consumer(redis_client, "q")
    with ThreadPoolExecutor(5) as threads:
        loops = [threads.submit(loop, slow) for _ in range(5)]
        assert begun.wait(LONG)
        consumer.close()
        for idle in itertools.islice(as_completed(loops, LONG), 4):
            idle.result()
        queue.schedule("for the next consumer", 1)
        finish.set()
        for each in loops:
            each.result(LONG)
    assert consumer.counts == {"done": 1}
    assert queue.stats().due == 1


def test_the_queue_counts_what_waits_is_due_and_is_taken(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule_many([("taken", 1, b""), ("due", 2, b"")])
    queue.schedule("in half a minute", delay_ms=MINUTE_MS / 2)
    queue.schedule("in an hour", delay_ms=60 * MINUTE_MS)
    with Consumer(redis_client, "q") as consumer, consumer.take():
        stats = queue.stats()
    assert (stats.scheduled, stats.due, stats.leased, stats.dead) == (3, 1, 1, 0)
    assert stats.due_within_minute == 2
    assert stats.next_due_in_ms == 0
    queue.cancel("due")
    assert 0 < due_in_ms(queue) <= MINUTE_MS / 2 + 1
