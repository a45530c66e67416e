"""Plain queue use, on a real Valkey: what a block settles, what ends a wait, what survives."""

import dataclasses
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.processes import ROOT, wait_until
from devtools.valkey import Valkey, private_valkey
from tests.kit.clock import bound_of_waking
from tests.kit.engine import Heard
from tests.kit.proxy import Mode, Proxy
from tests.kit.queue_state import attempts, state
from tests.kit.workers import tasks as stored
from tests.kit.workers import with_connections
from worker import (
    Backoff,
    Consumer,
    ConsumerClosed,
    DeadLetter,
    DelayQueue,
    Delays,
    Failed,
    Outcome,
    Reschedule,
    Retry,
    Unavailable,
    UnsafeServer,
    events,
)
from worker.queue.replies import Place, Settlement
from worker.runtime.lane import Batch

#: What only ends a hang, on the busiest machine.
LONG = 60.0


class Waiting:
    """A consumer that waits for tasks in threads of its own."""

    def __init__(self, url: str, *queues: str, **settings: Any) -> None:
        self.heard = Heard()
        self.consumer = Consumer(url, queues, listeners=[self.heard], **settings)
        self._executor = ThreadPoolExecutor(2)

    def take(self, timeout_seconds: float | None = LONG) -> "Future[str | None]":
        """Take a task, and settle it; its id is the result. Returns when it waits."""
        self.heard.clear()
        taken = self._executor.submit(self._take, timeout_seconds)
        self.wait_for(events.Waiting)
        return taken

    def wait_behind(self, timeout_seconds: float) -> "Future[str | None]":
        """The same in a second thread, which waits for its turn to wait."""
        return self._executor.submit(self._take, timeout_seconds)

    def wait_for(self, kind: type[events.Event]) -> None:
        wait_until(lambda: self.heard.of(kind), kind.__name__)

    def listens(self, client: redis.Redis) -> None:
        """Wait until it hears what it is told."""
        channel = self.consumer._lane.stations[0].queue.keys.channel
        wait_until(lambda: dict(client.pubsub_numsub(channel))[channel.encode()], "it to listen")

    def _take(self, timeout_seconds: float | None) -> str | None:
        with self.consumer.take(timeout_seconds) as task:
            return task and task.id

    def close(self) -> None:
        self.consumer.close()
        self._executor.shutdown()


@pytest.fixture
def waiting(valkey: Valkey, redis_client: redis.Redis) -> Iterator[Waiting]:  # noqa: ARG001  empty
    made = Waiting(valkey.url, "q")
    yield made
    made.close()


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    return DelayQueue(redis_client, "q")


@pytest.fixture
def consumer(redis_client: redis.Redis) -> Iterator[Consumer]:
    with Consumer(redis_client, "q", backoff=Delays(60)) as made:
        yield made


@pytest.fixture
def no_slow_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a wait ends for, it was woken for."""
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", threading.TIMEOUT_MAX)


# -- waiting -------------------------------------------------------------------------------


def test_a_wait_costs_nothing_but_the_slow_poll(
    redis_client: redis.Redis, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting.consumer.take(0):
        waiting.listens(redis_client)
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", 0.2)
    with waiting.consumer.take(0.1):  # what the subscription woke is over
        redis_client.config_resetstat()
    waiting.heard.clear()

    with waiting.consumer.take(0.9) as task:
        assert task is None

    stats: Any = redis_client.info("commandstats")
    waits = waiting.heard.of(events.Waiting)
    assert 2 <= stats["cmdstat_evalsha"]["calls"] == len(waits) + 1 <= 6
    sent = {name.removeprefix("cmdstat_") for name in stats} - {"config|resetstat", "info"}
    reads = {"exists", "hexists", "time", "zrange", "zrangebyscore", "zrevrangebyscore"}
    assert sent <= {"evalsha", "zremrangebyscore"} | reads


@pytest.mark.clock
@pytest.mark.usefixtures("no_slow_poll")
def test_an_offer_from_another_process_wakes_within_5_ms(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    offer = """
import sys, worker
client = worker.connect(sys.argv[1], timeout_seconds=60)
while client.blpop("waits", 60)[1] != b"no more":
    worker.DelayQueue(client, "q").schedule("a", delay_ms=0)
