"""Redis comes back without what it was told: every order is cancelled on time, from SQL."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.processes import Process, events, wait_until
from devtools.valkey import Valkey
from tests.kit.clock import bound
from tests.kit.length import quick_first
from tests.kit.proxy import Mode, Proxy
from tests.kit.site import HURRIED, Build, Site
from tests.kit.workers import frozen

LATEST_MS = 3000
#: What a worker writes down when it has settled checks.
SETTLING = ("batch", "handled without Redis")
SETTINGS = {**HURRIED, "LOOKAHEAD_SECONDS": "2"}


def assert_all_ended_on_time(site: Site, *ids: str) -> None:
    site.wait_until_drained()
    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)


@pytest.mark.parametrize("fsync", quick_first(["off", "everysec", "always"]))
def test_after_redis_restarted_every_order_is_cancelled(
    build: Build, tmp_path: Path, fsync: str
) -> None:
    append = () if fsync == "off" else ("--appendonly", "yes", "--appendfsync", fsync)
    site = build(valkey=Valkey(tmp_path / "valkey", "--save", "", *append), **SETTINGS)
    worker = site.start_worker()
    ids = site.place(200, 0.2, 2.5)
    wait_until(lambda: site.unpaid() < 180, "the worker to be busy")

    with frozen(worker):
        site.valkey.kill()
        site.valkey.start()
        assert (site.queue.stats().scheduled == 0) == (fsync == "off")

    assert_all_ended_on_time(site, *ids)
    site.wait_for_claims()
    assert site.violations(drained=True) == []


@pytest.mark.slow
def test_after_an_old_snapshot_every_order_is_cancelled_once(
    build: Build,
) -> None:
    site = build(**SETTINGS)
    old = site.place(50, 0.2, 0.5)
    snapshot = site.valkey.folder / "dump.rdb"
    with redis.Redis.from_url(site.valkey.url) as client:
        client.save()
    shutil.copy(snapshot, snapshot.with_suffix(".old"))
    worker = site.start_worker()
    assert_all_ended_on_time(site, *old)

    new = site.place(50, 1.5, 2)
    site.valkey.kill()
    shutil.copy(snapshot.with_suffix(".old"), snapshot)
    site.valkey.start()

    assert_all_ended_on_time(site, *old, *new)
    wait_until(lambda: settled(worker) >= 150, "the old checks to have come again")


def settled(worker: Process) -> int:
    """How many checks a worker has settled, with Redis or without."""
    return sum(line["done"] for line in events(worker.log) if line["event"] in SETTLING)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path / "replica", "--save", "").start()
    yield server
    server.stop()


@pytest.mark.slow
def test_after_a_lossy_failover_every_order_is_cancelled(
    build: Build, tmp_path: Path, replica: Valkey
) -> None:
    primary = Valkey(tmp_path / "valkey", "--save", "", "--repl-diskless-sync-delay", "0")
    front, feed = Proxy(primary.port), Proxy(primary.port)
    site = build(valkey=primary, REDIS_URL=f"redis://127.0.0.1:{front.port}/0", **SETTINGS)
    client: Any = redis.Redis.from_url(replica.url)
    client.replicaof("127.0.0.1", feed.port)
    workers = [site.start_worker(), site.start_worker()]
    wait_until(lambda: client.info()["master_link_status"] == "up", "the replica to follow")
    with frozen(*workers):
        kept = site.place(50, 1.5, 3)
        wait_until(lambda: client.zcard("{order-timeout}:scheduled") == 50, "it to have the checks")

        feed.mode = Mode.STALL
        lost = site.place(50, 1.5, 3)
        assert site.queue.stats().scheduled == 100, "the primary was to acknowledge them"
        assert client.zcard("{order-timeout}:scheduled") == 50, "the replica was not to have them"
        primary.kill()
        client.replicaof("NO", "ONE")
        front.retarget(replica.port)

    assert_all_ended_on_time(site, *kept, *lost)
    site.wait_for_claims()
    assert site.violations(drained=True) == []
    for end in (front, feed, client):
        end.close()
