"""Webhooks with a real worker, which is killed, and with a Redis that forgets or is away."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from devtools import processes
from devtools.processes import Process, wait_until
from devtools.valkey import Valkey
from orders.db.tables import api_clients, order_events, orders
from orders.features.webhooks.domain import WEBHOOK_QUEUE
from orders.features.webhooks.service import Webhooks
from orders.features.webhooks.tables import webhook_deliveries
from orders.queues import queue_names
from tests.kit.api import Api, serving
from tests.kit.clock import bound
from tests.kit.expiring import expire_now
from tests.kit.moments import later, now
from tests.kit.receiver import Received, Receiver, receiving
from tests.kit.site import Build, Site

StartWorker = Callable[..., Process]
#: Of the test below: how many messages for each of ten endpoints.
ROUNDS = 1000
#: No sweep comes before the test is over.
NO_SWEEP = {"SWEEP_SECONDS": "3600", "LOOKAHEAD_SECONDS": "3600"}


class Place:
    """An application with a subscription, and workers to start and to kill."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, stack: ExitStack) -> None:
        self.receiver: Receiver = stack.enter_context(receiving())
        settings: dict[str, Any] = {"webhook_allow_private": True}
        self.api: Api = stack.enter_context(serving(database_url, redis_url, **settings))
        self._env = {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "WEBHOOK_ALLOW_PRIVATE": "1",
            "WEBHOOK_TIMEOUT_SECONDS": "60",
        }
        self._folder, self._stack, self._count = folder, stack, 0
        made = self.api.send("POST", "/v1/webhooks", {"url": self.receiver.url})
        assert made.status_code == 201

    def start_worker(self, **env: str) -> Process:
        self._count += 1
        log = self._folder / f"worker-{self._count}.log"
        worker = processes.worker({**self._env, **env}, log)
        self._stack.callback(worker.kill)
        wait_until(
            lambda: log.read_text().count('"available"') >= len(queue_names()),
            "all flows to be at work",
        )
        return worker

    def order(self, **body: Any) -> str:
        placed: Any = self.api.place(**body).get_json()
        return str(placed["id"])

    def statuses(self) -> list[str]:
        engine = self.api.services.engine.execution_options(reading=True)
        with engine.connect() as connection:
            return [*connection.scalars(sa.select(webhook_deliveries.c.status))]

    def has_received(self, count: int) -> bool:
        return len(self.receiver.messages) >= count

    def wait_until_delivered(self, count: int) -> None:
        wait_until(lambda: self.statuses() == ["delivered"] * count, f"{count} deliveries")

    def subscribe(self, client: str, url: str) -> str:
        """A subscription of a client to an event that never happens by itself."""
        self.api.keys.setdefault(client, self.api.services.clients.create_key(client, ["orders"]))
        body = {"url": url, "events": ["payment.refunded"]}
        made: Any = self.api.send("POST", "/v1/webhooks", body, key=client).get_json()
        self.api.place("one", key=client)
        return str(made["id"])

    def deliver(self, client: str, subscriptions: Sequence[str], each: int) -> None:
        """Let so many deliveries to each of a client's subscriptions become due, as its events do."""
        column = order_events.c
        event = sa.select(column.order_id, column.id.label("event_id"), column.type).where(
            column.client_id
            == sa.select(api_clients.c.id).where(api_clients.c.name == client).scalar_subquery()
        )
        with self.api.services.engine.begin() as connection:
            row = connection.execute(event).mappings().one()
            rows = [{**row, "subscription_id": one} for one in subscriptions for _ in range(each)]
            written = sa.insert(webhook_deliveries).values(created_at=now(), due_at=now())
            connection.execute(written, rows)
        for one in subscriptions:
            self.api.services.scheduler_of(WEBHOOK_QUEUE).schedule(one, delay_ms=0)

    def seconds_late(self, subscriptions: Sequence[str]) -> list[float]:
        """How long the messages to these subscriptions took that arrived, shortest first."""
        column = webhook_deliveries.c
        took = sa.extract("epoch", column.delivered_at - column.created_at)
        wanted = (column.subscription_id.in_(subscriptions), column.status == "delivered")
        with self.api.services.engine.connect() as connection:
            return sorted(map(float, connection.scalars(sa.select(took).where(*wanted))))

    def end_leases(self) -> None:
        """Let an hour pass for deliveries."""
        moved = later(webhook_deliveries.c.due_at, "shift")
        with self.api.services.engine.begin() as connection:
            connection.execute(
                sa.update(webhook_deliveries).values(due_at=moved), {"shift": -3_600_000}
            )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def place(
    migrated_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,  # noqa: ARG001  empties it
    tmp_path: Path,
    stack: ExitStack,
) -> Place:
    return Place(tmp_path, migrated_url, valkey.url, stack)


@pytest.mark.slow
def test_a_webhook_is_sent_without_waiting_for_a_sweep(place: Place) -> None:
    """By the API's events and by the worker's own, and again after a failure, though later ones succeed."""
    place.start_worker(**NO_SWEEP)
    place.receiver.status = 500
    paid = place.order()
    wait_until(lambda: place.has_received(1), "an attempt that fails")
    place.receiver.status = 200
    order = place.order(timeout_seconds=1)
    place.api.pay(paid)
    place.wait_until_delivered(4)
    assert sorted(place.receiver.types()) == [
        *("order.cancelled", *3 * ["order.created"], "order.paid")
    ]
    [cancelled] = [each for each in place.receiver.messages if each.type == "order.cancelled"]
    assert cancelled.json["data"]["order"]["id"] == order
    assert len({message.id for message in place.receiver.messages}) == 4


