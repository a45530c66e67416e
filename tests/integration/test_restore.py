"""A backup of SQL is restored into an empty database, whatever Redis has: nothing is missing, and all goes on."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa

from devtools import processes
from devtools.postgres import Postgres, binary
from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.config import Settings
from orders.queues import QUEUE
from orders.sql.database import create_engine, reading
from orders.stock.service import StockService
from tests.conftest import Shop, empty_database
from tests.e2e.pages import OPERATIONS, the_block
from tests.states import states, status
from worker import DelayQueue


def dump_and_restore(url: str, to: str, folder: Path) -> None:
    """What the page says."""
    programs = Path(binary("pg_dump")).parent
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "DATABASE": url.replace("+psycopg", ""),
        "EMPTY_DATABASE": to.replace("+psycopg", ""),
    }
    for block in (
        the_block("sh", "pg_dump", OPERATIONS),
        the_block("sh", "pg_restore", OPERATIONS),
    ):
        subprocess.run(
            ["/bin/bash", "-ec", block], cwd=folder, env={**os.environ, **env}, check=True
        )


@pytest.fixture
def empty_url(postgres: Postgres) -> Iterator[str]:
    """A second database, with nothing in it."""
    with empty_database(postgres) as url:
        yield url


@pytest.mark.slow  # without a backup: faults/test_redis_fails.py, where Redis is empty, too
@pytest.mark.parametrize(
    "checks",
    [
        pytest.param([], id="Redis is empty"),
        pytest.param(["soon", "later"], id="Redis is newer"),
        pytest.param(["paid"], id="Redis is older"),
    ],
)
def test_what_is_unpaid_in_a_backup_is_cancelled_after_a_restore(
    shop: Shop,
    empty_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,
    tmp_path: Path,
    *,
    checks: list[str],
) -> None:
    paid, overdue, soon = shop.place(tea=2), shop.place(tea=3), shop.place(tea=4)
    shop.pay(paid)
    shop.expire_in(-60_000, overdue)
    shop.expire_in(1000, soon)
    then = shop.tables()
    dump_and_restore(shop.engine.url.render_as_string(hide_password=False), empty_url, tmp_path)
    shop.pay(soon)  # after the backup, which does not know of it
    placed = {"paid": paid, "soon": soon, "later": shop.place(tea=5)}
    assert redis_client.dbsize() == 0
    queue = DelayQueue(redis_client, QUEUE)
    queue.schedule_many((placed[name].id, 0, b"") for name in checks)

    engine = create_engine(Settings(database_url=empty_url, redis_url=valkey.url))
    restored = replace(shop, engine=engine, stock_service=StockService(engine))
    assert restored.tables() == then
    env = {"DATABASE_URL": empty_url, "REDIS_URL": valkey.url}
    worker = processes.worker(env, tmp_path / "worker.log")
    try:
        expected = {paid.id: "paid", overdue.id: "cancelled", soon.id: "cancelled"}
        wait_until(lambda: statuses(engine) == expected, "what is unpaid to be cancelled")
        wait_until(
            lambda: not queue.stats().scheduled + queue.stats().leased, "no check to be left"
        )
    finally:
        worker.kill()
    assert queue.dead() == []
    restored.check(tea=100)
    engine.dispose()


def statuses(engine: sa.Engine) -> dict[str, str]:
    with reading(engine) as connection:
        rows = connection.execute(sa.select(states.c.order_id, status))
        return {row.order_id: row.status for row in rows}
