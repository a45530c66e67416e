"""Workers and consumers behind Sentinel, and on a cluster: the primary dies, and they go on."""

import re
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools import processes
from devtools.processes import ROOT, Process, free_port, wait_until
from devtools.valkey import Valkey, valkey_server
from orders.queues import QUEUE
from tests.kit.clock import bound, bound_of_waking
from tests.kit.engine import Heard
from tests.kit.pages import FLOWS, the_block
from tests.kit.site import Site
from tests.kit.workers import running
from worker import Consumer, DelayQueue, Flow, Worker, connect, events

pytestmark = pytest.mark.slow

#: After this long without an answer a server counts as down.
NODE_TIMEOUT_MS = 1000
SLOTS = 16384
LATEST_MS = 3000
#: How late a consumer takes what it was woken for.
WOKEN_MS = 10


def client(server: Valkey) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=20, decode_responses=True)


Servers = list[Valkey | Process]


def run(server: Valkey, *command: str | int) -> Any:
    """One command on one server."""
    return client(server).execute_command(*command)  # type: ignore[no-untyped-call]


@pytest.fixture
def servers() -> Iterator[Servers]:
    started: Servers = []
    yield started
    for server in started:
        server.kill()


def test_sentinel_promotes_another_and_claims_go_on(
    tmp_path: Path, database_url: str, servers: Servers
) -> None:
    url, primary = _behind_sentinels(tmp_path, servers)
    site = Site(tmp_path, database_url, {"REDIS_URL": url})
    try:
        _orders_survive(site, primary)
    finally:
        site.close()


