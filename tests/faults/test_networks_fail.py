"""The network between the processes fails in every way: they go on when it is well again."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import sqlalchemy as sa

from devtools.processes import Process, free_port, wait_until
from tests.kit.clock import bound
from tests.kit.length import quick_first
from tests.kit.pauses import last
from tests.kit.proxy import Mode, Proxy
from tests.kit.site import HURRIED, Build, Customer, Site
from tests.kit.workers import frozen

LATEST_MS = 3000
#: How soon an API says that SQL does not answer, and how soon workers go on when it does.
PATIENCE_SECONDS = 5
RESUMED_SECONDS = 10


def cut(proxy: Proxy) -> None:
    proxy.cut()


def stalled(proxy: Proxy) -> None:
    proxy.mode = Mode.STALL


def answers_stalled(proxy: Proxy) -> None:
    proxy.mode = Mode.STALL_ANSWERS


def reset(proxy: Proxy) -> None:
    proxy.reset()


def slow(proxy: Proxy) -> None:
    proxy.delay_seconds = 0.25


def slower(proxy: Proxy) -> None:
    proxy.delay_seconds = 0.5


Fault = Callable[[Proxy], None]


class Remote(NamedTuple):
    """An installation whose worker reaches Redis through a proxy, for all tests in turn."""

    site: Site
    proxy: Proxy
    worker: Process


@pytest.fixture(scope="module")
def remote(shared_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("remote")
    site = Site(folder, shared_url, HURRIED)
    proxy = Proxy(site.valkey.port)
    try:
        worker = site.start_worker(REDIS_URL=f"redis://127.0.0.1:{proxy.port}/0")
        yield Remote(site, proxy, worker)
    finally:
        proxy.close()
        site.close()


@pytest.mark.parametrize("fault", quick_first([cut, stalled, answers_stalled, reset, slow, slower]))
def test_a_failing_network_to_redis_makes_no_order_late(remote: Remote, fault: Fault) -> None:
    site, proxy, worker = remote
    site.place(50, 0.2, 1.5)
    fault(proxy)
    last(1)
    site.wait_until_all_are_cancelled()
    assert site.latest_ms() <= bound(LATEST_MS)

    proxy.heal()
    site.wait_for_claims(bound(RESUMED_SECONDS))
    assert site.violations(drained=True) == []
    site.assert_the_queue_is_empty()
    assert worker.running()
    assert "task failed" not in site.log(worker)


@pytest.mark.parametrize("fault", quick_first([stalled, cut]))
@pytest.mark.slow
def test_workers_go_on_after_the_network_to_sql_failed(
    build: Build, migrated_url: str, fault: Fault
) -> None:
    server = sa.make_url(migrated_url)
    assert server.port is not None
    proxy = Proxy(server.port)
    through = str(server.set(port=proxy.port))
    site = build()
    port = free_port()
    site.start_api(port, DATABASE_URL=through)
    worker = site.start_worker(DATABASE_URL=through)
    customer = Customer(site)
    with frozen(worker):
        assert [customer.order(port, timeout_seconds=2).status for _ in range(10)] == [201] * 10
        fault(proxy)
    with ThreadPoolExecutor() as threads:
        answers = [*threads.map(customer.order, [port] * 4)]
    assert {answer.status for answer in answers} == {503}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers)
    assert max(answer.seconds for answer in answers) <= bound(PATIENCE_SECONDS)
    wait_until(lambda: "unavailable" in site.log(worker), "the worker to notice")
    assert site.unpaid() == 10

    proxy.heal()
    healed = time.monotonic()
    wait_until(lambda: customer.order(port).status == 201, "an order to be placed")
    site.wait_until_drained(bound(RESUMED_SECONDS))
    assert time.monotonic() - healed <= bound(RESUMED_SECONDS)
    assert site.violations(customer, drained=True) == []
    assert "task failed" not in site.log(worker)
    proxy.close()