def test_a_worker_killed_while_it_sends_is_succeeded_by_another(place: Place) -> None:
    reached, release = threading.Event(), threading.Event()

    def hold(_: Received) -> None:
        reached.set()
        release.wait(60)

    place.receiver.before = hold
    first = place.start_worker(LEASE_SECONDS="2")
    place.order()
    assert reached.wait(60)
    first.kill()
    place.receiver.before = lambda _: None
    release.set()
    assert place.statuses() == ["pending"]
    place.end_leases()
    place.start_worker(LEASE_SECONDS="2")
    place.wait_until_delivered(1)
    ids = [message.id for message in place.receiver.messages]
    assert len(ids) == 2
    assert len({*ids}) == 1, "a receiver knows it by its id"


def test_a_worker_that_is_stopped_waits_for_an_answer(place: Place) -> None:
    reached, release = threading.Event(), threading.Event()

    def hold(_: Received) -> None:
        reached.set()
        release.wait(60)

    place.receiver.before = hold
    worker = place.start_worker()
    place.order()
    assert reached.wait(60)
    threading.Timer(2.0, release.set).start()  # longer than a process takes to end
    assert worker.stop() == 0
    assert place.statuses() == ["delivered"]


@pytest.mark.slow
def test_a_flush_of_redis_loses_no_event(place: Place, redis_client: redis.Redis) -> None:
    for number in range(3):
        place.api.pay(place.order(), f"r-{number}")
    place.api.services.scheduler_of(WEBHOOK_QUEUE).close()
    redis_client.flushall()
    place.start_worker()
    place.wait_until_delivered(6)
    place.receiver.status = 500
    place.order()
    wait_until(lambda: place.has_received(7), "an attempt that fails")
    redis_client.flushall()
    place.receiver.status = 200
    place.end_leases()
    place.wait_until_delivered(7)


def test_without_redis_webhooks_are_sent_from_sql(
    migrated_url: str, tmp_path: Path, stack: ExitStack
) -> None:
    valkey = Valkey(tmp_path / "valkey", "--save", "").start()
    stack.callback(valkey.stop)
    place = Place(tmp_path, migrated_url, valkey.url, stack)
    place.start_worker()
    valkey.kill()
    for _ in range(10):
        place.order()
    place.wait_until_delivered(10)
    assert len({message.id for message in place.receiver.messages}) == 10


@pytest.mark.slow
def test_endpoints_that_hang_delay_no_cancellation(place: Place) -> None:
    release = threading.Event()
    place.receiver.before = lambda _: release.wait(60)
    try:
        place.start_worker(WEBHOOK_THREADS="2", DATABASE_POOL_SIZE="2")
        for _ in range(6):
            place.order()
        late = place.order(timeout_seconds=1)

        def is_cancelled() -> bool:
            shown: Any = place.api.send("GET", f"/v1/orders/{late}").get_json()
            return bool(shown["status"] == "cancelled")

        wait_until(is_cancelled, "the cancellation")
        assert place.receiver.messages == [], "all of them hang"
    finally:
        release.set()
    place.wait_until_delivered(8)


@pytest.fixture
def tarpit() -> Iterator[str]:
    """The URL of an endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


@pytest.mark.slow
def test_endpoints_that_hang_delay_no_healthy_one(place: Place, tarpit: str) -> None:
    """10,000 messages each: of one client's ten endpoints that hang, and of others that answer."""
    hanging = [place.subscribe("hanging", tarpit) for _ in range(10)]
    healthy = {name: place.subscribe(name, place.receiver.url) for name in "abcdefghij"}
    place.start_worker(WEBHOOK_TIMEOUT_SECONDS="5")
    place.deliver("hanging", hanging, 1000)
    # A message for each endpoint, once the last ones arrived: whatever stops the machine delays ten.
    for sent in range(1, ROUNDS + 1):
        for client, subscription in healthy.items():
            place.deliver(client, [subscription], 1)
        wait_until(partial(place.has_received, len(healthy) * sent), "healthy")
    ids = [*healthy.values()]
    wait_until(lambda: len(place.seconds_late(ids)) == 10 * ROUNDS, "healthy", seconds=60)
    late = place.seconds_late(ids)
    assert place.seconds_late(hanging) == []
    assert late[len(late) * 99 // 100] <= bound(1.0)


def promises_broken(site: Site, **expectations: Any) -> set[str]:
    return {found.promise for found in site.violations(**expectations)}


@pytest.mark.slow
def test_an_event_without_its_delivery_or_with_two_is_reported(build: Build) -> None:
    site = build()
    [order_id] = site.place(1, -1, -1)
    hook = site.services[Webhooks]
    with site.services.engine.begin() as connection:
        connection.execute(sa.delete(order_events))
        owner = connection.scalar(sa.select(orders.c.client_id))
    assert owner is not None
    hook.subscribe(owner, url="https://a.example/", events=None)
    expire_now(site.services.orders, [order_id])
    assert promises_broken(site) == set()
    assert promises_broken(site, drained=True) >= {"W"}
    with site.services.engine.begin() as connection:
        columns = [each.name for each in webhook_deliveries.c if each.name != "id"]
        twice = sa.select(*(webhook_deliveries.c[name] for name in columns))
        connection.execute(sa.insert(webhook_deliveries).from_select(columns, twice))
    assert promises_broken(site) == {"W"}
    with site.services.engine.begin() as connection:
        connection.execute(sa.delete(webhook_deliveries))
    assert promises_broken(site) == {"W"}
