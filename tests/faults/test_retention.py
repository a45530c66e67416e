"""Old orders are deleted by a worker that dies, whose archive is full, and without what Redis knew."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools import processes
from devtools.processes import Process, events, wait_until
from devtools.valkey import Valkey
from orders.queues import QUEUES, RETENTION_QUEUE
from tests.conftest import serving
from tests.e2e.pages import OPERATIONS, the_block
from tests.e2e.test_readme import bash
from tests.faults.site import small_disk
from tests.integration.test_retention import DAYS, Attic
from worker import DelayQueue

pytestmark = pytest.mark.slow

COUNT = 40


class Retired(Attic):
    """Old orders, workers that delete ten of them a second, and what an operator types."""

    def __init__(self, env: dict[str, str], logs: Path, api: Any) -> None:
        super().__init__(api, Path(env["ARCHIVE_DIR"]))
        self.env, self._logs = env, logs
        self.run_now, self.read, self.erase = the_block(
            "sh", "run-now --queue retention", OPERATIONS
        ).splitlines()
        self.queue = DelayQueue(self.services.redis, RETENTION_QUEUE)

    def start(self) -> Process:
        log = self._logs / f"worker-{len([*self._logs.iterdir()])}.log"
        worker = processes.worker(self.env, log)
        wait_until(lambda: log.read_text().count('"available"') >= len(QUEUES), "all flows")
        return worker

    def type(self, command: str, **env: str) -> str:
        return bash(command, {**self.env, **env})

    def documents(self) -> list[Any]:
        """The archive, as an operator reads it."""
        lines = self.type(self.read).splitlines() if [*self.archive.glob("*.gz")] else []
        return [json.loads(line) for line in lines]

    def archived_ids(self) -> list[str]:
        return [each["orders"][0]["id"] for each in self.documents()]


@contextmanager
def retired(folder: Path, archive: Path, database_url: str, redis_url: str) -> Iterator[Retired]:
    env = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "RETENTION_DAYS": str(DAYS),
        "RETENTION_PER_SECOND": "10",
        "ARCHIVE_DIR": str(archive),
        "LEASE_SECONDS": "1",
        "MAX_FAILURES": "1",
    }
    logs = folder / "logs"
    logs.mkdir()
    with serving(database_url, redis_url) as api:
        made = Retired(env, logs, api)
        for number in range(COUNT):
            made.paid(f"tx-{number}", metadata={"mail": "ada@example.org"})
        made.age()
        yield made


@pytest.mark.usefixtures("redis_client")  # empties it
def test_a_worker_that_dies_loses_no_order(
    tmp_path: Path, migrated_url: str, valkey: Valkey
) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    with retired(tmp_path, archive, migrated_url, valkey.url) as site:
        ids = site.ids()
        doomed = site.start()
        site.type(site.run_now)
        wait_until(lambda: len(site.ids()) < COUNT, "the first batch")
        doomed.kill()
        assert {*ids} - {*site.ids()} <= {*site.archived_ids()}
        site.services.redis.flushall()
        worker = site.start()
        try:
            site.type(site.run_now)
            wait_until(lambda: not site.ids(), "the others")
        finally:
            assert worker.stop() == 0
        assert sorted(site.archived_ids()) == ids
        site.type(site.erase, ORDER=ids[0])
        first, second, *_ = site.documents()
        assert (first["orders"][0]["metadata"], second["orders"][0]["id"]) == (None, ids[1])


@pytest.mark.usefixtures("redis_client")  # empties it
def test_a_full_archive_stops_only_the_deleting(
    tmp_path: Path, migrated_url: str, valkey: Valkey
) -> None:
    archive = tmp_path / "archive"
    with (
        small_disk(archive, 1) as fill,
        retired(tmp_path, archive, migrated_url, valkey.url) as site,
    ):
        filler = fill()
        worker = site.start()
        try:
            site.type(site.run_now)
            wait_until(lambda: site.queue.stats().dead, "the run to be given up")
            [said] = [each for each in events(worker.log) if each["event"] == "no orders deleted"]
            assert (said["level"], "No space left" in said["error"]) == ("error", True)
            assert [*archive.iterdir()] == [filler]
            assert len(site.ids()) == COUNT
            order_id = site.place(timeout_seconds=1)
            find = site.services.orders.order
            wait_until(lambda: find(None, order_id).status == "cancelled", "another flow's work")
            filler.unlink()
            site.type(site.run_now)
            wait_until(lambda: site.ids() == [order_id], "them to be deleted")
        finally:
            assert worker.stop() == 0
