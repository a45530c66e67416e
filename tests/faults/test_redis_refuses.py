"""A Redis that is there and refuses: nobody's failure, and every order is cancelled on time."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from devtools.processes import Process, free_port, wait_until
from devtools.valkey import Valkey
from tests.kit.clock import bound
from tests.kit.pauses import last
from tests.kit.site import HURRIED, Build, Customer, Site, small_disk
from tests.kit.workers import frozen

#: How late an order may be while Redis refuses, and how soon claims go on when it is well.
LATEST_MS = 3000
RESUMED_SECONDS = 5
#: How long a customer waits for an answer while it is frozen.
PATIENCE_SECONDS = 2

Client = Any  # redis-py types each reply as a value or an awaitable


def client(site: Site) -> Client:
    return redis.Redis.from_url(site.valkey.url, socket_timeout=60)


# -- refusals that come and go -------------------------------------------------------------


@contextmanager
def readonly(server: Client) -> Iterator[None]:
    server.replicaof("127.0.0.1", "1")  # of nobody, who never answers
    yield
    server.replicaof("NO", "ONE")


@contextmanager
def noreplicas(server: Client) -> Iterator[None]:
    server.config_set("min-replicas-to-write", 1)
    yield
    server.config_set("min-replicas-to-write", 0)


@contextmanager
def misconf(server: Client) -> Iterator[None]:
    folder = Path(server.config_get("dir")["dir"])
    (folder / "dump.rdb").mkdir()  # no snapshot can take its place
    server.config_set("save", "3600 1")
    server.bgsave()
    wait_until(lambda: server.info()["rdb_last_bgsave_status"] == "err", "the snapshot to fail")
    yield
    (folder / "dump.rdb").rmdir()
    server.bgsave()
    wait_until(lambda: server.info()["rdb_last_bgsave_status"] == "ok", "the snapshot")
    server.config_set("save", "")
    (folder / "dump.rdb").unlink()


@contextmanager
def busy(server: Client) -> Iterator[None]:
    server.config_set("busy-reply-threshold", 100)

    def loop() -> None:
        port = server.connection_pool.connection_kwargs["port"]
        with suppress(redis.ResponseError), redis.Redis(port=port) as other:
            other.eval("while true do end", 0)

    script = threading.Thread(target=loop)
    script.start()
    wait_until(lambda: _refuses(server, "BUSY"), "the server to be busy")
    yield
    server.script_kill()
    script.join()


@contextmanager
def full(server: Client) -> Iterator[None]:
    server.config_set("maxmemory", 1)
    yield
    server.config_set("maxmemory", 0)


class Refused(NamedTuple):
    """An installation whose Redis the tests of this module take turns to break."""

    site: Site
    worker: Process


@pytest.fixture(scope="module")
def refused(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refused]:
    folder = tmp_path_factory.mktemp("refused")
    site = Site(folder, shared_url, HURRIED)
    try:
        yield Refused(site, site.start_worker())
    finally:
        site.close()


Fault = Callable[[Client], AbstractContextManager[None]]


@pytest.mark.parametrize(
    ("fault", "prefix"),
    [
        (readonly, "READONLY"),
        (noreplicas, "NOREPLICAS"),
        (misconf, "MISCONF"),
        (busy, "BUSY"),
        (full, "OOM"),
    ],
)
def test_a_refusal_counts_no_failure_and_claims_go_on(
    refused: Refused, fault: Fault, prefix: str
) -> None:
    site, worker = refused
    site.place(20, 0.3, 0.8)
    with client(site) as server, fault(server):
        if prefix != "BUSY":
            assert _refuses(server, prefix)
        site.wait_until_all_are_cancelled()
    assert_claims_go_on(site, worker)


@pytest.mark.slow
def test_a_redis_that_loads_its_data_counts_no_failure(build: Build) -> None:
    site = build(**HURRIED)
    worker = site.start_worker()
    site.place(20, 0.5, 0.8)
    with client(site) as server:
        server.mset({f"filler {n}": random.randbytes(2048) for n in range(300)})
        server.save()
    site.valkey.kill()
    # A tenth of a second for each key, until it is told otherwise.
    slow = ("--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024")
    site.valkey._args += slow
    loading = threading.Thread(target=site.valkey.start)
    loading.start()
    with client(site) as server:
        wait_until(lambda: _refuses(server, "LOADING"), "it to load")
        site.wait_until_all_are_cancelled()
        assert _refuses(server, "LOADING"), "it was to load until all is cancelled"
        server.config_set("key-load-delay", 0)
    loading.join()
    assert_claims_go_on(site, worker)


@pytest.mark.slow
def test_a_cluster_without_its_slots_counts_no_failure(build: Build, tmp_path: Path) -> None:
    args = ("--save", "", "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    hurried = ("--cluster-require-full-coverage", "no", "--cluster-node-timeout", "500")
    valkey = Valkey(tmp_path / "valkey", *args, *hurried)
    site = build(valkey=valkey, **HURRIED)
    with client(site) as server:
        server.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: server.cluster("info")["cluster_state"] == "ok", "the cluster")
        worker = site.start_worker()
        site.place(20, 0.3, 0.8)

        server.execute_command("CLUSTER DELSLOTSRANGE", 0, 16383)
        wait_until(lambda: _refuses(server, "CLUSTERDOWN"), "it to be down")
        site.wait_until_all_are_cancelled()
        server.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: server.cluster("info")["cluster_state"] == "ok", "the cluster")
    assert_claims_go_on(site, worker)


def assert_claims_go_on(site: Site, worker: Process) -> None:
    """Nothing was lost or counted meanwhile; then new checks are claimed, not only swept."""
    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(of_the_queue=False, drained=True) == []
    site.wait_for_claims(bound(RESUMED_SECONDS))
    assert site.violations(drained=True) == []
    site.assert_the_queue_is_empty()
    assert worker.running()
    assert "task failed" not in site.log(worker)


#: redis-py takes the prefix off some errors.
SAYS = {
    "READONLY": "read only replica",
    "NOREPLICAS": "NOREPLICAS",
    "MISCONF": "MISCONF",
    "BUSY": "busy running a script",
    "OOM": "maxmemory",
    "LOADING": "loading the dataset",
    "CLUSTERDOWN": "slot not served",
}


def _refuses(server: Client, prefix: str) -> bool:
    write = "redis.call('SET', KEYS[1], 1) redis.call('DEL', KEYS[1])"
    try:
        server.eval(write, 1, "{order-timeout}-test")
    except redis.RedisError as error:
        return SAYS[prefix] in str(error)
    return False


# -- memory and disk -----------------------------------------------------------------------


@pytest.mark.slow
def test_with_memory_full_orders_are_placed_and_cancelled(build: Build) -> None:
    site = build(**HURRIED)
    port = free_port()
    api = site.start_api(port)
    worker = site.start_worker()
    customer = Customer(site)

    def place_ten() -> None:
        assert [customer.order(port, timeout_seconds=3).status for _ in range(10)] == [201] * 10

    with client(site) as server, ExitStack() as stack:
        with frozen(worker):
            place_ten()
            wait_until(lambda: site.queue.stats().scheduled == 10, "the checks to be scheduled")
            stack.enter_context(full(server))
            place_ten()
            wait_until(lambda: "changes not sent" in site.log(api), "them to be refused")
            assert site.queue.stats().scheduled == 10
        site.wait_until_drained()

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(customer, drained=True) == []
    with frozen(worker):
        assert customer.order(port).status == 201
        wait_until(lambda: site.queue.stats().scheduled == 1, "Redis to take checks again")
    site.wait_until_drained(bound(RESUMED_SECONDS))
    assert site.violations(customer, drained=True) == []
    assert "task failed" not in site.log(worker)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_with_its_disk_full_every_order_is_cancelled_on_time(
    build: Build, tmp_path: Path, fsync: str
) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, megabytes=2) as fill:
        append = ("--save", "", "--appendonly", "yes", "--appendfsync", fsync)
        site = build(valkey=Valkey(folder, *append), **HURRIED)
        worker = site.start_worker()
        site.place(20, 0.5, 1)
        filler = fill()
        site.wait_until_all_are_cancelled()
        assert site.valkey.process is not None
        if fsync == "always":
            wait_until(lambda: site.valkey.process and not site.valkey.process.running(), "its end")
        else:
            with client(site) as server:
                wait_until(lambda: _refuses(server, "MISCONF"), "it to refuse")

        filler.unlink()
        if fsync == "always":
            site.valkey.start()
        else:
            with client(site) as server:
                wait_until(lambda: not _refuses(server, "MISCONF"), "it to write again")
        site.wait_until_drained()
        assert_claims_go_on(site, worker)
        site.close()


# -- frozen --------------------------------------------------------------------------------


@pytest.mark.slow
def test_while_redis_is_frozen_orders_are_placed(build: Build) -> None:
    site = build(**HURRIED)
    port = free_port()
    site.start_api(port)
    worker = site.start_worker()
    customer = Customer(site)
    assert site.valkey.process is not None
    with frozen(worker):
        assert [customer.order(port).status for _ in range(10)] == [201] * 10
        wait_until(lambda: site.queue.stats().scheduled == 10, "their checks to be scheduled")
        # By somebody who will not settle them, as if the second that all of them have were over.
        orphans = site.queue.claim(5, 500, now_ms=round(time.time() * 1000) + 1000)
        assert len(orphans.tasks) == 5

    with frozen(site.valkey.process):
        began = time.monotonic()
        answers = [customer.order(port) for _ in range(3)]
        last(max(0, 2 - (time.monotonic() - began)))

    assert [answer.status for answer in answers] == [201] * 3
    assert max(answer.seconds for answer in answers) <= bound(PATIENCE_SECONDS)
    site.wait_until_drained()
    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(customer, drained=True) == []
    site.assert_the_queue_is_empty()
    assert "task failed" not in site.log(worker)
