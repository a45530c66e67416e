"""Payments under way with real processes: a provider that fails, and an API that is away."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import redis

from devtools import processes
from devtools.processes import Process, free_port, wait_until
from devtools.valkey import Valkey
from examples.provider import Message, PaymentProvider
from orders.features.providers.attempts.domain import ATTEMPT_QUEUE
from orders.features.providers.attempts.service import Attempts
from orders.features.providers.service import Providers
from orders.queues import QUEUE, queue_names
from tests.kit.api import Api, serving
from tests.kit.receiver import Receiver, receiving
from worker import DelayQueue

CLOSED = b'{"outcome":"closed"}'


class Town:
    """An application, its provider with a gateway, and processes to start."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, stack: ExitStack) -> None:
        self.gateway: Receiver = stack.enter_context(receiving())
        self.gateway.text = CLOSED
        self.api: Api = stack.enter_context(
            serving(database_url, redis_url, webhook_allow_private=True, order_timeout_seconds=1)
        )
        self.api.stock(on_hand=1000)
        self.endpoint, self.secret = self.api.services[Providers].add(
            "customer", "bank", self.gateway.url
        )
        self.env = {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "WEBHOOK_ALLOW_PRIVATE": "1",
            "WEBHOOK_TIMEOUT_SECONDS": "1",
            "DOOR_FREEZE_AFTER_SECONDS": "0",  # <freezes/>
        }
        self._folder, self._stack = folder, stack

    def start_worker(self) -> Process:
        log = self._folder / "worker.log"
        worker = processes.worker(self.env, log)
        self._stack.callback(worker.kill)
        wait_until(
            lambda: log.read_text().count('"available"') >= len(queue_names()),
            "all flows to be at work",
        )
        return worker

    def start_api(self, port: int) -> Process:
        api = processes.api(self.env, port, self._folder / "api.log")
        self._stack.callback(api.kill)
        ready = f"http://127.0.0.1:{port}/readyz"
        wait_until(lambda: urlopen(ready, timeout=5), "the API to serve", ignoring=OSError)
        return api

    def place(self, count: int, seconds: float) -> list[str]:
        made: list[Any] = [self.api.place(timeout_seconds=seconds).json for _ in range(count)]
        return [each["id"] for each in made]

    def open(self, order_ids: Sequence[str], seconds: int, provider: str = "bank") -> None:
        for order_id in order_ids:
            body = {"provider": provider, "reference": f"tx-{order_id}", "seconds": seconds}
            opened = self.api.send("POST", f"/v1/orders/{order_id}/payment-attempts", body)
            assert opened.status_code == 201

    def statuses(self, order_ids: Sequence[str]) -> set[str]:
        find = self.api.services.orders.order
        return {str(find(None, order_id).status) for order_id in order_ids}

    def outcomes(self, order_ids: Sequence[str]) -> set[str | None]:
        of_order = self.api.services[Attempts].of_order
        return {each.outcome for id_ in order_ids for each in of_order(id_, page_size=9)}

    def dead(self) -> list[int]:
        redis_ = self.api.services.redis
        return [DelayQueue(redis_, name).stats().dead for name in (QUEUE, ATTEMPT_QUEUE)]


@pytest.fixture
def town(
    tmp_path: Path,
    migrated_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,  # noqa: ARG001  empties it
) -> Iterator[Town]:
    with ExitStack() as stack:
        yield Town(tmp_path, migrated_url, valkey.url, stack)


def hang(town: Town) -> Callable[[], None]:
    mended = threading.Event()
    town.gateway.before = lambda _: mended.wait(60)
    return mended.set


def refuse(town: Town) -> Callable[[], None]:
    town.gateway.status = 500
    return lambda: setattr(town.gateway, "status", 200)


def leave(town: Town) -> Callable[[], None]:
    town.gateway.close()

    def come_back() -> None:
        again = town._stack.enter_context(receiving(town.gateway.port))
        again.text = CLOSED

    return come_back


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [hang, refuse, leave])
def test_failing_providers_delay_nobody_elses_orders(
    town: Town, breaks: Callable[[Town], Callable[[], None]]
) -> None:
    mend = breaks(town)
    town.env["WEBHOOK_TIMEOUT_SECONDS"] = "60"
    payers, others, elsewhere = town.place(10, 2), town.place(100, 3), town.place(10, 3)
    town.api.services[Providers].add("customer", "card", town.gateway.url)
    town.open(payers[:5], 1)
    town.open(payers[5:], 1, "card")
    healthy = town._stack.enter_context(receiving())
    healthy.text = CLOSED
    town.api.services[Providers].add("customer", "wallet", healthy.url)
    town.open(elsewhere, 3, "wallet")
    town.start_worker()
    wait_until(lambda: town.statuses(others) == {"cancelled"}, "the others to be cancelled")
    wait_until(lambda: town.outcomes(elsewhere) == {"closed"}, "a healthy provider to be asked")
    assert (town.statuses(payers), town.outcomes(payers)) == ({"unpaid"}, {None})

    mend()
    wait_until(
        lambda: town.outcomes(payers) == {"closed"}, "the attempts to be closed", seconds=150
    )
    assert town.dead() == [0, 0]


@pytest.mark.slow
def test_no_payer_is_cancelled_while_the_api_is_away(town: Town) -> None:
    """200 deadlines and 60 payments fall into an outage; the provider keeps reporting them."""
    port = free_port()
    api = town.start_api(port)
    town.start_worker()
    orders = town.place(200, 6)
    payers, others = orders[:60], orders[60:]
    town.api.services[Providers].set_close_url(town.endpoint.id, None)
    town.open(payers, 300)
    api.kill()

    url = f"http://127.0.0.1:{port}/v1/providers/{town.endpoint.id}/webhook"
    provider = PaymentProvider(url, town.secret)
    over = threading.Event()

    def report(order_id: str) -> str:
        data = {"order_id": order_id, "reference": f"tx-{order_id}"}
        data |= {"amount_minor": 250, "currency": "EUR"}  # type: ignore[dict-item]
        body = json.dumps({"type": "payment.succeeded", "data": data}).encode()
        while not over.is_set():
            try:
                return provider.deliver(Message(f"msg-{order_id}", body))
            except OSError:
                pass
        return "never"

    with ThreadPoolExecutor(20) as pool:
        reports = [pool.submit(report, order_id) for order_id in payers]
        try:
            wait_until(lambda: town.statuses(others) == {"cancelled"}, "all others to be cancelled")
            assert town.statuses(payers) == {"unpaid"}
            town.start_api(port)
            assert {each.result(120) for each in reports} == {"applied"}
        finally:
            over.set()
    assert town.statuses(payers) == {"paid"}
