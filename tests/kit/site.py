"""A whole installation to break: a database, a private Valkey, worker processes, orders."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa

from devtools import processes
from devtools.processes import OURS, Process, log_end, wait_until
from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.base import metadata
from orders.db.ids import new_id
from orders.db.tables import (
    api_clients,
    order_events,
    order_items,
    orders,
    stock_items,
    unpaid_orders,
)
from orders.queues import QUEUE
from orders.wiring import Services, bootstrap
from tests.kit.checker import History, Response, Violation, read, violations
from tests.kit.databases import upgrade
from tests.kit.failpoints import REDIS_CLOCK_OFFSET
from tests.kit.moments import later, now
from tests.kit.states import states, status
from worker import DelayQueue, connect

ON_HAND = 1_000_000
SKUS = ("bowl", "mug", "plate")
STOCKED = dict.fromkeys(SKUS, ON_HAND)
#: A lease short enough to wait for its end, and long enough for a batch on a busy machine.
LEASE_SECONDS = 2
#: sa.Connection then end before it by themselves.
HURRIED = {"LEASE_SECONDS": str(LEASE_SECONDS)}

#: No time-out to run into where one would be somebody else's fault: a busy machine's.
PATIENT = {
    "LEASE_SECONDS": "60",
    "STATEMENT_TIMEOUT_SECONDS": "50",
    "LOCK_TIMEOUT_SECONDS": "50",
}


class Site:
    """Starts empty and migrated; `close` ends every process."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        settings: Mapping[str, str],
        *,
        valkey: Valkey | None = None,
    ) -> None:
        self.folder = folder
        #: What its processes run that are started from now on, and workers of it.
        self.code, self.flows = OURS, "tests.kit.failpoints:flows"
        self.valkey = valkey or Valkey(folder / "valkey", "--save", "")
        self.valkey.start()
        self.env = {
            "DATABASE_URL": database_url,
            "REDIS_URL": self.valkey.url,
            # <freezes>
            # API processes are killed: every order is to end all the same, and soon.
            "DOOR_FREEZE_AFTER_SECONDS": "0",
            # </freezes>
            **settings,
        }
        upgrade(database_url)  # does nothing where a fixture did
        # The test's own, which waits as long as it takes.
        own = Settings.from_env({"DATABASE_POOL_SIZE": "2", **self.env, **PATIENT})
        self.services: Services = bootstrap(own)
        self.client = connect(self.env["REDIS_URL"], timeout_seconds=10)
        self.queue = DelayQueue(self.client, QUEUE)
        self._processes: list[Process] = []
        self._customer = new_id()
        with self.services.engine.begin() as connection:
            connection.execute(
                sa.insert(api_clients).values(id=self._customer, name="site", created_at=now())
            )
            connection.execute(
                sa.insert(stock_items),
                [
                    {"sku": sku, "on_hand": ON_HAND, "price_minor": 100, "currency": "EUR"}
                    for sku in SKUS
                ],
            )

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.client.close()
        self.services.close()
        self.valkey.stop()

    # -- doing -----------------------------------------------------------------------------

    def start_worker(self, *options: str, ready: bool = True, **env: str) -> Process:
        """Start a worker, and wait until it is at work."""
        log = self.folder / f"worker-{len(self._processes)}.log"
        command = ["worker", "run", self.flows, *options]
        process = processes.python(command, {**self.env, **env}, log, self.code)
        self._processes.append(process)
        if ready:
            wait_until(lambda: _works(process), "the worker to be at work")
        return process

    def start_api(self, port: int, app: str = "orders.app:create_app", **env: str) -> Process:
        """Start an API process, and wait until it serves."""
        log = self.folder / f"api-{port}.log"
        process = processes.api({**self.env, **env}, port, log, app, self.code)
        self._processes.append(process)
        self.wait_until_it_serves(port, process)
        return process

    def launch_doomed_api(self, port: int, failpoint: str) -> Process:
        """Start an API process that dies at a named moment."""
        command = ["granian", "--interface", "wsgi", "--factory", "--port", str(port)]
        command += ["--blocking-threads", "2", "--no-ws", "tests.kit.failpoints:create_app"]
        env = {**self.env, "FAILPOINT": failpoint}
        process = processes.python(command, env, self.folder / f"api-{port}.log")
        self._processes.append(process)
        return process

    def wait_until_it_serves(self, port: int, process: Process) -> None:
        wait_until(lambda: _serves(port, process), "the API to serve", ignoring=OSError)

    def log(self, worker: Process) -> str:
        return worker.log.read_text()

    def place(
        self, count: int, first_seconds: float, last_seconds: float, *, scheduled: bool = True
    ) -> list[str]:
        """Place and schedule orders, their deadlines spread evenly between two times from now."""
        step_ms = 1000 * (last_seconds - first_seconds) / max(1, count - 1)
        ids = [new_id() for _ in range(count)]
        with self.services.engine.begin() as connection:
            connection.execute(
                sa.insert(orders).values(
                    id=sa.bindparam("order_id"),
                    client_id=self._customer,
                    currency="EUR",
                    total_minor=300,
                    created_at=now(),
                    timeout_ms=sa.bindparam("for_ms"),
                    idempotency_key=sa.bindparam("for_key"),
                    fingerprint="",
                ),
                [
                    {
                        "order_id": i,
                        "for_key": i,
                        "for_ms": round(1000 * first_seconds + n * step_ms),
                    }
                    for n, i in enumerate(ids)
                ],
            )
            connection.execute(
                sa.insert(order_items).values(quantity=1, unit_price_minor=100),
                [{"order_id": i, "sku": sku} for i in ids for sku in SKUS],
            )
            connection.execute(
                sa.update(stock_items).values(reserved=stock_items.c.reserved + count)
            )
            deadline = later(orders.c.created_at, orders.c.timeout_ms).label("expires_at")
            unpaid = sa.select(
                orders.c.id.label("order_id"), orders.c.client_id, deadline, sa.literal(len(SKUS))
            ).where(orders.c.id.in_(ids))
            columns = ["order_id", "client_id", "expires_at", "pieces"]
            due = connection.execute(
                sa.insert(unpaid_orders).from_select(columns, unpaid).returning(unpaid_orders)
            ).all()
        if scheduled:
            self.queue.schedule_many(
                (row.order_id, row.expires_at.timestamp() * 1000, b"") for row in due
            )
        return ids

    def set_redis_clock(self, seconds: int) -> None:
        """Put Redis's clock wrong by so many seconds, for workers and `failpoints.create_app`."""
        self.client.set(REDIS_CLOCK_OFFSET, seconds)

    # -- looking ---------------------------------------------------------------------------

    def unpaid(self) -> int:
        return self._count("unpaid")

    def wait_until_all_are_cancelled(self, seconds: float = 60) -> None:
        wait_until(lambda: self.unpaid() == 0, "every order to be cancelled", seconds=seconds)

    def wait_until_drained(self, seconds: float = 60) -> None:
        """Wait until every order has ended and every check is settled."""

        def nothing_is_left() -> bool:
            stats = self.queue.stats()
            return stats.scheduled == stats.leased == self.unpaid() == 0

        wait_until(nothing_is_left, "all to be done", seconds=seconds, ignoring=redis.RedisError)

    def ready(self, port: int) -> tuple[int, str]:
        """What /readyz answers, and says of the database."""
        url = f"http://127.0.0.1:{port}/readyz"
        try:
            with urlopen(url, timeout=60) as response:
                return response.status, json.load(response)["database"]
        except HTTPError as error:
            return error.code, json.load(error)["database"]

    def violations(
        self, *customers: "Customer", of_the_queue: bool = True, **expectations: Any
    ) -> list[Violation]:
        """Every promise that is broken; ``of_the_queue`` too, unless Redis is away."""
        told = [response for customer in customers for response in customer.responses]
        history = self.history(told, of_the_queue=of_the_queue)
        return violations(history, stocked=STOCKED, **expectations)

    def history(self, told: Sequence[Response] = (), *, of_the_queue: bool = True) -> History:
        return read(self.services.engine, self.queue if of_the_queue else None, told)

    def everything(self) -> dict[str, Any]:
        """Every row of every table, and every key of Redis: to find out that nothing changed.

        But for what workers say of themselves, which they do all the time.
        """
        with self.services.engine.connect() as connection:
            found: dict[str, Any] = {
                table.name: sorted(map(repr, connection.execute(sa.select(table))))
                for table in metadata.sorted_tables
            }
        client: Any = self.queue._redis
        found["redis"] = {
            key: client.dump(key) for key in client.scan_iter() if key not in self._of_workers()
        }
        return found

    def wait_for_claims(self, seconds: float = 60) -> list[str]:
        """Place some orders that are due, and wait until workers, not their sweeps, settle them."""
        before = self.batches()
        ids = self.place(20, 0, 0)
        self.wait_until_drained(seconds)
        # The batch is written down after it was settled.
        wait_until(lambda: self.batches() > before, "a batch that was claimed")
        return ids

    def batches(self) -> int:
        """How many batches workers have claimed and settled."""
        logs = self.folder.glob("worker-*.log")
        return sum(log.read_text().count('"batch"') for log in logs)

    def latest_ms(self) -> float:
        """How late the latest cancellation was; also asserts that none was early."""
        with self.services.engine.connect() as connection:
            rows = connection.execute(sa.select(states).where(status == "cancelled")).all()
        late = [1000 * (row.ended_at - row.expires_at).total_seconds() for row in rows]
        assert min(late) >= 0, "an order was cancelled before its deadline"
        return float(max(late))

    def assert_each_was_cancelled_once(self, ids: Sequence[str]) -> None:
        """Statuses, events, stock and dead letters are as if nothing had happened."""
        with self.services.engine.connect() as connection:
            events = connection.execute(
                sa.select(order_events.c.order_id).where(order_events.c.type == "order.cancelled")
            ).scalars()
            assert sorted(events) == sorted(ids)
            stock = connection.execute(sa.select(stock_items.c.on_hand, stock_items.c.reserved))
            assert {tuple(row) for row in stock} == {(ON_HAND, 0)}
        assert self._count("cancelled") == len(ids)

    def assert_the_queue_is_empty(self) -> None:
        """No task left, none dead, nothing remembered of any."""
        with redis.Redis.from_url(self.valkey.url) as client:
            # Of this release's keys: the one before may have left others.
            left = {key.encode() for key in self.queue.keys.stored() if client.exists(key)}
            assert left <= self._of_workers()

    def _of_workers(self) -> set[bytes]:
        """Keys that hold nothing of any task."""
        keys = self.queue.keys
        known = (
            keys.workers,
            keys.heard,
            keys.control,
            keys.claims,
            REDIS_CLOCK_OFFSET,
        )
        return {key.encode() for key in known}

    def _count(self, wanted: str) -> int:
        with self.services.engine.connect() as connection:
            query = sa.select(sa.func.count()).select_from(states).where(status == wanted)
            return connection.execute(query).scalar_one()


