"""A freeze saves what was paid after a backup that is restored."""

import re
import shlex
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa

from devtools import processes
from devtools.postgres import Postgres
from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.database import reading
from orders.db.tables import unpaid_orders
from orders.features.freezes.domain import FreezeState
from orders.features.freezes.service import Freezes
from orders.order.domain import Timeouts
from orders.order.service import OrderService
from orders.queues import QUEUE
from orders.stock.service import StockService
from tests.kit.databases import empty_database
from tests.kit.pages import page
from tests.kit.restore import dump_and_restore, statuses
from tests.kit.shop import Shop, an_engine
from worker import DelayQueue, Place

PAGE = page("orders/features/freezes/README.md")


def as_written(command: str, env: dict[str, str], **values: str) -> str:
    """Run the page's only command that begins so; return its output."""
    [found] = re.findall(rf"`python -m ({command} [^`]*)`", PAGE)
    return processes.run([values.get(word, word) for word in shlex.split(found)], env)


@pytest.mark.slow
def test_a_freeze_saves_what_was_paid_after_the_backup(
    shop: Shop, postgres: Postgres, valkey: Valkey, redis_client: redis.Redis, tmp_path: Path
) -> None:
    overdue, soon = shop.place(tea=3), shop.place(tea=4)
    shop.expire_in(-60_000, overdue)
    shop.expire_in(1000, soon)
    with (
        empty_database(postgres) as empty_url,
        an_engine(Settings.of(database_url=empty_url, redis_url=valkey.url)) as engine,
    ):
        dump_and_restore(shop.engine.url.render_as_string(hide_password=False), empty_url, tmp_path)
        service = OrderService(engine, shop.scheduler, Timeouts(1800, 1, 86_400))
        restored = replace(shop, engine=engine, service=service, stock_service=StockService(engine))
        queue = DelayQueue(redis_client, QUEUE)
        queue.schedule(soon.id, delay_ms=0)
        env = {"DATABASE_URL": empty_url, "REDIS_URL": valkey.url}
        freeze = as_written("orders freeze --reason", env).partition(":")[0]
        worker = processes.worker(env, tmp_path / "worker.log")
        try:
            wait_until(lambda: is_put_off(queue, soon.id), "the worker to leave it for later")
            restored.pay(soon)
            as_written("orders thaw", env, ID=freeze)
            get = Freezes(engine).get
            wait_until(lambda: get(freeze).state is FreezeState.OVER, "time to be given back")
            assert deadlines(engine) == {overdue.id: get(freeze).ends_at + timedelta(minutes=5)}
            wait_until(lambda: is_put_off(queue, overdue.id), "its check to be moved")
            restored.expire_in(-1, overdue)
            queue.schedule(overdue.id, delay_ms=0)
            expected = {overdue.id: "cancelled", soon.id: "paid"}
            wait_until(lambda: statuses(engine) == expected, "what is unpaid to be cancelled")
        finally:
            worker.kill()
        restored.check(tea=100)


def is_put_off(queue: DelayQueue, order_id: str) -> bool:
    """Whether its check is scheduled for a time after the deadline that it had."""
    found = queue.look_up(order_id)
    return found is not None and found.place is Place.SCHEDULED and (found.in_ms or 0) > 1000


def deadlines(engine: sa.Engine) -> dict[str, datetime]:
    """Of each unpaid order."""
    with reading(engine) as connection:
        rows = connection.execute(sa.select(unpaid_orders.c.order_id, unpaid_orders.c.expires_at))
        return {row.order_id: row.expires_at for row in rows}
