"""A worker may die at any moment: an order is cancelled once, and not much later."""

import signal
import time

import pytest

from examples.processes import wait_until
from tests.faults.conftest import Build
from tests.faults.failpoints import MOMENTS

LEASE_SECONDS = 2
SETTINGS = {
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "STATEMENT_TIMEOUT_SECONDS": "1.5",
    "LOCK_TIMEOUT_SECONDS": "1",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_killed_in_mid_cancel_is_made_good_by_another(build: Build, moment: str) -> None:
    site = build(**SETTINGS)
    ids = site.place(20, 0.5, 0.5)
    doomed = site.start_worker(ready=False, FAILPOINT=moment)
    assert doomed.wait() == -signal.SIGKILL
    assert site.queue.stats().leased == 20

    site.start_worker()
    wait_until(lambda: not site.queue.stats().leased, "the tasks to be settled")

    assert site.latest_ms() < 1000 * (LEASE_SECONDS + 3)
    site.assert_each_was_cancelled_once(ids)
    site.assert_the_queue_is_empty()


def test_sigterm_ends_a_busy_worker_soon_and_leaves_no_lease(build: Build) -> None:
    site = build(BATCH_SIZE="20")
    ids = site.place(4000, 0, 0)
    worker = site.start_worker()
    wait_until(lambda: site.unpaid() < 4000, "the worker to be busy")

    worker.signal(signal.SIGTERM)
    start = time.monotonic()
    assert worker.wait(10) == 0
    assert time.monotonic() - start < 10

    left = site.unpaid()
    assert 0 < left < 4000, "the worker was to be stopped while it was busy"
    stats = site.queue.stats()
    assert (stats.leased, stats.scheduled) == (0, left)
    site.start_worker()
    site.wait_until_all_are_cancelled(30)
    site.assert_each_was_cancelled_once(ids)


def test_sigterm_ends_an_idle_worker_at_once(build: Build) -> None:
    site = build()
    worker = site.start_worker()
    worker.signal(signal.SIGTERM)
    assert worker.wait(2) == 0


def test_a_worker_that_starts_before_the_schema_waits_for_it(build: Build) -> None:
    site = build()
    ids = site.place(10, 0, 0)
    with site.services.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0000'")
    worker = site.start_worker(ready=False)
    wait_until(lambda: "not ready" in site.log(worker), "the worker to look")
    assert site.queue.stats().leased == 0

    with site.services.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    site.wait_until_all_are_cancelled(10)
    site.assert_each_was_cancelled_once(ids)
