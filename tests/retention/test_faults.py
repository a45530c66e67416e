"""Old orders are deleted although the worker that does it dies, and Redis is emptied."""

from pathlib import Path

import pytest

from devtools import processes
from devtools.processes import Process, wait_until
from devtools.valkey import Valkey
from orders.queues import queue_names
from tests.kit.api import serving
from tests.kit.pages import bash, page, the_block
from tests.retention.attic import DAYS, Attic

PAGE = page("orders/features/retention/README.md")

pytestmark = pytest.mark.slow

COUNT = 40


@pytest.mark.usefixtures("redis_client")  # empties it
def test_old_orders_go_although_a_worker_dies(
    tmp_path: Path, migrated_url: str, valkey: Valkey
) -> None:
    block = the_block("sh", "run-now --queue retention", PAGE)
    run_now, export, erase = block.splitlines()
    env = {
        "DATABASE_URL": migrated_url,
        "REDIS_URL": valkey.url,
        "RETENTION_DAYS": str(DAYS),
        "RETENTION_PER_SECOND": "1",  # most are left when it dies, however busy the machine is
        "LEASE_SECONDS": "1",
    }

    def start(name: str) -> Process:
        log = tmp_path / name
        worker = processes.worker(env, log)
        wait_until(lambda: log.read_text().count('"available"') >= len(queue_names()), "all flows")
        return worker

    with serving(migrated_url, valkey.url) as api:
        attic = Attic(api)
        for number in range(COUNT):
            attic.paid(f"tx-{number}", metadata={"mail": "ada@example.org"})
        attic.age()
        kept = attic.place(metadata={"mail": "ada@example.org"})
        doomed = start("doomed.log")
        bash(run_now, env)
        wait_until(lambda: len(attic.ids()) <= COUNT, "the first batch")
        doomed.kill()
        assert 1 < len(attic.ids()) <= COUNT
        attic.services.redis.flushall()
        env["RETENTION_PER_SECOND"] = "10"
        worker = start("worker.log")
        try:
            bash(run_now, env)
            wait_until(lambda: attic.ids() == [kept], "the others")
        finally:
            assert worker.stop() == 0
        assert {*attic.rows()} == {"orders", "unpaid_orders", "order_items", "order_events"}
        assert kept in bash(export, {**env, "ORDER": kept})
        bash(erase, {**env, "ORDER": kept})
        assert attic.services.orders.order(None, kept).metadata is None
