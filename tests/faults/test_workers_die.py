"""A worker may die at any moment: an order is cancelled once, and not much later."""

import signal
import time

import pytest
import sqlalchemy as sa

from devtools.processes import Process, wait_until
from orders.db.schema import schema_version
from tests.kit.clock import bound
from tests.kit.failpoints import MOMENTS, REPEAT
from tests.kit.length import quick_first
from tests.kit.site import HURRIED, LEASE_SECONDS, Build, Site
from worker.runtime.worker import DRAIN_SECONDS

LATEST_MS = 1000 * (LEASE_SECONDS + 3)
#: For how long workers are killed again and again, at least.
KILLING_SECONDS = 15


def start_and_see_it_die(site: Site, moment: str) -> None:
    see_it_die(site.start_worker(ready=False, FAILPOINT=moment))


def see_it_die(doomed: Process) -> None:
    wait_until(lambda: not doomed.running(), "the worker to die")
    assert doomed.wait() == -signal.SIGKILL


def assert_another_makes_it_good(site: Site, ids: list[str]) -> None:
    site.start_worker()
    site.wait_until_drained()

    assert site.latest_ms() < bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    site.assert_the_queue_is_empty()


@pytest.mark.parametrize("moment", quick_first(MOMENTS * REPEAT))
def test_a_worker_killed_in_mid_cancel_is_made_good_by_another(build: Build, moment: str) -> None:
    site = build(**HURRIED)
    ids = site.place(20, 0, 0)
    start_and_see_it_die(site, moment)
    assert site.queue.stats().leased == 20
    assert site.violations(complete=moment != "after_commit") == []

    assert_another_makes_it_good(site, ids)


@pytest.mark.slow
def test_workers_killed_in_a_row_delay_orders_by_one_lease(
    build: Build,
) -> None:
    site = build(BATCH_SIZE="20", **HURRIED)
    ids = site.place(400, 0, 2)
    kills = 0
    end = time.monotonic() + KILLING_SECONDS
    while time.monotonic() < end or kills < 8:
        doomed = [site.start_worker(ready=False, FAILPOINT="after_claim") for _ in range(2)]
        for each in doomed:
            see_it_die(each)
            kills += 1
    last_kill = time.monotonic()
    assert site.queue.stats().leased > 0, "the last was to die with a lease"
    site.start_worker()
    site.wait_until_drained()

    assert 1000 * (time.monotonic() - last_kill) <= bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    site.assert_the_queue_is_empty()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before_settle", "after_settle"] * REPEAT)
def test_a_worker_killed_as_it_puts_tasks_off_is_made_good(build: Build, moment: str) -> None:
    site = build(**HURRIED)
    doomed = site.start_worker(FAILPOINT=moment)
    ids = site.place(20, 3, 3, scheduled=False)
    site.queue.schedule_many((order_id, 0, b"") for order_id in ids)  # much too early
    see_it_die(doomed)
    assert site.queue.stats().leased == (20 if moment == "before_settle" else 0)
    assert site.violations(complete=True) == []

    assert_another_makes_it_good(site, ids)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before_settle", "after_settle"] * REPEAT)
def test_a_worker_killed_as_it_buries_a_task_is_made_good(build: Build, moment: str) -> None:
    site = build(**HURRIED)
    ids = site.place(5, 0, 0)
    poison = [f"no order {n}" for n in range(5)]
    site.queue.schedule_many((task_id, 0, b"") for task_id in poison)
    start_and_see_it_die(site, moment)
    assert site.queue.stats().dead == (0 if moment == "before_settle" else 5)

    site.start_worker()
    site.wait_until_drained()

    assert site.violations(drained=True, poison=poison) == []
    site.assert_each_was_cancelled_once(ids)
    letters = site.queue.dead()
    assert sorted(letter.id for letter in letters) == poison
    [reason] = {letter.story["reason"] for letter in letters}
    assert "not a UUID" in reason


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before_restore", "after_restore"] * REPEAT)
def test_a_worker_killed_in_its_sweep_is_made_good(build: Build, moment: str) -> None:
    site = build(**HURRIED)
    ids = site.place(20, 1.5, 1.5, scheduled=False)
    start_and_see_it_die(site, moment)
    found = site.queue.stats()
    assert found.scheduled + found.leased == (0 if moment == "before_restore" else 20)

    assert_another_makes_it_good(site, ids)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["in_delete", "after_commit"] * REPEAT)