class Answer(NamedTuple):
    """What a customer was told, and how long it took. Status 0: nothing. Headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    seconds: float


class Customer:
    """Somebody with an API key of their own, who remembers what they were told."""

    def __init__(self, site: Site) -> None:
        self.responses: list[Response] = []
        self._api_key = site.services.clients.create_key(uuid4().hex, ["orders", "payments"])

    def order(self, port: int, key: str = "", timeout_seconds: float = 1) -> Answer:
        """Order one of each SKU."""
        body = {
            "items": [{"sku": sku, "quantity": 1} for sku in SKUS],
            "timeout_seconds": timeout_seconds,
        }
        key = key or uuid4().hex
        answer = self._send(f"http://127.0.0.1:{port}/v1/orders", json.dumps(body).encode(), key)
        if answer.status:
            self.responses.append(Response("create", key, answer.status, answer.body))
        return answer

    def pay(self, port: int, order: Mapping[str, Any]) -> Answer:
        """Pay all of an order."""
        body = {"provider": "bank", "reference": order["id"]}
        body |= {"amount_minor": order["total_minor"], "currency": order["currency"]}
        url = f"http://127.0.0.1:{port}/v1/orders/{order['id']}/payments"
        return self._send(url, json.dumps(body).encode(), "")

    def _send(self, url: str, data: bytes, key: str) -> Answer:
        headers = {
            "Authorization": f"Bearer {self._api_key}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
        }
        request = Request(url, method="POST", data=data, headers=headers)  # noqa: S310  our own
        start = time.monotonic()
        status, text = 0, b"{}"
        told: Mapping[str, str] = {}
        with suppress(OSError, HTTPException):
            try:
                with urlopen(request, timeout=60) as response:  # noqa: S310  our own
                    status, told = response.status, _lower(response.headers)
                    text = response.read()
            except HTTPError as error:
                status, told, text = error.code, _lower(error.headers), error.read()
        return Answer(status, told, json.loads(text), time.monotonic() - start)


def _lower(headers: "Message[str, str]") -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Callable[[], Path]]:
    """A file system of its own at ``folder``, and a function that fills it up with one file.

    Skips the test where this user may not mount one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("a disk to fill is a tmpfs, which only root may mount")

    def fill() -> Path:
        filler = folder / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        return filler

    try:
        yield fill
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


def _works(worker: Process) -> bool:
    if not worker.running():
        raise RuntimeError(f"the worker ended:\n{log_end(worker.log)}")
    return '"available"' in worker.log.read_text()


def _serves(port: int, process: Process) -> bool:
    if not process.running():
        raise RuntimeError(f"the API ended:\n{log_end(process.log)}")
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as response:
        return bool(response.status == 200)


Build = Callable[..., Site]
