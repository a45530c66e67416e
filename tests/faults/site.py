"""A whole installation to break: a database, a private Valkey, worker processes, orders."""

from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import redis
import sqlalchemy as sa

from examples import processes
from examples.processes import Process, Valkey, wait_until
from orders.bootstrap import QUEUE, Services, bootstrap
from orders.config import Settings
from orders.database import later, now
from orders.models import api_clients, order_events, order_items, orders, stock_items
from orders.repository import new_id
from worker import DelayQueue, connect

ON_HAND = 1_000_000
SKUS = ("bowl", "mug", "plate")


class Site:
    """Starts empty and migrated; `close` ends every process."""

    def __init__(self, folder: Path, database_url: str, settings: dict[str, str]) -> None:
        self.folder = folder
        self.valkey = Valkey(folder / "valkey", "--save", "").start()
        self.env = {
            "DATABASE_URL": database_url,
            "REDIS_URL": self.valkey.url,
            **settings,
        }
        processes.migrate(self.env)
        self.services: Services = bootstrap(
            Settings.from_env({**self.env, "DATABASE_POOL_SIZE": "2"})
        )
        self.queue = DelayQueue(connect(self.env["REDIS_URL"]), QUEUE)
        self._processes: list[Process] = []
        self._customer = new_id()
        with self.services.engine.begin() as connection:
            connection.execute(
                sa.insert(api_clients).values(
                    id=self._customer, name="site", secret_hash="", scopes="", created_at=now()
                )
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
        self.valkey.stop()
        self.services.engine.dispose()

    # -- doing -----------------------------------------------------------------------------

    def start_worker(self, *, ready: bool = True, **env: str) -> Process:
        """Start a worker, and wait until it is at work."""
        log = self.folder / f"worker-{len(self._processes)}.log"
        command = ["worker", "run", "tests.faults.failpoints:flows"]
        process = processes.python(command, {**self.env, **env}, log)
        self._processes.append(process)
        if ready:
            wait_until(lambda: '"available"' in log.read_text(), "the worker to be at work")
        return process

    def start_api(self, port: int, **env: str) -> Process:
        """Start an API process, and wait until it serves."""
        log = self.folder / f"api-{port}.log"
        process = processes.api({**self.env, **env}, port, log)
        self._processes.append(process)
        wait_until(lambda: _serves(port, process), "the API to serve", ignoring=OSError)
        return process

    def log(self, worker: Process) -> str:
        return worker.log.read_text()

    def place(self, count: int, first_seconds: float, last_seconds: float) -> list[str]:
        """Place and schedule orders, their deadlines spread evenly between two times from now."""
        step_ms = 1000 * (last_seconds - first_seconds) / max(1, count - 1)
        ids = [new_id() for _ in range(count)]
        with self.services.engine.begin() as connection:
            connection.execute(
                sa.insert(orders).values(
                    id=sa.bindparam("order_id"),
                    customer_id=self._customer,
                    status="unpaid",
                    currency="EUR",
                    total_minor=300,
                    created_at=now(),
                    expires_at=later(now(), "timeout_ms"),
                ),
                [
                    {"order_id": i, "timeout_ms": round(1000 * first_seconds + n * step_ms)}
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
            due = connection.execute(
                sa.select(orders.c.id, orders.c.expires_at).where(orders.c.status == "unpaid")
            ).all()
        self.queue.schedule_many((row.id, row.expires_at.timestamp() * 1000, b"") for row in due)
        return ids

    # -- looking ---------------------------------------------------------------------------

    def unpaid(self) -> int:
        return self._count(orders.c.status == "unpaid")

    def wait_until_all_are_cancelled(self, seconds: float) -> None:
        wait_until(lambda: self.unpaid() == 0, "every order to be cancelled", seconds=seconds)

    def latest_ms(self) -> float:
        """How late the latest cancellation was; also asserts that none was early."""
        with self.services.engine.connect() as connection:
            rows = connection.execute(sa.select(orders.c.expires_at, orders.c.cancelled_at)).all()
        late = [1000 * (row.cancelled_at - row.expires_at).total_seconds() for row in rows]
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
        assert self._count(orders.c.status == "cancelled") == len(ids)

    def assert_the_queue_is_empty(self) -> None:
        """No task left, none dead, nothing remembered of any."""
        with redis.Redis.from_url(self.valkey.url) as client:
            assert client.keys("{order-timeout}:*") == []

    def _count(self, condition: sa.ColumnElement[bool]) -> int:
        with self.services.engine.connect() as connection:
            query = sa.select(sa.func.count()).select_from(orders).where(condition)
            return connection.execute(query).scalar_one()


def _serves(port: int, process: Process) -> bool:
    if not process.running():
        raise RuntimeError(f"the API ended; see {process.log}")
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as response:
        return bool(response.status == 200)