def test_a_worker_killed_cancelling_without_redis_is_made_good(build: Build, moment: str) -> None:
    site = build(**HURRIED)
    ids = site.place(20, 0, 0)
    site.valkey.kill()
    start_and_see_it_die(site, moment)
    site.wait_until_all_are_cancelled()  # the server ends the statement without its client
    assert site.violations(of_the_queue=False) == []

    site.start_worker()
    site.wait_until_all_are_cancelled()

    assert site.latest_ms() < bound(LATEST_MS)
    assert site.violations(of_the_queue=False, drained=True) == []
    site.assert_each_was_cancelled_once(ids)


@pytest.mark.slow
def test_sigterm_ends_a_busy_worker_soon_and_leaves_no_lease(build: Build) -> None:
    site = build(BATCH_SIZE="20")
    ids = site.place(4000, 0, 0)
    worker = site.start_worker()
    wait_until(lambda: site.unpaid() < 4000, "the worker to be busy")

    worker.signal(signal.SIGTERM)
    start = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - start < bound(10)

    left = site.unpaid()
    assert 0 < left < 4000, "the worker was to be stopped while it was busy"
    stats = site.queue.stats()
    assert stats.leased == 0
    # A sweep that had read its page before a batch was acked may have restored that batch's checks.
    assert stats.scheduled >= left
    assert site.violations(complete=True) == []

    site.start_worker(BATCH_SIZE="500")
    site.wait_until_drained()

    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    site.assert_the_queue_is_empty()


@pytest.mark.slow
def test_sigterm_ends_an_idle_worker_at_once(build: Build) -> None:
    site = build()
    worker = site.start_worker(SLOW_POLL_SECONDS="3600")
    start = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - start < bound(3)
    assert '"stuck": []' in site.log(worker), "it was to end, not to be given up"


@pytest.mark.slow
def test_a_second_sigterm_ends_a_worker_that_hangs_at_once(build: Build) -> None:
    site = build(**HURRIED)
    ids = site.place(20, 0, 0)
    worker = site.start_worker(FAILPOINT="after_claim:hang")
    wait_until(lambda: site.queue.stats().leased, "the handler to hang")

    worker.signal(signal.SIGTERM)
    start = time.monotonic()
    wait_until(lambda: _ends(worker), "the end")
    assert worker.wait() == -signal.SIGTERM
    assert time.monotonic() - start < bound(DRAIN_SECONDS / 2)
    assert site.violations(complete=True) == []

    site.start_worker()
    site.wait_until_drained()

    assert site.latest_ms() < bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)


def _ends(worker: Process) -> bool:
    """Whether another SIGTERM finds it gone. Python may hear two at once as one."""
    if worker.running():
        worker.signal(signal.SIGTERM)
    return not worker.running()


@pytest.mark.slow
def test_a_worker_that_starts_before_the_schema_waits_for_it(build: Build) -> None:
    site = build()
    ids = site.place(10, 0, 0)
    with site.services.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM alembic_version")
    worker = site.start_worker(ready=False)
    wait_until(lambda: "unavailable" in site.log(worker), "the worker to look")
    assert site.queue.stats().leased == 0

    with site.services.engine.begin() as connection:
        connection.execute(
            sa.text("INSERT INTO alembic_version VALUES (:newest)"), {"newest": schema_version()}
        )
    site.wait_until_drained()
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