"""
    late_ms: list[int] = []

    def listener(event: events.Event) -> None:
        if isinstance(event, events.Waiting):
            redis_client.rpush("waits", "for an offer")
        elif isinstance(event, events.Claimed):
            late_ms.append(event.late_ms)

    with (
        Consumer(valkey.url, "q", listeners=[listener]) as consumer,
        subprocess.Popen([sys.executable, "-c", offer, valkey.url], cwd=ROOT) as offering,
    ):
        for _ in range(21):
            with consumer.take(LONG) as task:
                assert task is not None
        redis_client.lpush("waits", "no more")
        assert offering.wait(LONG) == 0
    assert statistics.median(late_ms) <= bound_of_waking(5)


@pytest.mark.usefixtures("no_slow_poll")
def test_a_wait_ends_when_the_consumer_is_closed(waiting: Waiting) -> None:
    waits = [waiting.take(None), waiting.wait_behind(LONG)]
    waiting.consumer.close()
    for taken in waits:
        with pytest.raises(ConsumerClosed):
            taken.result(LONG)


# -- what a block says of its task ---------------------------------------------------------


def test_a_task_is_done_when_its_block_ends_and_not_before(
    queue: DelayQueue, consumer: Consumer
) -> None:
    queue.schedule("a", 1)
    with consumer.take():
        assert queue.stats().leased == 1
    assert state(queue) == {}
    assert consumer.counts == {"done": 1}


OUTCOMES: list[tuple[Outcome, dict[str, int], str]] = [
    (Retry(60_000), {"retried": 1}, "scheduled"),
    (Retry(60_000, counted=True), {"failed": 1}, "scheduled"),
    (Reschedule(60_000), {"retried": 1}, "scheduled"),
    (DeadLetter("no use"), {"dead": 1}, "dead"),
    (Failed("refused"), {"failed": 1}, "scheduled"),
]


@pytest.mark.parametrize(("outcome", "counts", "place"), OUTCOMES)
def test_an_outcome_raised_in_a_block_settles_the_task(
    queue: DelayQueue, consumer: Consumer, outcome: Outcome, counts: dict[str, int], place: str
) -> None:
    queue.schedule("a", 1)
    with consumer.take():
        raise outcome
    assert [*state(queue)[place]] == ["a"]
    assert consumer.counts == counts


def test_an_outage_counts_nothing_and_rests_the_queue(
    queue: DelayQueue, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.gate.PROBE", Backoff(base_seconds=3, cap_seconds=3))
    queue.schedule("a", 1)
    with waiting.consumer.take():
        raise Unavailable("the mail server")
    put_back = queue.look_up("a")
    assert put_back is not None
    assert (put_back.place, put_back.failures, put_back.deliveries) == (Place.SCHEDULED, 0, 0)
    with waiting.consumer.take(0) as task:
        assert task is None
    with waiting.consumer.take(LONG) as task:
        assert task is not None
    assert [type(event) for event in waiting.heard if "Flow" in type(event).__name__] == [
        events.FlowUp,
        events.FlowDown,
        events.FlowUp,
    ]


@pytest.mark.usefixtures("no_slow_poll")
def test_outages_are_in_a_row_until_a_block_ends_well(
    queue: DelayQueue, consumer: Consumer
) -> None:
    queue.schedule("a", 1)
    [station] = consumer._lane.stations
    for _ in range(2):
        with consumer.take(LONG):
            raise Unavailable("the mail server")
    assert station.gate._outages == 2
    with consumer.take(LONG):
        pass
    assert station.gate._outages == 0


def test_an_error_that_is_no_exception_fails_the_task(
    queue: DelayQueue, consumer: Consumer
) -> None:
    class Panic(BaseException):
        """As an extension written in Rust raises it."""

    queue.schedule("a", 1)
    with pytest.raises(Panic), consumer.take():
        raise Panic
    assert consumer.counts == {"failed": 1}


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
def test_leaving_the_process_gives_the_task_back_uncounted(
    queue: DelayQueue, consumer: Consumer, leave: type[BaseException]
) -> None:
    queue.schedule("a", 1)
    with pytest.raises(leave), consumer.take():
        raise leave
    assert state(queue) == {"scheduled": {"a": 1}, "tokens": {"a": attempts(1)}}


def test_a_block_that_outlasts_its_lease_writes_nothing(
    redis_client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("a", 1)
    heard = Heard()
    short: dict[str, Any] = {"lease_seconds": 0.2, "max_runtime_seconds": 0.1}
    with (
        Consumer(redis_client, "q", listeners=[heard], **short) as hung,
        Consumer(redis_client, "q") as other,
        hung.take(),
        other.take(LONG) as task,
    ):
        assert task is not None
        assert task.deliveries == 1
        wait_until(lambda: heard.of(events.RanTooLong), "it to be told")
    assert [event.ids for event in heard.of(events.RanTooLong)] == [["a"]]
    assert hung.counts == {"stale": 1}
    assert other.counts == {"done": 1}


def test_a_task_whose_lease_may_have_ended_is_given_back(
    queue: DelayQueue, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.schedule("a", 1)
    lane, claimed = consumer._lane, []
    claim = lane.next

    def freeze_once(until: float) -> Batch | None:
        batch = claim(until)
        claimed.append(batch)
        if batch is None or len(claimed) > 1:
            return batch
        return dataclasses.replace(batch, claimed_at=batch.claimed_at - 60)

    monkeypatch.setattr(lane, "next", freeze_once)
    with consumer.take(LONG) as task:
        assert task is not None
        assert (task.id, task.deliveries) == ("a", 0)
    assert consumer.counts == {"released": 1, "done": 1}
    assert len(claimed) == 2


# -- what goes away ------------------------------------------------------------------------


@pytest.mark.usefixtures("no_slow_poll")
@pytest.mark.parametrize("kind", ["pubsub", "normal and pubsub"])
def test_a_wait_survives_client_kill(
    redis_client: redis.Redis, queue: DelayQueue, waiting: Waiting, kind: str
) -> None:
    taken = waiting.take(None)
    waiting.listens(redis_client)
    if kind != "pubsub":
        redis_client.client_kill_filter(_type="normal", skipme=True)
    redis_client.client_kill_filter(_type="pubsub")
    queue.schedule("a", 1)
    assert taken.result(LONG) == "a"
    wait_until(lambda: stored(queue) == {}, "the ack")


def test_a_task_is_settled_after_its_connection_was_killed(
    redis_client: redis.Redis, queue: DelayQueue, waiting: Waiting
) -> None:
    queue.schedule("a", 1)
    with waiting.consumer.take():
        for kind in ("normal", "pubsub"):
            redis_client.client_kill_filter(_type=kind, skipme=True)
    with waiting.consumer.take(0):
        assert stored(queue) == {}


@pytest.mark.parametrize("closes", [True, False])
def test_what_redis_did_not_take_needs_no_other_take(
    redis_client: redis.Redis, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch, *, closes: bool
) -> None:
    queue.schedule("a", 1)
    # Whoever does not close it relies on the renewals, which look so often.
    consumer = Consumer(redis_client, "q", lease_seconds=600 if closes else 1)
    [station] = consumer._lane.stations
    settle, errors = station.queue.settle, iter([redis.ConnectionError("refused")])

    def refused_once(settlements: Sequence[Settlement]) -> None:
        for error in errors:
            raise error
        settle(settlements)

    monkeypatch.setattr(station.queue, "settle", refused_once)
    with consumer.take():
        pass
    if closes:
        assert [*state(queue)["leased"]] == ["a"]
        consumer.close()
    wait_until(lambda: stored(queue) == {}, "the ack")
    consumer.close()


@pytest.mark.parametrize("fault", ["reset", "silent"])
def test_a_wait_survives_a_firewall(
    valkey: Valkey, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", 0.1)
    proxy = Proxy(valkey.port)
    waiting = Waiting(f"redis://127.0.0.1:{proxy.port}/0", "q")
    taken = waiting.take(None)
    if fault == "reset":
        proxy.reset()
    else:
        proxy.mode = Mode.STALL
        waiting.wait_for(events.RedisLost)
        proxy.heal()
    queue.schedule("a", 1)
    assert taken.result(LONG) == "a"
    wait_until(lambda: stored(queue) == {}, "the ack")
    waiting.close()
    proxy.close()


@pytest.mark.usefixtures("no_slow_poll")
def test_a_wait_survives_a_firewall_that_drops_idle_links(
    valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.waker.LISTEN_SECONDS", 0.5)
    proxy = Proxy(valkey.port)
    url, each = f"redis://127.0.0.1:{proxy.port}/0", with_connections(health_check_interval=1)
    waiting = Waiting(url, "q", environment=each)
    taken = waiting.take(LONG)
    waiting.listens(redis_client)
    proxy.forget()
    queue.schedule("a", 1)  # the message does not arrive, and the next claim has no answer
    assert taken.result(LONG) == "a"
    wait_until(lambda: stored(queue) == {}, "the ack")
    waiting.close()
    proxy.close()


def test_a_server_that_may_delete_tasks_is_refused(tmp_path: Path) -> None:
    with (
        private_valkey(tmp_path, "--maxmemory-policy", "allkeys-lru") as server,
        redis.Redis.from_url(server.url) as client,
        Consumer(client, "q") as consumer,
    ):
        queue = DelayQueue(client, "q")
        queue.schedule("a", 1)
        with pytest.raises(UnsafeServer, match="allkeys-lru"), consumer.take(0):
            raise AssertionError
        assert state(queue) == {"scheduled": {"a": 1}}


# -- closing -------------------------------------------------------------------------------


def _connections(client: redis.Redis) -> int:
    """How many the consumer has that calls them its own."""
    clients: Any = client.client_list()
    return sum(each["name"] == "consumer" for each in clients)


def test_a_closed_consumer_leaves_no_thread_and_no_connection(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    threads = {*threading.enumerate()}
    named = with_connections(client_name="consumer")
    consumer = Consumer(valkey.url, ["q", "r"], environment=named)
    with consumer.take(0):
        wait_until(lambda: _connections(redis_client) == 2, "one to listen")
        started = {*threading.enumerate()} - threads
    assert started
    consumer.close()
    wait_until(lambda: not any(thread.is_alive() for thread in started), "the threads to end")
    wait_until(lambda: _connections(redis_client) == 0, "the connections to end")
    consumer.close()
    with pytest.raises(ConsumerClosed), consumer.take(0):
        raise AssertionError


def test_who_may_kill_the_process_does_not_begin_beside_such_a_task_of_another_queue(
    valkey: Valkey, queue: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    for now_ms in (1000, 1100):
        queue.claim(9, 100, now_ms=now_ms)
    with Consumer(valkey.url, "q") as consumer:
        with consumer._shared.suspects.running("another", 2), consumer.take(0) as task:
            assert task is None
        with consumer.take(LONG) as task:
            assert (task and task.deliveries) == 2


def test_closing_an_unused_consumer_asks_redis_nothing() -> None:
    Consumer("redis://127.0.0.1:1/0", "q").close()


def test_a_client_that_was_given_is_left_open(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.ping()
        with Consumer(client, "q") as consumer, consumer.take(0):
            pass
        held: Any = client.connection_pool
        assert [connection for connection in held._available_connections if connection._sock]


def test_a_signal_handler_may_close_it_during_the_first_take(valkey: Valkey) -> None:
    close = """
