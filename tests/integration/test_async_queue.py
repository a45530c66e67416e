"""Producers in asyncio, on real servers: who is woken, and what a call leaves behind that failed."""

import asyncio
import gc
import statistics
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from devtools.processes import Process, free_port, wait_until
from devtools.valkey import Valkey, private_valkey, valkey_server
from tests.clock import bound_of_waking
from tests.conftest import DURABLE
from tests.contract.state import state
from tests.faults.proxy import Mode, Proxy
from tests.integration.workers import running, tasks
from tests.unit.engine import Heard
from worker import (
    AsyncDelayQueue,
    Cancelled,
    Consumer,
    DelayQueue,
    Flow,
    Scheduled,
    Worker,
    connect_async,
    events,
    one_at_a_time,
)

DAY = 86_400_000
#: What only ends a hang, on the busiest machine.
LONG = 60.0


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    return DelayQueue(redis_client, "q")


@asynccontextmanager
async def producing(url: str, **settings: Any) -> AsyncIterator[AsyncDelayQueue]:
    """A queue on a client of its own, which has loaded the scripts that it uses."""
    async with connect_async(url, **{"timeout_seconds": LONG, **settings}) as client:
        producer = AsyncDelayQueue(client, "q")
        await producer.schedule("first", delay_ms=DAY)
        await producer.cancel("first")
        await producer.stats()
        yield producer


@asynccontextmanager
async def held_up(client: redis.Redis) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """The server runs no script in here. Gives a function that waits for so many to have come."""

    async def until(calls: int) -> None:
        def came() -> bool:
            clients: Any = client.client_list()
            waiting = [
                each for each in clients if each["cmd"] == "evalsha" and "b" in each["flags"]
            ]
            return len(waiting) == calls

        await asyncio.to_thread(wait_until, came, f"{calls} calls")

    client.client_pause(round(1000 * LONG), all=False)
    try:
        yield until
    finally:
        client.client_unpause()


# -- waking --------------------------------------------------------------------------------


