"""Many claim at once: each task has one holder at a time."""

import multiprocessing
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from typing import Any, NamedTuple

import pytest
import redis

from devtools.valkey import Valkey
from tests.contract.state import state
from tests.integration.workers import tasks
from worker import DelayQueue, LeaseLost, connect

MANY = 10_000
SPAWN = multiprocessing.get_context("spawn")


class Done(NamedTuple):
    """A task whose ack was accepted, and how many leases on it had ended before."""

    id: str
    deliveries: int


def work_off(url: str, lease_ms: int) -> list[Done]:
    """Claim and ack until nothing is left; return what was acked."""
    with connect(url, timeout_seconds=60) as client:
        queue = DelayQueue(client, "race")
        done: list[Done] = []
        while (stats := queue.stats()).scheduled or stats.leased:
            tasks = queue.claim(40, lease_ms).tasks
            gone: Sequence[str] = ()
            try:
                queue.ack(tasks)
            except LeaseLost as lost:
                gone = lost.ids
            done += [Done(task.id, task.deliveries) for task in tasks if task.id not in gone]
        return done


@pytest.fixture
def queue(redis_client: redis.Redis) -> DelayQueue:
    queue = DelayQueue(redis_client, "race")
    queue.schedule_many((f"{n:05}", n, b"x") for n in range(MANY))
    return queue


@pytest.mark.parametrize(
    ("make", "workers"),
    [
        pytest.param(ThreadPoolExecutor, 8, id="threads"),
        pytest.param(
            lambda n: ProcessPoolExecutor(n, mp_context=SPAWN),
            4,
            id="processes",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_of_ten_thousand_tasks_is_claimed_exactly_once(
    valkey: Valkey, queue: DelayQueue, make: Any, workers: int
) -> None:
    executor: Executor
    with make(workers) as executor:
        done = [*executor.map(work_off, repeat(valkey.url, workers), repeat(60_000))]
    assert Counter(task.id for tasks in done for task in tasks) == Counter(
        f"{n:05}" for n in range(MANY)
    )
    assert tasks(queue) == {}


def test_each_task_is_settled_exactly_once_though_leases_end(
    valkey: Valkey, queue: DelayQueue
) -> None:
    with ThreadPoolExecutor(8) as executor:
        done = [*executor.map(work_off, repeat(valkey.url, 8), repeat(1))]
    assert any(task.deliveries for tasks in done for task in tasks), "no lease ended"
    assert Counter(task.id for tasks in done for task in tasks) == Counter(
        f"{n:05}" for n in range(MANY)
    )
    assert tasks(queue) == {}


@pytest.mark.parametrize("verb", ["claim", "ack"])
def test_what_timed_out_is_not_sent_again(
    valkey: Valkey, redis_client: redis.Redis, queue: DelayQueue, verb: str
) -> None:
    tasks = queue.claim(10, 60_000).tasks
    queue.ack(tasks[:1])  # both scripts are known to the server now
    calls = _calls(redis_client)
    with deaf_to_scripts(valkey.port) as port:
        client = connect(f"redis://127.0.0.1:{port}/0", timeout_seconds=3)
        client.ping()
        cut_off = DelayQueue(client, "race")
        with pytest.raises(redis.TimeoutError):
            cut_off.claim(10, 60_000) if verb == "claim" else cut_off.ack(tasks[1:])
        client.close()
    assert _calls(redis_client) == calls + 1
    assert len(state(queue).get("leased", {})) == (19 if verb == "claim" else 0)


@contextmanager
def deaf_to_scripts(target_port: int) -> Iterator[int]:
    """A port that passes everything on, and every answer back but those to scripts."""

    class Passer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", target_port)) as server:
                while request := self.request.recv(65536):
                    server.sendall(request)
                    answer = server.recv(65536)
                    if b"EVALSHA" not in request:
                        self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Passer) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        yield proxy.server_address[1]
        proxy.shutdown()
        thread.join()


def _calls(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])