import os, signal, sys, worker
from worker.runtime.station import ServerCheck
consumer = worker.Consumer(sys.argv[1], "q")
signal.signal(signal.SIGTERM, lambda *_: consumer.close())
ServerCheck.check = lambda _: os.kill(os.getpid(), signal.SIGTERM)
try:
    with consumer.take():
        pass
except worker.ConsumerClosed:
    sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-c", close, valkey.url], check=False, cwd=ROOT, timeout=LONG
    )
    assert done.returncode == 7


def test_a_claim_that_the_close_overtakes_leases_nothing(
    valkey: Valkey, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Consumer(valkey.url, "q")
    [station] = consumer._lane.stations
    made: Any = consumer._made
    claim, close, order = station.queue.claim, made.close, []

    def claim_late(*args: Any, **options: Any) -> Any:
        with ThreadPoolExecutor(1) as other:
            other.submit(consumer.close).result()
        order.append("claim")
        return claim(*args, **options)

    def note_close() -> None:
        order.append("close")
        close()

    monkeypatch.setattr(station.queue, "claim", claim_late)
    monkeypatch.setattr(made, "close", note_close)
    queue.schedule("a", 1)
    with pytest.raises(ConsumerClosed), consumer.take():
        raise AssertionError
    assert order == ["claim", "close"]
    assert state(queue) == {"scheduled": {"a": 1}, "tokens": {"a": attempts(1)}}