@pytest.mark.clock
def test_an_earlier_task_wakes_a_consumer_that_waits(
    valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", threading.TIMEOUT_MAX)
    queue.schedule("far", delay_ms=DAY)
    heard, late = Heard(), []

    def take(consumer: Consumer) -> str | None:
        with consumer.take() as task:
            return task and task.id

    async def produce(consumer: Consumer) -> None:
        async with producing(valkey.url) as producer:
            for n in range(5):
                heard.clear()
                taken = asyncio.create_task(asyncio.to_thread(take, consumer))
                await asyncio.to_thread(wait_until, lambda: heard.of(events.Waiting), "it to wait")
                await asyncio.to_thread(wait_until, listens, "it to listen")
                await producer.schedule(f"near {n}", delay_ms=0)
                assert await taken == f"near {n}"
                [claimed] = heard.of(events.Claimed)
                late.append(claimed.late_ms)

    def listens() -> bool:
        return dict(redis_client.pubsub_numsub(queue.keys.wake))[queue.keys.wake.encode()] == 1

    with Consumer(valkey.url, "q", listeners=[heard]) as consumer:
        asyncio.run(produce(consumer))
    assert min(late) >= 0
    assert statistics.median(late) <= bound_of_waking(20)


def test_a_worker_runs_what_is_scheduled_and_not_cancelled(
    valkey: Valkey, queue: DelayQueue
) -> None:
    ran: list[str] = []
    flow = Flow(name="q", handler=one_at_a_time(lambda task: ran.append(task.id)))

    async def produce() -> None:
        async with producing(valkey.url) as producer:
            await asyncio.gather(*(producer.schedule(f"{n}", delay_ms=DAY) for n in range(50)))
            cancelled = await producer.cancel_many(f"{n}" for n in range(0, 50, 2))
            assert cancelled == 25 * [Cancelled.REMOVED]
            await producer.schedule_many((f"{n}", 1, b"") for n in range(1, 50, 2))

    with running(Worker([flow], valkey.url)):
        asyncio.run(produce())
        wait_until(lambda: tasks(queue) == {}, "the tasks")
    assert sorted(map(int, ran)) == [*range(1, 50, 2)]


# -- what goes away ------------------------------------------------------------------------


def test_a_queue_survives_client_kill_between_calls(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    async def produce() -> None:
        async with producing(valkey.url, reconnect=True) as producer:
            redis_client.client_kill_filter(_type="normal", skipme=True)
            assert await producer.schedule("a", 1) is Scheduled.CREATED

    asyncio.run(produce())


@pytest.mark.parametrize("reconnect", [False, True])
def test_with_reconnect_a_killed_connections_call_is_sent_again(
    valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue, *, reconnect: bool
) -> None:
    async def produce() -> None:
        async with producing(valkey.url, reconnect=reconnect) as producer:
            async with held_up(redis_client) as until:
                call = asyncio.create_task(producer.schedule("a", 1))
                await until(1)
                redis_client.client_kill_filter(_type="normal", skipme=True)
                if not reconnect:
                    with pytest.raises(redis.ConnectionError):
                        await call
            if reconnect:
                assert await call is Scheduled.CREATED
            assert await producer.schedule("b", 1) is Scheduled.CREATED

    asyncio.run(produce())
    assert state(queue)["scheduled"] == ({"a": 1, "b": 1} if reconnect else {"b": 1})


def test_a_call_without_a_reply_is_not_sent_again(valkey: Valkey, queue: DelayQueue) -> None:
    proxy = Proxy(valkey.port)

    async def produce() -> None:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with producing(url, reconnect=True, timeout_seconds=2) as producer:
            proxy.mode = Mode.STALL_SCRIPTS
            with pytest.raises(redis.TimeoutError):
                await producer.schedule("a", 1, b"x")
            assert proxy.swallowed == 1
            proxy.heal()
            assert await producer.schedule("a", 1, b"x") is Scheduled.UNCHANGED

    asyncio.run(produce())
    proxy.close()
    assert state(queue) == {"scheduled": {"a": 1}, "payloads": {"a": b"x"}}


def test_a_queue_survives_a_restart_of_redis(tmp_path: Path) -> None:
    async def produce(server: Valkey) -> None:
        async with producing(server.url, reconnect=True) as producer:
            await producer.schedule("a", 1)
            server.kill()
            with pytest.raises(redis.ConnectionError):
                await producer.schedule("b", 1)
            server.start()
            assert await producer.schedule("a", 1) is Scheduled.UNCHANGED
            assert (await producer.stats()).scheduled == 1

    with private_valkey(tmp_path, *DURABLE[:3], "always") as server:
        asyncio.run(produce(server))


# -- cancelled tasks, many tasks, several loops ----------------------------------------------


def test_a_cancelled_call_leaves_no_reply_and_no_connection(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    async def produce() -> None:
        async with producing(valkey.url, max_connections=3) as producer:
            async with held_up(redis_client) as until:
                calls = [asyncio.create_task(producer.schedule("a", 1)) for _ in range(6)]
                await until(3)
                for call in calls:  # three wait for a reply, and three for a connection
                    call.cancel()
                ended = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(error) for error in ended] == 6 * [asyncio.CancelledError]
            stats = asyncio.create_task(producer.stats(now_ms=0))
            answers = await asyncio.gather(*(producer.cancel(f"{n}") for n in range(9)))
            assert answers == 9 * [Cancelled.MISSING]
            assert (await stats).due == 0

    asyncio.run(produce())


def test_cancelled_calls_keep_each_reply_with_its_call(
    valkey: Valkey,
) -> None:
    async def produce() -> None:
        async with producing(valkey.url, max_connections=2) as producer:
            for steps in range(60):
                calls = [
                    asyncio.create_task(producer.cancel_many(map(str, range(n)))) for n in range(6)
                ]
                for _ in range(steps):
                    await asyncio.sleep(0)
                for call in calls[::2]:
                    call.cancel()
                ended = await asyncio.gather(*calls, return_exceptions=True)
                for n, answers in enumerate(ended):
                    if not (n % 2 == 0 and isinstance(answers, asyncio.CancelledError)):
                        assert answers == n * [Cancelled.MISSING]

    asyncio.run(produce())


def test_event_loops_have_a_client_each(valkey: Valkey, queue: DelayQueue) -> None:
    async def produce(loop: int) -> None:
        async with producing(valkey.url) as producer:
            for n in range(50):
                await producer.schedule(f"{loop} {n}", 1)

    threads = [threading.Thread(target=asyncio.run, args=(produce(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.stats().scheduled == 150


def test_a_client_that_was_closed_is_used_again_in_another_loop(
    valkey: Valkey, queue: DelayQueue
) -> None:
    client = connect_async(valkey.url)
    producer = AsyncDelayQueue(client, "q")

    async def schedule_and_close(task_id: str) -> None:
        await producer.schedule(task_id, 1)
        await client.aclose()

    for task_id in "abc":
        asyncio.run(schedule_and_close(task_id))
    assert [*state(queue)["scheduled"]] == [*"abc"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the connection that is left open
def test_a_client_whose_loop_has_ended_without_closing_it_raises(valkey: Valkey) -> None:
    client = connect_async(valkey.url)
    producer = AsyncDelayQueue(client, "q")
    asyncio.run(producer.stats())
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        asyncio.run(producer.stats())
    del client, producer
    gc.collect()


def test_more_calls_than_connections_wait_for_one(
    valkey: Valkey, redis_client: redis.Redis
) -> None:
    async def produce() -> None:
        url = f"{valkey.url}?client_name=producer"
        async with producing(url, max_connections=3) as producer:
            calls = (producer.schedule(f"{n}", 1) for n in range(300))
            assert await asyncio.gather(*calls) == 300 * [Scheduled.CREATED]
            clients: Any = redis_client.client_list()
            assert sum(each["name"] == "producer" for each in clients) == 3

    asyncio.run(produce())


# -- topologies ----------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[list[Valkey | Process]]:
    started: list[Valkey | Process] = []
    yield started
    for server in started:
        server.kill()


@pytest.fixture
def behind_sentinel(tmp_path: Path, servers: list[Valkey | Process]) -> tuple[str, int]:
    """A primary with a replica, watched by one sentinel: the URL, and the sentinel's port."""
    at_once = ("--save", "", "--repl-diskless-sync-delay", "0")
    primary, replica = (Valkey(tmp_path / name, *at_once).start() for name in ("one", "two"))
    servers += [primary, replica]
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nsentinel monitor orders 127.0.0.1 {primary.port} 1\n")
    with redis.Redis.from_url(replica.url) as client:
        client.replicaof("127.0.0.1", str(primary.port))
        info: Any = client.info
        wait_until(lambda: info()["master_link_status"] == "up", "the replica to follow")
    servers.append(Process([valkey_server(), str(config), "--sentinel"], tmp_path / "sentinel.log"))
    return f"redis+sentinel://127.0.0.1:{port}/orders/0", port


def test_a_queue_behind_sentinels_follows_the_primary(behind_sentinel: tuple[str, int]) -> None:
    url, port = behind_sentinel
    sentinel: Any = redis.Redis(port=port, decode_responses=True)

    def fail_over() -> None:
        wait_until(
            lambda: sentinel.sentinel_master("orders")["num-slaves"] == 1,
            "the sentinel to know both",
            ignoring=redis.RedisError,
        )
        before = sentinel.sentinel_master("orders")["port"]
        wait_until(
            lambda: sentinel.execute_command("SENTINEL FAILOVER", "orders"),
            "the sentinel to begin",
            ignoring=redis.ResponseError,
        )
        wait_until(lambda: sentinel.sentinel_master("orders")["port"] != before, "the failover")

    async def produce() -> None:
        wait_until(sentinel.ping, "the sentinel", ignoring=redis.RedisError)
        async with producing(url, reconnect=True, max_connections=2) as producer:
            calls = (producer.schedule(f"{n}", DAY) for n in range(9))
            assert await asyncio.gather(*calls) == 9 * [Scheduled.CREATED]
            await asyncio.to_thread(fail_over)
            again = (producer.schedule(f"{n}", DAY) for n in range(9))
            assert await asyncio.gather(*again) == 9 * [Scheduled.UNCHANGED]

    asyncio.run(produce())
    sentinel.close()


@pytest.fixture
def cluster(tmp_path: Path, servers: list[Valkey | Process]) -> str:
    """The URL of two nodes with half of the slots each."""
    nodes = []
    for name, slots in (("one", (0, 8191)), ("two", (8192, 16383))):
        ports = ["--cluster-port", str(free_port())]
        settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(DAY), "--save", ""]
        node = Valkey(tmp_path / name, *settings, *ports).start()
        servers.append(node)
        client: Any = redis.Redis.from_url(node.url, decode_responses=True)
        client.execute_command("CLUSTER ADDSLOTSRANGE", *slots)
        nodes.append((client, node.port, ports[1]))
    (first, _, _), (_, port, bus) = nodes
    first.execute_command("CLUSTER MEET", "127.0.0.1", port, bus)
    for client, _, _ in nodes:
        wait_until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster")  # noqa: B023
        wait_until(lambda: client.cluster("INFO")["cluster_size"] == "2", "both nodes")  # noqa: B023
        client.close()
    return f"redis+cluster://127.0.0.1:{port}"


def test_queues_of_a_cluster_are_on_any_of_its_nodes(cluster: str) -> None:
    async def produce(max_connections: int, answer: Scheduled) -> None:
        # The first calls all come before the client knows which node has which slots.
        async with connect_async(
            cluster, timeout_seconds=LONG, max_connections=max_connections
        ) as client:
            queues = [AsyncDelayQueue(client, f"q{n}") for n in range(8)]
            calls = [queue.schedule(f"{n}", DAY) for n in range(20) for queue in queues]
            assert await asyncio.gather(*calls) == len(calls) * [answer]
            stats = await asyncio.gather(*(queue.stats() for queue in queues))
            assert [each.scheduled for each in stats] == 8 * [20]

    asyncio.run(produce(3, Scheduled.CREATED))
    asyncio.run(produce(50, Scheduled.UNCHANGED))


def test_a_node_that_is_down_keeps_no_script_from_another(
    cluster: str, servers: list[Valkey | Process]
) -> None:
    name = next(name for name in (f"q{n}" for n in range(99)) if key_slot(name.encode()) > 8191)

    async def produce() -> None:
        async with connect_async(cluster, timeout_seconds=LONG) as client:
            await client.initialize()
            await asyncio.to_thread(servers[0].kill)
            queue = AsyncDelayQueue(client, name)
            assert await queue.schedule("a", DAY) is Scheduled.CREATED
            assert await queue.schedule("a", DAY) is Scheduled.UNCHANGED

    asyncio.run(produce())
