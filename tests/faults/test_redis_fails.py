"""Redis is an accelerator: without it every order is still cancelled, within three seconds."""

import signal

import pytest
import redis

from tests.kit.clock import bound
from tests.kit.length import quick_first
from tests.kit.site import Build

ORDERS = 1000
LATEST_MS = 3000


def test_after_a_flush_every_order_is_cancelled_on_time(build: Build) -> None:
    site = build()
    site.start_worker()
    ids = site.place(ORDERS, 1, 2.5)
    with redis.Redis.from_url(site.valkey.url) as client:
        client.flushall()

    site.wait_until_drained()

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(drained=True) == []
    site.assert_each_was_cancelled_once(ids)
    site.assert_the_queue_is_empty()


@pytest.mark.parametrize(
    "fault", quick_first([signal.SIGSTOP, signal.SIGKILL]), ids=["frozen", "killed"]
)
def test_without_redis_two_workers_cancel_every_order_on_time(
    build: Build, fault: signal.Signals
) -> None:
    site = build()
    site.start_worker()
    site.start_worker()
    ids = site.place(ORDERS, 1, 2.5)
    assert site.valkey.process is not None
    site.valkey.process.signal(fault)

    site.wait_until_all_are_cancelled()

    assert site.latest_ms() <= bound(LATEST_MS)
    assert site.violations(of_the_queue=False, drained=True) == []
    site.assert_each_was_cancelled_once(ids)


@pytest.mark.slow
def test_a_worker_that_starts_without_redis_cancels_all_the_same(build: Build) -> None:
    site = build()
    ids = site.place(50, 0, 0.5)
    site.valkey.kill()
    site.start_worker()

    site.wait_until_all_are_cancelled()

    site.assert_each_was_cancelled_once(ids)
