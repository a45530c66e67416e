"""What only a real server does: memory, refusals, its own settings."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
import redis

from devtools.valkey import Valkey
from tests.kit.length import quick_first
from tests.kit.queue_state import attempts, state
from tests.kit.queue_steps import one, reply_lost
from tests.kit.settling import ack, dead_letter, release, retry
from tests.queue.conftest import REAL
from worker import Cancelled, DelayQueue, Due, Task, UnsafeServer, connect
from worker.queue.replies import Verb

MANY = 100_000
pytestmark = pytest.mark.parametrize("server", quick_first(REAL), indirect=True, scope="session")


# -- memory --------------------------------------------------------------------------------


def test_a_hundred_thousand_tasks_cost_only_their_zset(
    client: redis.Redis, queue: DelayQueue
) -> None:
    due_at = 1_700_000_000_000
    ids = [str(UUID(int=(n * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)) for n in range(MANY)]

    def bare() -> None:
        for start in range(0, MANY, 1000):
            members = {ids[n]: due_at + n for n in range(start, start + 1000)}
            client.zadd("bare", members)

    def scheduled() -> None:
        queue.schedule_many((task_id, due_at + n, b"") for n, task_id in enumerate(ids))

    expected = _growth(client, bare)
    client.flushall()
    assert _growth(client, scheduled) <= 1.1 * expected


@pytest.mark.parametrize(("payload", "most"), [(b"", 26), (b"x", 29)])
def test_a_task_costs_no_more_commands_than_these(
    client: Any, queue: DelayQueue, payload: bytes, most: int
) -> None:
    queue.schedule("first", 1)
    ack(queue, queue.claim(1, 60_000).tasks)
    client.config_resetstat()
    for n in range(200):
        queue.schedule(f"{n}", n, payload)
    for tasks in [queue.claim(1, 60_000).tasks for _ in range(200)]:
        ack(queue, tasks)
    calls = [int(command["calls"]) for command in client.info("commandstats").values()]
    # The first one wakes somebody; that others hold tasks costs three, and that more is due one in every second claim.
    assert sum(calls) / 200 < most + 0.1


def _growth(client: Any, fill: Callable[[], None]) -> int:
    before = client.info("memory")["used_memory"]
    fill()
    return int(client.info("memory")["used_memory"] - before)


@contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    """The server has no memory for anything more.

    Redis then refuses all of a transaction, reads too: compare states afterwards.
    """
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


def test_with_memory_full_new_tasks_are_refused_and_old_kept(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    before = state(queue)
    with full(client), pytest.raises(redis.RedisError, match="maxmemory"):
        queue.schedule("b", 1000)
    assert state(queue) == before


def test_with_memory_full_tasks_are_restored_by_one_sweeper(
    client: redis.Redis, queue: DelayQueue
) -> None:
    with full(client):
        found = queue.restore([Due("a", -1, b"x")], worker_id="w1", term_ms=10, now_ms=1000)
        assert (found.lost, found.new_turn) == (("a",), True)
        assert [task.payload for task in queue.claim(9, 10, now_ms=1000).tasks] == [b"x"]


def test_with_memory_full_a_recurring_task_goes_on(client: redis.Redis, queue: DelayQueue) -> None:
    with full(client):
        assert queue.seed("daily", 1, ("a", 1000), now_ms=500).ids == ("a",)
        assert [task.id for task in queue.claim(9, 10, now_ms=1000).tasks] == ["a"]


def test_with_memory_full_due_and_orphaned_tasks_are_claimed(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("a", 1000, b"x")
    with full(client):
        assert [task.id for task in queue.claim(9, 10, now_ms=1000).tasks] == ["a"]
        assert [task.deliveries for task in queue.claim(9, 10, now_ms=1010).tasks] == [1]
        with reply_lost(queue):
            queue.claim(9, 10, now_ms=1020)
        assert [task.deliveries for task in queue.claim(9, 10, now_ms=1030).tasks] == [2]


def test_with_memory_full_a_suspect_waits_for_another(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule_many([("1 killer", 1000, b""), ("2 innocent", 1001, b"")])
    queue.claim(9, 100, now_ms=1001)
    queue.claim(9, 100, now_ms=1101)
    queue.schedule("fresh", 1000)
    assert one(queue, 1201, lease_ms=1000).id == "1 killer"
    with full(client):
        assert one(queue, 1201).id == "fresh"


def test_with_memory_full_a_pause_ends(client: redis.Redis, queue: DelayQueue) -> None:
    queue.pause()
    with full(client):
        queue.resume()
        assert not queue.claim(9, 10, now_ms=1000).paused


def test_a_server_whose_memory_is_full_still_knows_its_workers(
    client: redis.Redis, queue: DelayQueue
) -> None:
    with full(client):
        queue.beat("w1", {})
        assert [status.id for status in queue.workers()] == ["w1"]


def test_with_memory_full_cancelled_tasks_are_dropped(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule_many((name, 1000, b"x") for name in "ab")
    queue.claim(1, 10, now_ms=1000)
    with full(client):
        assert queue.cancel_many(["a", "b"]) == [Cancelled.CANCELLING, Cancelled.REMOVED]
        assert queue.claim(9, 10, now_ms=1010).tasks == []
    assert state(queue) == {}


def test_with_memory_full_leases_are_extended_and_shortened(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule("a", 1000)
    tasks = queue.claim(9, 10, now_ms=1000).tasks
    with full(client):
        queue.extend(tasks, 50, now_ms=1005)
        queue.claim(9, 10, now_ms=500)  # the clock was set back
    assert state(queue)["leased"] == {"a": 550}


SETTLE: dict[str, tuple[Callable[[DelayQueue, list[Task]], None], set[str]]] = {
    "ack": (ack, set()),
    "again": (
        lambda queue, tasks: retry(queue, [(t, 1) for t in tasks], Verb.AGAIN),
        {"scheduled", "tokens"},
    ),
    "failed": (
        lambda queue, tasks: retry(queue, [(t, 1) for t in tasks], Verb.FAILED),
        {"scheduled", "tokens"},
    ),
    "new": (
        lambda queue, tasks: retry(queue, [(t, 1) for t in tasks], Verb.NEW),
        {"scheduled", "tokens"},
    ),
    "release": (release, {"scheduled", "tokens"}),
    "dead_letter": (
        lambda queue, tasks: dead_letter(queue, [(t, "bad", None) for t in tasks]),
        {"dead", "letters", "tokens"},
    ),
}


@pytest.mark.parametrize(("settle", "keys"), SETTLE.values(), ids=SETTLE)
def test_with_memory_full_leased_tasks_are_settled(
    client: redis.Redis,
    queue: DelayQueue,
    settle: Callable[[DelayQueue, list[Task]], None],
    keys: set[str],
) -> None:
    queue.schedule_many((name, 1000, b"") for name in "abc")
    tasks = queue.claim(9, 10_000, now_ms=1000).tasks
    with full(client):
        settle(queue, tasks)
    assert set(state(queue)) == keys


def test_with_memory_full_letters_are_requeued_and_purged(
    client: redis.Redis, queue: DelayQueue
) -> None:
    queue.schedule_many((name, 1000, b"") for name in "ab")
    tasks = queue.claim(9, 10_000, now_ms=1000).tasks
    dead_letter(queue, [(task, "bad", None) for task in tasks])
    with full(client):
        assert queue.requeue(["a"], now_ms=5) == ["a"]
        assert queue.purge(["b"]) == ["b"]
    assert state(queue) == {
        "scheduled": {"a": 5},
        "tokens": {"a": attempts(5, appointment=1000)},
    }


def test_the_tokens_of_a_batch_are_hashed_not_searched(queue: DelayQueue) -> None:
    queue.schedule("a", 1000)
    queue.claim(1, 1000, now_ms=1000)
    assert queue._redis.object("ENCODING", queue.keys.tokens) == b"hashtable"


# -- keys of another type ------------------------------------------------------------------


USES: dict[str, Callable[[DelayQueue], object]] = {
    "scheduled": lambda queue: queue.schedule("a", 2000),
    "leased": lambda queue: queue.claim(1, 10, now_ms=1000),
    "dead": lambda queue: queue.dead(),
    "letters": lambda queue: queue.look_up("b"),
    "payloads": lambda queue: queue.claim(1, 10, now_ms=1000),
    "tokens": lambda queue: ack(queue, [Task("a")]),
    "control": lambda queue: queue.claim(1, 10, now_ms=1000),
    "seeded": lambda queue: queue.seed("daily", 1, ("b", 2000)),
    "workers": lambda queue: queue.beat("w1", {}),
}


@pytest.mark.parametrize(("key", "use"), USES.items(), ids=USES)
def test_a_key_of_another_type_raises_a_redis_error(
    client: redis.Redis, queue: DelayQueue, key: str, use: Callable[[DelayQueue], object]
) -> None:
    queue.schedule("a", 1000, b"x")
    name = getattr(queue.keys, key)
    client.delete(name)
    client.set(name, "a string")
    with pytest.raises(redis.RedisError, match="WRONGTYPE"):
        use(queue)


# -- what a user may do, and what a client does not hear -------------------------------------


def test_a_user_who_may_not_publish_is_served_all_the_same(
    client: redis.Redis, queue: DelayQueue
) -> None:
    rights = {"categories": ["+@all"], "commands": ["-publish"], "keys": ["*"]}
    client.acl_setuser("mute", enabled=True, nopass=True, **rights)  # type: ignore[arg-type]
    settings = client.connection_pool.connection_kwargs
    with redis.Redis(host=settings["host"], port=settings["port"], username="mute") as mute:
        with pytest.raises(redis.exceptions.NoPermissionError):
            mute.publish("channel", b"")
        muted = DelayQueue(mute, queue.name)
        muted.schedule("a", 1000)
        release(muted, muted.claim(9, 10, now_ms=1000).tasks)
        retry(muted, [(task, 0) for task in muted.claim(9, 10, now_ms=1000).tasks], now_ms=1000)
        tasks = muted.claim(9, 10, now_ms=1000).tasks
        dead_letter(muted, [(task, "bad", None) for task in tasks], now_ms=1000)
        assert muted.requeue(["a"], now_ms=1000) == ["a"]
        assert muted.restore([Due("b", 0)], now_ms=900).lost == ("b",)
    client.acl_deluser("mute")
    assert state(queue)["scheduled"] == {"a": 1000, "b": 900}


def test_a_claim_that_timed_out_but_ran_counts_no_delivery(
    server: Valkey, queue: DelayQueue
) -> None:
    assert server.process
    queue.schedule("a", 1000)
    with connect(server.url, timeout_seconds=2) as hurried:
        worker = DelayQueue(hurried, queue.name)
        worker.claim(1, 10, now_ms=0)  # connects, and loads the script
        server.process.signal(signal.SIGSTOP)
        try:
            with pytest.raises(redis.TimeoutError):
                worker.claim(1, 10, now_ms=1000)
        finally:
            server.process.signal(signal.SIGCONT)
        assert state(queue)["leased"] == {"a": 1010}
        assert worker.claim(1, 10, now_ms=1010).tasks[0].deliveries == 0


# -- is this server safe -------------------------------------------------------------------


@pytest.fixture
def policy(client: redis.Redis) -> Iterator[Callable[[str], object]]:
    yield lambda name: client.config_set("maxmemory-policy", name)
    client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize("name", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_server_that_evicts_no_queue_passes(
    queue: DelayQueue, policy: Callable[[str], object], name: str
) -> None:
    policy(name)
    queue.check_server()


@pytest.mark.parametrize("name", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_may_evict_keys_is_unsafe(
    queue: DelayQueue, policy: Callable[[str], object], name: str
) -> None:
    policy(name)
    with pytest.raises(UnsafeServer, match=f"{name}.*noeviction"):
        queue.check_server()


def test_a_server_that_refuses_info_passes(client: redis.Redis) -> None:
    client.acl_setuser("shy", enabled=True, nopass=True, commands=["+@all", "-info"])
    settings = client.connection_pool.connection_kwargs
    with redis.Redis(host=settings["host"], port=settings["port"], username="shy") as shy:
        DelayQueue(shy, "contract").check_server()
    client.acl_deluser("shy")
