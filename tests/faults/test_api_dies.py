"""An API process may die at any moment: its customer asks again, and has one order."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from devtools.processes import free_port, wait_until
from tests.kit.clock import bound
from tests.kit.failpoints import API_MOMENTS, REPEAT
from tests.kit.site import PATIENT, Answer, Build, Customer
from tests.kit.workers import frozen

#: How much later than its deadline an order may be cancelled when its check was never scheduled.
LATEST_MS = 3000
#: It dies in another thread than the one that answers: the answer may have gone by then.
SCHEDULING = ("before_schedule_many", "after_schedule_many")


@pytest.mark.parametrize("run", range(REPEAT))
def test_a_retry_after_the_api_died_gives_one_order(build: Build, run: int) -> None:
    site = build()
    customer = Customer(site)
    doomed = {free_port(): moment for moment in (*API_MOMENTS, *SCHEDULING)}
    dying = {port: site.launch_doomed_api(port, doomed[port]) for port in doomed}
    healthy = free_port()
    site.start_api(healthy)
    for port, process in dying.items():
        site.wait_until_it_serves(port, process)
    worker = site.start_worker()

    with frozen(worker):
        for port, moment in doomed.items():
            answer = customer.order(port, key=f"{run} {moment}", timeout_seconds=1)
            assert answer.status in ((0, 201) if moment in SCHEDULING else (0,)), moment
            dying[port].wait()
        assert site.violations(customer) == []
        assert site.unpaid() == 3, "the first was not to be placed"
        assert site.queue.stats().scheduled == 1, "only the last check was to be scheduled"

    for moment in doomed.values():
        first, again = (
            customer.order(healthy, key=f"{run} {moment}", timeout_seconds=1) for _ in range(2)
        )
        assert (first.status, again.status) == (201, 201)
        assert first.headers.get("idempotent-replayed") == (
            None if moment == "before_insert" else "true"
        )
        assert first.body == again.body
    site.wait_until_drained()

    assert site.violations(customer, drained=True) == []
    assert len({response.body["id"] for response in customer.responses}) == len(doomed)
    assert site.latest_ms() < bound(LATEST_MS)


@pytest.mark.slow
def test_one_key_from_fifty_clients_on_two_apis_makes_one_order(build: Build) -> None:
    site = build(**PATIENT)
    customer = Customer(site)
    ports = [free_port(), free_port()]
    for port in ports:
        site.start_api(port)
    barrier = threading.Barrier(50)

    def order(n: int) -> Answer:
        barrier.wait()
        return customer.order(ports[n % 2], key="the same")

    with ThreadPoolExecutor(50) as clients:
        answers = [*clients.map(order, range(50))]

    statuses = Counter(answer.status for answer in answers)
    assert set(statuses) <= {201, 409}
    assert all(
        answer.body["code"] == "key_in_flight" and answer.headers["retry-after"]
        for answer in answers
        if answer.status == 409
    )
    made = [answer for answer in answers if answer.status == 201]
    assert sum("idempotent-replayed" not in answer.headers for answer in made) == 1
    assert len({answer.body["id"] for answer in made}) == 1
    wait_until(lambda: site.queue.stats().scheduled, "the check to be scheduled")
    assert site.violations(customer, complete=True) == []
    assert site.unpaid() == 1

    site.start_worker()
    site.wait_until_drained()
    assert site.violations(customer, drained=True) == []
