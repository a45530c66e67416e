"""Clocks that are wrong by an hour: SQL's decides, so nothing is early, and little is late."""

import time
from typing import Any

import pytest

from devtools.processes import Process, events, free_port, wait_until
from tests.kit.clock import bound
from tests.kit.site import HURRIED, LEASE_SECONDS, Build, Customer, Site

HOUR = 3600
LATEST_MS = 3000


def batches(worker: Process) -> list[dict[str, Any]]:
    """What the worker wrote down of each batch."""
    return [line for line in events(worker.log) if line["event"] == "batch"]


def clock(worker: Process) -> float:
    """What time the worker thought it was as it started, in seconds since the epoch."""
    [at] = (line["at"] for line in events(worker.log) if line["event"] == "clock")
    return float(at)


@pytest.mark.slow
def test_workers_with_clocks_an_hour_off_change_nothing(build: Build) -> None:
    site = build()
    fast = site.start_worker(CLOCK_OFFSET_SECONDS=str(HOUR))
    slow = site.start_worker(CLOCK_OFFSET_SECONDS=str(-HOUR))
    ids = site.place(200, 0.5, 2.5)
    site.wait_until_drained()

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    told = {worker: batches(worker) for worker in (fast, slow)}
    assert not any(batch["retries"] for worker in told for batch in told[worker])
    assert all(
        0 <= batch["late_ms"] <= bound(LATEST_MS) for worker in told for batch in told[worker]
    )
    # Their clocks are wrong indeed.
    assert clock(fast) > time.time() + HOUR / 2
    assert clock(slow) < time.time() - HOUR / 2


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_redis_clock_an_hour_off_affects_no_new_order(build: Build, wrong: int) -> None:
    site = build(SWEEP_SECONDS="3600", LOOKAHEAD_SECONDS="3600")  # the sweep would make good for it
    site.set_redis_clock(wrong)
    worker = site.start_worker()
    port = free_port()
    site.start_api(port, "tests.kit.failpoints:create_app")
    customer = Customer(site)
    for _ in range(20):
        assert customer.order(port, timeout_seconds=1).status == 201
    site.wait_until_drained()

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(customer, drained=True) == []
    handled = batches(worker)
    assert sum(batch["tasks"] for batch in handled) == 20, "none came too early"
    assert sum(batch["retries"] for batch in handled) == 0


def test_a_fast_redis_clock_makes_nothing_early(build: Build) -> None:
    site = build()
    site.set_redis_clock(HOUR)
    worker = site.start_worker()
    ids = site.place(50, 2, 3)
    site.wait_until_drained()

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    handled = batches(worker)
    # Each came at once and was put off until its deadline, and was then at most a moment early.
    assert sum(batch["retries"] for batch in handled) <= 3 * len(ids)
    assert sum(batch["tasks"] for batch in handled) <= 4 * len(ids)
    assert handled[0]["retries"] > 0


@pytest.mark.slow
def test_a_redis_whose_clock_is_behind_is_made_good_by_the_sweep(build: Build) -> None:
    site = build()
    site.set_redis_clock(-HOUR)
    worker = site.start_worker()
    ids = site.place(50, 0.5, 1.5)
    site.wait_until_drained()

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    handled = batches(worker)
    assert sum(batch["tasks"] for batch in handled) <= 3 * len(ids)
    # Redis thinks that each is due in an hour: the sweep has brought it forward.
    [status] = site.queue.workers()
    assert status.heard_ms_ago > 1000 * HOUR / 2, "its clock was to be behind"


@pytest.mark.slow
def test_what_a_fast_redis_clock_put_off_is_not_late(
    build: Build,
) -> None:
    site = build(**HURRIED)
    site.set_redis_clock(HOUR)
    site.start_worker()
    ids = site.place(
        50, 2, 3
    )  # due at once by its clock, so claimed, and put off by an hour too much
    site.queue.wake()  # the message came by the right clock
    wait_until(lambda: batches_put_off(site) == len(ids), "all to be put off")
    site.set_redis_clock(0)
    site.wait_until_drained(HOUR / 10)

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, HOUR], ids=["back from right", "back to right"])
def test_a_redis_clock_set_back_makes_no_order_an_hour_late(build: Build, before: int) -> None:
    site = build(**HURRIED)
    ids = site.place(20, 0, 0)
    site.set_redis_clock(before)
    doomed = site.start_worker(ready=False, FAILPOINT="after_claim")
    wait_until(lambda: not doomed.running(), "the worker to die")
    assert site.queue.stats().leased == len(ids)
    site.set_redis_clock(before - HOUR)
    site.start_worker()
    site.wait_until_drained(HOUR / 10)

    assert site.latest_ms() <= bound(LATEST_MS + 1000 * LEASE_SECONDS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)


def batches_put_off(site: Site) -> int:
    """How many tasks were given back until later."""
    return sum(
        line["retries"]
        for log in site.folder.glob("worker-*.log")
        for line in events(log)
        if line["event"] == "batch"
    )
