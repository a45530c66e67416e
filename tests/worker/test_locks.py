"""What one locked row does to the other tasks of its batch: nothing."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

import pytest
import redis
import sqlalchemy as sa

from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.tables import stock_items
from orders.order.domain import Order
from orders.timeouts import timeout_flow
from orders.wiring import bootstrap
from tests.kit.hall import Hall, made
from tests.kit.shop import opened
from tests.kit.workers import running
from worker import DelayQueue, Flow, Task, Unavailable, Worker

OTHERS = 20
#: Each call that meets the lock waits for this long.
LOCK_SECONDS = 0.2


class Stage(NamedTuple):
    """A flow with due tasks, one of which is locked."""

    flow: Flow
    locked: str
    others: list[str]
    lock: AbstractContextManager[object]


@contextmanager
def raising(_url: str) -> Iterator[Stage]:
    """A handler that says so itself."""
    free = threading.Event()

    @contextmanager
    def lock() -> Iterator[None]:
        yield
        free.set()

    def handle(tasks: Sequence[Task]) -> None:
        if not free.is_set() and "locked" in {task.id for task in tasks}:
            raise Unavailable("its account is busy")

    flow = Flow(name="locks", handler=handle, probe=lambda: None, max_failures=1)
    yield Stage(flow, "locked", [str(n) for n in range(OTHERS)], lock())


@contextmanager
def seats(url: str) -> Iterator[Stage]:
    """`Records` whose handle meets a lock on another table."""
    with made(url) as engine:
        accounts = sa.Table("accounts", sa.MetaData(), sa.Column("id", sa.Text, primary_key=True))
        accounts.create(engine)
        ids = ["locked", *(str(n) for n in range(OTHERS))]
        with engine.begin() as connection:
            connection.execute(sa.insert(accounts), [{"id": each} for each in ids])

        def handle(connection: sa.Connection, some: Sequence[str]) -> None:
            connection.execute(sa.text(f"SET LOCAL lock_timeout = {1000 * LOCK_SECONDS}"))
            connection.execute(
                sa.select(accounts).where(accounts.c.id.in_(some)).with_for_update()
            ).all()
            hall.release(connection, some)

        hall = Hall(engine)
        hall.handle = handle
        hall.add(*ids)
        yield Stage(hall.flow, "locked", ids[1:], locked(engine, accounts.c.id, "locked"))


@contextmanager
def orders(url: str) -> Iterator[Stage]:
    """Orders of which one wants an article whose stock is locked."""
    with opened(url, lock_timeout_seconds=LOCK_SECONDS) as shop:
        shop.stock("tea")
        shop.stock("cup")
        placed: list[Order] = [shop.place(cup=1), *(shop.place(tea=1) for _ in range(OTHERS))]
        shop.expire_in(-1, *placed)
        services = bootstrap(
            Settings.of(
                database_url=url, redis_url="redis://nowhere", lock_timeout_seconds=LOCK_SECONDS
            )
        )
        ids = [order.id for order in placed]
        try:
            flow = timeout_flow(services)
            yield Stage(flow, ids[0], ids[1:], locked(shop.engine, stock_items.c.sku, "cup"))
        finally:
            services.close()


@contextmanager
def locked(engine: sa.Engine, column: sa.Column[str], value: str) -> Iterator[None]:
    with engine.begin() as connection:
        row = sa.select(column).where(column == value).with_for_update()
        connection.execute(row).all()
        yield


@pytest.mark.parametrize(
    ("stage", "database"),
    [(raising, "database_url"), (seats, "database_url"), (orders, "migrated_url")],
)
def test_a_locked_row_delays_nobody_else_and_is_no_failure(
    request: pytest.FixtureRequest,
    valkey: Valkey,
    redis_client: redis.Redis,
    stage: Callable[[str], AbstractContextManager[Stage]],
    database: str,
) -> None:
    with stage(request.getfixturevalue(database)) as (flow, one, others, lock):
        queue = DelayQueue(redis_client, flow.name)
        worker = Worker([flow], valkey.url)
        with ExitStack() as held:
            held.enter_context(lock)
            queue.schedule_many((each, 1, b"") for each in [one, *others])
            with running(worker):
                wait_until(lambda: worker.counts["done"] == OTHERS, "the others", seconds=15)
                assert queue.look_up(one) is not None
                held.close()
                wait_until(lambda: worker.counts["done"] > OTHERS, "the locked one", seconds=15)
        assert not {"failed", "dead", "released"} & worker.counts.keys()
