"""A queue in several shards, on servers of their own and on a cluster: one is away, the number changes."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from devtools.processes import Process, wait_until
from devtools.valkey import Valkey
from orders.queues import QUEUE
from tests.clock import bound
from tests.faults.conftest import Build
from tests.faults.site import Site
from tests.faults.test_redis_topologies import SLOTS, Servers, cluster, run, servers  # noqa: F401
from tests.integration.workers import frozen
from tests.states import states
from worker import BatchScheduler, DelayQueue, ShardedQueue, connect
from worker.queue.shards import parts_of, scheduler_of, shard_names, shard_of

pytestmark = pytest.mark.slow

#: How late an order may be whose shard is away, and one whose shard is not.
WITHOUT_REDIS_SECONDS, ON_TIME_SECONDS = 3, 1


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Valkey]]:
    """Two servers, to be started."""
    both = [Valkey(tmp_path / f"valkey-{n}", "--save", "") for n in range(2)]
    yield both
    for server in both:
        server.stop()


@pytest.mark.parametrize("loss", ["killed", "frozen"])
def test_a_shard_whose_server_is_away_delays_no_other(
    build: Build, two: list[Valkey], loss: str
) -> None:
    two[1].start()
    url = " ".join(server.url for server in two)
    site = build(valkey=two[0], REDIS_URL=url, QUEUE_SHARDS="2")
    worker = site.start_worker()
    with frozen(worker):
        ids = site.place(400, 1, 6)
        lose(two[1], loss)
    since = datetime.now(UTC)
    site.wait_until_all_are_cancelled()
    if loss == "frozen":
        assert two[1].process
        two[1].process.signal(signal.SIGCONT)
    late = lateness(site, shards=2, since=since)
    assert max(late[0]) <= bound(ON_TIME_SECONDS)
    assert max(late[1]) <= bound(WITHOUT_REDIS_SECONDS)
    assert f"{QUEUE}/1" in handled(site, worker, "handled without Redis")
    assert QUEUE in handled(site, worker, "batch")
    site.assert_each_was_cancelled_once(ids)
    assert site.violations(of_the_queue=False, drained=True) == []


def handled(site: Site, worker: Process, how: str) -> set[str]:
    """The shards of which a worker handled a batch in this way."""
    whole = (line for line in site.log(worker).splitlines() if line.endswith("}"))
    lines = map(json.loads, whole)
    return {line["queue"] for line in lines if line["event"] == how}


def lose(server: Valkey, how: str) -> None:
    if how == "killed":
        server.kill()
    else:
        assert server.process
        server.process.signal(signal.SIGSTOP)


def lateness(site: Site, shards: int, since: datetime) -> list[list[float]]:
    """How late each order was cancelled, in seconds, by its shard; later than that moment, if it was due before."""
    late: list[list[float]] = [[] for _ in range(shards)]
    with site.services.engine.connect() as connection:
        for row in connection.execute(sa.select(states)):
            seconds = (row.ended_at - max(row.expires_at, since)).total_seconds()
            late[shard_of(row.order_id, shards)].append(seconds)
    return late


def test_who_schedules_waits_for_no_shard_that_hangs(two: list[Valkey]) -> None:
    url = " ".join(server.start().url for server in two)
    with closing(connect(url, timeout_seconds=300)) as client:
        queue = ShardedQueue(client, "q", 2)
        by_shard = {shard_of(f"{n}", 2): f"{n}" for n in range(20)}
        lose(two[1], "frozen")
        scheduler = scheduler_of(queue)
        assert isinstance(scheduler, BatchScheduler)
        scheduler.schedule(by_shard[1], delay_ms=0)
        scheduler.schedule(by_shard[0], delay_ms=0)
        wait_until(lambda: queue.parts[0].look_up(by_shard[0]), "the other shard to get its own")
        scheduler.cancel(by_shard[0])
        wait_until(lambda: not queue.parts[0].look_up(by_shard[0]), "that to be cancelled")
        assert two[1].process
        two[1].process.signal(signal.SIGCONT)
        wait_until(lambda: queue.parts[1].look_up(by_shard[1]), "the one that hung to go on")
        scheduler.close()


def test_four_shards_of_a_cluster_are_on_several_nodes(
    tmp_path: Path,
    migrated_url: str,
    servers: Servers,  # noqa: F811  a fixture
) -> None:
    nodes = cluster(tmp_path, servers)
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    site = Site(tmp_path, migrated_url, {"REDIS_URL": url, "QUEUE_SHARDS": "4"})
    try:
        names = shard_names(QUEUE, 4)
        slots = [run(nodes[0], "CLUSTER KEYSLOT", f"{{{name}}}") for name in names]
        assert len({slot * 3 // SLOTS for slot in slots}) > 1
        worker = site.start_worker()
        ids = site.place(400, 0, 2)
        site.wait_until_all_are_cancelled()
        site.wait_until_drained()
        wait_until(lambda: handled(site, worker, "batch") == {*names}, "a batch of each shard")
        site.assert_each_was_cancelled_once(ids)
        assert site.violations(drained=True) == []
    finally:
        site.close()


def test_a_node_that_is_down_delays_only_its_shards(
    tmp_path: Path,
    migrated_url: str,
    servers: Servers,  # noqa: F811  a fixture
) -> None:
    nodes = cluster(tmp_path, servers)
    for node in nodes:
        run(node, "CONFIG SET", "cluster-require-full-coverage", "no")
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
    site = Site(tmp_path, migrated_url, {"REDIS_URL": url, "QUEUE_SHARDS": "4"})
    try:
        names = shard_names(QUEUE, 4)
        slots = [run(nodes[0], "CLUSTER KEYSLOT", f"{{{name}}}") for name in names]
        home = [slot * 3 // SLOTS for slot in slots]
        worker = site.start_worker()
        with frozen(worker):  # most of its scripts are on no node yet
            ids = site.place(400, 1, 6)
            for n in (home[1], home[1] + 3):  # its replica too
                nodes[n].kill()
        since = datetime.now(UTC)
        site.wait_until_all_are_cancelled()
        assert max(map(max, lateness(site, 4, since))) <= bound(WITHOUT_REDIS_SECONDS)
        others = {name for name, node in zip(names, home, strict=True) if node != home[1]}
        assert handled(site, worker, "batch") >= others
        site.assert_each_was_cancelled_once(ids)
    finally:
        site.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"QUEUE_SHARDS": "3"}, id="from 1 to 3"),
        pytest.param({"QUEUE_SHARDS": "3"}, {"QUEUE_SHARDS_BEFORE": "3"}, id="from 3 to 1"),
        pytest.param({"QUEUE_SHARDS": "3"}, {}, id="from 3 to 1, and the rest forgotten"),
    ],
)
def test_the_number_of_shards_changes(
    build: Build, before: dict[str, str], after: dict[str, str]
) -> None:
    site = build(**before)
    since, old = datetime.now(UTC), site.start_worker()
    site.env = {key: value for key, value in site.env.items() if not key.startswith("QUEUE_")}
    site.env |= after
    new = site.start_worker()
    ids = site.place(300, 1, 6)
    wait_until(lambda: site.unpaid() < len(ids), "the first claims")
    stop(old)
    site.wait_until_all_are_cancelled()
    assert max(map(max, lateness(site, shards=1, since=since))) <= bound(WITHOUT_REDIS_SECONDS)
    site.assert_each_was_cancelled_once(ids)
    if after:
        parts = parts_of(ShardedQueue(site.client, QUEUE, 3))
        wait_until(lambda: not any(map(tasks_in, parts)), "the old shards to be empty")
    assert new.running()
    assert site.violations(of_the_queue=False, drained=True) == []


def tasks_in(part: DelayQueue) -> int:
    stats = part.stats()
    return stats.scheduled + stats.leased + stats.dead


def stop(worker: Process) -> None:
    worker.signal(signal.SIGTERM)
    wait_until(lambda: not worker.running(), "the old worker to end")