def test_a_consumer_behind_sentinels_survives_a_failover(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, primary = _behind_sentinels(tmp_path, servers)
    _a_consumer_survives(url, primary, monkeypatch)


def test_a_consumer_on_a_cluster_survives_a_failover(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = cluster(tmp_path, servers)
    slot = run(nodes[0], "CLUSTER KEYSLOT", "{q}")
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    _a_consumer_survives(url, nodes[slot * 3 // SLOTS], monkeypatch)


def test_a_cluster_fails_over_in_mid_claim_and_claims_go_on(
    tmp_path: Path, database_url: str, servers: Servers
) -> None:
    nodes = cluster(tmp_path, servers)
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    site = Site(tmp_path, database_url, {"REDIS_URL": url})
    try:
        slot = run(nodes[0], "CLUSTER KEYSLOT", f"{{{QUEUE}}}")
        owner = nodes[slot * 3 // SLOTS]
        _orders_survive(site, owner)
        # Every key of the queue is on one node, so no script crossed a slot.
        assert "CROSSSLOT" not in "".join(log.read_text() for log in site.folder.glob("*.log"))
    finally:
        site.close()


def test_a_cluster_that_is_asked_to_fail_over_loses_nothing(
    tmp_path: Path, database_url: str, servers: Servers
) -> None:
    nodes = cluster(tmp_path, servers)
    site = Site(
        tmp_path,
        database_url,
        {"BATCH_SIZE": "20", "REDIS_URL": f"redis+cluster://127.0.0.1:{nodes[0].port}"},
    )
    try:
        slot = run(nodes[0], "CLUSTER KEYSLOT", f"{{{QUEUE}}}")
        replica = nodes[3 + slot * 3 // SLOTS]
        ids = site.place(2000, 0, 0)
        site.start_worker()
        wait_until(lambda: site.unpaid() < 2000, "the worker to be busy")
        run(replica, "CLUSTER FAILOVER FORCE")
        wait_until(lambda: client(replica).info()["role"] == "master", "the failover")
        site.wait_until_all_are_cancelled()
        site.assert_each_was_cancelled_once(ids)
    finally:
        site.close()


def test_a_slot_that_is_down_harms_only_the_queues_in_it(tmp_path: Path, servers: Servers) -> None:
    nodes = cluster(tmp_path, servers)
    for node in nodes:
        run(node, "CONFIG SET", "cluster-require-full-coverage", "no")
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    names = {run(nodes[0], "CLUSTER KEYSLOT", f"{{{n}}}") * 3 // SLOTS: str(n) for n in range(99)}
    handled: list[str] = []
    lost: list[str] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.RedisLost):
            lost.append(event.queue)

    flows = [
        Flow(name=name, handler=lambda tasks: handled.extend(task.id for task in tasks))
        for name in names.values()
    ]
    with closing(connect(url)) as producer, running(Worker(flows, url, listeners=[hear])):
        queues = {n: DelayQueue(producer, name) for n, name in names.items()}
        for n, queue in queues.items():
            queue.schedule(f"before {n}", delay_ms=0)
        wait_until(lambda: len(handled) == len(queues), "all queues to be served")
        for n in (2, 5):  # its replica too
            nodes[n].kill()
        wait_until(lambda: names[2] in lost, "the loss to be noticed")
        began = time.monotonic()
        for round_ in range(20):
            for n in (0, 1):
                queues[n].schedule(f"after {round_} {n}", delay_ms=0)
                queues[n].look_up("nobody")  # a script that is on no node yet
        wait_until(lambda: len(handled) == len(queues) + 40, "the other two to be served")
        assert time.monotonic() - began <= bound(LATEST_MS) / 1000
    assert lost[0] == names[2]


def test_several_queues_share_a_cluster_as_the_page_says(tmp_path: Path, servers: Servers) -> None:
    nodes = cluster(tmp_path, servers)
    (tmp_path / "reminders.py").write_text(the_block("python", "crc32", FLOWS))
    (tmp_path / "producer.py").write_text(
        "from reminders import queue_of\n"
        "for n in range(100):\n"
        "    queue_of(f'{n}').schedule(f'{n}', delay_ms=0)\n"
    )
    env = {
        "REDIS_URL": f"redis+cluster://127.0.0.1:{nodes[0].port}",
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "PYTHONUNBUFFERED": "1",
    }
    processes.run(["producer"], env)
    assert all(run(node, "DBSIZE") for node in nodes[:3]), "each has some of the queues"
    log = tmp_path / "worker.log"
    worker = processes.python(["worker", "run", "reminders:flows"], env, log)
    servers.append(worker)
    handled = partial(re.findall, r"remind (\d+)")
    wait_until(lambda: len({*handled(log.read_text())}) == 100, "all to be handled")
    assert worker.stop() == 0


def _orders_survive(site: Site, doomed: Valkey) -> None:
    """Kill the primary under a worker; orders are on time, and claims resume."""
    worker = site.start_worker()
    first = site.place(200, 0.5, 2)
    wait_until(lambda: site.unpaid() < 200, "the first claims")
    doomed.kill()
    site.wait_until_all_are_cancelled()
    assert site.latest_ms() <= bound(LATEST_MS)

    # Whichever server it is now: a check is scheduled, claimed and settled there again.
    queue = site.queue
    wait_until(lambda: queue.stats().leased == 0, "the failover", ignoring=redis.RedisError)
    second = site.place(50, 0.5, 0.5)
    site.wait_until_all_are_cancelled(bound(NODE_TIMEOUT_MS / 1000 + 10))
    wait_until(lambda: queue.stats().scheduled == 0, "the last ack", ignoring=redis.RedisError)
    site.assert_each_was_cancelled_once([*first, *second])
    assert site.log(worker).rindex('"event": "batch"') > site.log(worker).rindex(
        "serves claims again"
    )


def _a_consumer_survives(url: str, doomed: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the primary under a consumer that waits, and that looks only when it is woken."""
    monkeypatch.setattr("worker.runtime.lane.SLOW_POLL_SECONDS", threading.TIMEOUT_MAX)
    heard = Heard()
    with (
        connect(url, timeout_seconds=2, reconnect=True) as producer,
        Consumer(url, "q", listeners=[heard]) as consumer,
        ThreadPoolExecutor(1) as thread,
    ):
        queue = DelayQueue(producer, "q")

        def next_id() -> str | None:
            with consumer.take(60) as task:
                return task and task.id

        def offer(task_id: str) -> None:
            heard.clear()
            taken = thread.submit(next_id)
            wait_until(lambda: heard.of(events.Waiting), "it to wait")
            offered = partial(queue.schedule, task_id, delay_ms=0)
            wait_until(offered, "Redis to take it", ignoring=redis.RedisError)
            assert taken.result() == task_id

        offer("as it begins")
        late_ms = []
        for n in range(11):
            offer(f"{n}")
            late_ms.append(heard.of(events.Claimed)[0].late_ms)
        assert statistics.median(late_ms) <= bound_of_waking(WOKEN_MS)

        doomed.kill()
        for n in range(3):
            offer(f"after the failover {n}")
            assert heard.of(events.Claimed)[0].late_ms <= bound(LATEST_MS)
        wait_until(lambda: queue.stats().leased == 0, "the last ack", ignoring=redis.RedisError)


def _behind_sentinels(folder: Path, servers: Servers) -> tuple[str, Valkey]:
    """A primary with a replica, and three sentinels: their URL, and the primary."""
    primary, replica = (Valkey(folder / name, "--save", "") for name in ("primary", "replica"))
    servers += [primary.start(), replica.start()]
    client(replica).replicaof("127.0.0.1", str(primary.port))
    wait_until(
        lambda: client(replica).info()["master_link_status"] == "up", "the replica to follow"
    )
    ports = [free_port() for _ in range(3)]
    servers += [_sentinel(folder / f"sentinel-{port}", port, primary.port) for port in ports]
    wait_until(
        lambda: all(_quorum(port) for port in ports),
        "the sentinels to meet",
        ignoring=redis.RedisError,
    )
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"redis+sentinel://{hosts}/orders/0", primary


def _sentinel(folder: Path, port: int, primary_port: int) -> Process:
    folder.mkdir()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\n"
        f"sentinel monitor orders 127.0.0.1 {primary_port} 2\n"
        f"sentinel down-after-milliseconds orders {NODE_TIMEOUT_MS}\n"
        "sentinel failover-timeout orders 3000\n"
    )
    return Process([valkey_server(), str(config), "--sentinel"], folder / "sentinel.log")


def _quorum(port: int) -> bool:
    with redis.Redis(port=port, socket_timeout=2, decode_responses=True) as sentinel:
        state: Any = sentinel.sentinel_master("orders")
    return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == 1)


def _node(folder: Path) -> Valkey:
    arguments = ["--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--save", ""]
    arguments += ["--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
    return Valkey(folder, *arguments).start()


def cluster(folder: Path, servers: Servers) -> list[Valkey]:
    """Three primaries with a third of the slots each, and a replica of each."""
    nodes = [_node(folder / f"node-{n}") for n in range(6)]
    servers += nodes
    primaries, replicas = nodes[:3], nodes[3:]
    ids = [run(node, "CLUSTER MYID") for node in nodes]
    for n, node in enumerate(primaries):
        first, last = -(-n * SLOTS // 3), -(-(n + 1) * SLOTS // 3) - 1
        run(node, "CLUSTER ADDSLOTSRANGE", first, last)
    for node in nodes[1:]:
        bus = str(client(node).config_get("cluster-port")["cluster-port"])
        run(nodes[0], "CLUSTER MEET", "127.0.0.1", node.port, bus)
    wait_until(
        lambda: all(run(node, "CLUSTER INFO")["cluster_known_nodes"] == "6" for node in nodes),
        "the nodes to meet",
    )
    for node, primary_id in zip(replicas, ids, strict=False):
        replicate = partial(run, node, "CLUSTER REPLICATE", primary_id)
        wait_until(replicate, "the replica to follow", ignoring=redis.ResponseError)
    wait_until(lambda: all(_formed(node) for node in nodes), "the cluster to form")
    return nodes


def _formed(node: Valkey) -> bool:
    info = client(node).info()
    follows = info["role"] == "master" or info["master_link_status"] == "up"
    return bool(follows and run(node, "CLUSTER INFO")["cluster_state"] == "ok")
