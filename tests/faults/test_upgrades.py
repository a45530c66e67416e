"""The release before and this one side by side under load: an upgrade without a stop, and the way back."""

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from devtools import processes
from devtools.processes import OURS, Code, Process, events, free_port, wait_until
from orders.db.schema import schema_version
from orders.queues import QUEUE
from tests.kit.checker import violations
from tests.kit.clock import STRICT, bound
from tests.kit.features import brought
from tests.kit.load import Load
from tests.kit.releases import release_before, schema_after
from tests.kit.shop import client_id
from tests.kit.site import HURRIED, LEASE_SECONDS, SKUS, STOCKED, Site

pytestmark = pytest.mark.slow

CUSTOMERS = 12
SETTINGS = {
    **HURRIED,
    "WEBHOOK_ALLOW_PRIVATE": "1",  # <webhooks/>
}
#: What a busy machine may be answered.
BUSY = set() if STRICT else {"stock_busy", "server_busy"}
#: Whether the migration's index is whole; NULL without it.
BUILT = """
SELECT (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('ix_orders_channel'))
"""


class Fleet:
    """Two API processes and two workers, each of one release or the other."""

    def __init__(self, site: Site, load: Load, ports: Sequence[int]) -> None:
        self._site, self._load, self._ports = site, load, ports
        self._codes: list[Code | None] = [None, None]
        self._apis: list[Process] = []
        self._workers: list[Process] = []

    def roll(self, *codes: Code) -> None:
        """Have the first API process and worker run the first release, the second the second. One after another is
        replaced: the first by kill -9, the second by SIGTERM.
        """
        for n, code in enumerate(codes):
            if code is not self._codes[n]:
                self._codes[n] = self._site.code = code
                end(self._apis[n : n + 1], killed=n == 0)
                self._apis[n : n + 1] = [self._site.start_api(self._ports[n])]
                worker = self._site.start_worker()
                end(self._workers[n : n + 1], killed=n == 0)
                self._workers[n : n + 1] = [worker]

    def goes_on(self) -> None:
        """Wait until more was placed, and each worker has cancelled more."""
        enough = self._load.placed() + 2 * CUSTOMERS
        counts = [(worker.log, batches(worker.log)) for worker in self._workers]
        wait_until(lambda: self._load.placed() >= enough, "more orders")
        wait_until(
            lambda: all(batches(log) > count + 2 for log, count in counts),
            "each worker's share",
        )


def batches(log: Path) -> int:
    """How many batches of orders a worker has cancelled."""
    return sum(line["event"] == "batch" and line["queue"] == QUEUE for line in events(log))


def end(processes: Sequence[Process], *, killed: bool) -> None:
    for process in processes:
        if killed:
            process.kill()
        else:
            assert process.stop() == 0


@pytest.fixture
def before(tmp_path: Path) -> Code:
    return release_before(tmp_path)


@pytest.mark.timeout(1800)  # a dozen processes are started one after another
def test_an_upgrade_and_a_rollback_under_load_break_no_promise(
    before: Code, database_url: str, tmp_path: Path
) -> None:
    site = Site(tmp_path, database_url, SETTINGS)
    site.flows = "orders.timeouts:flows"
    [schema, *_] = processes.run(["alembic", "heads"], site.env, before).split()
    processes.run(["alembic", "downgrade", schema], site.env)
    later = schema_after(tmp_path / "later", database_url)
    ports = [free_port(), free_port()]
    key = site.services.clients.create_key("load", ["orders", "payments"])
    client = client_id(site.services.clients, key)
    watches = [each.Watch(site, client) for each in brought("promises")]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    load = Load(urls, key, SKUS, customers=CUSTOMERS, seed=29)
    fleet = Fleet(site, load, ports)
    try:
        fleet.roll(before, before)
        load.start()
        fleet.goes_on()
        processes.run(["orders", "migrate"], site.env)
        fleet.roll(OURS, before)  # all four combinations of API and worker at once
        fleet.goes_on()
        command.upgrade(later, "head")
        assert built(site)
        fleet.goes_on()
        for codes in ((OURS, OURS), (before, before)):
            fleet.roll(*codes)
            fleet.goes_on()
        assert built(site)
        command.downgrade(later, schema_version())
        assert built(site) is None
        fleet.goes_on()
        load.stop()
        site.wait_until_drained()
        # A busy machine may miss a message, which is sent again minutes later.
        for each in watches:
            wait_until(lambda: not each.left(at_all=True), "messages", seconds=300)  # noqa: B023
        assert_nothing_is_broken(site, load, watches)
        site.assert_the_queue_is_empty()
    finally:
        load.stop()
        for each in watches:
            each.close()
        site.close()


def built(site: Site) -> bool | None:
    with site.services.engine.connect() as connection:
        found: bool | None = connection.scalar(sa.text(BUILT))
        return found


def assert_nothing_is_broken(site: Site, load: Load, watches: Sequence[Any]) -> None:
    history = site.history(load.responses)
    found = violations(history, stocked=STOCKED, drained=True)
    # A busy machine may miss a webhook's first attempt; the next ones come minutes later.
    assert [each for each in found if "is pending" not in each.evidence] == []
    assert not [lost for each in watches for lost in each.violations(history)]
    failed = [each for each in load.responses if each.status >= HTTPStatus.INTERNAL_SERVER_ERROR]
    assert [each for each in failed if each.body["code"] not in BUSY] == []
    late = [
        (order.cancelled_at - order.expires_at).total_seconds()
        for order in history.orders.values()
        if order.cancel_reason == "expired"
    ]
    assert max(late) <= bound(LEASE_SECONDS + 3)
    lines = [line for log in site.folder.glob("worker-*.log") for line in events(log)]
    assert [line for line in lines if "exception" in line or line["event"] == "task failed"] == []
    # Only what an API process had placed and not scheduled when it was killed.
    restored = sum(line["tasks"] for line in lines if line["event"] == "restored")
    assert restored < len(history.orders) / 3
