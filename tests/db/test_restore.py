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
from devtools.postgres import Postgres
from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.database import create_engine
from orders.queues import QUEUE
from orders.stock.service import StockService
from tests.kit.databases import empty_database
from tests.kit.restore import DUMP, RESTORE, dump_and_restore, run_block, statuses
from tests.kit.shop import Shop
from worker import DelayQueue


def test_a_restore_that_fails_leaves_the_database_empty(
    shop: Shop, empty_url: str, tmp_path: Path
) -> None:
    """A copy of the dump was cut short, so that all tables are made before that is noticed."""
    shop.place(tea=2)
    url = shop.engine.url.render_as_string(hide_password=False)
    run_block(DUMP, url, empty_url, tmp_path)
    with (tmp_path / "orders.dump").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 100)
    with pytest.raises(subprocess.CalledProcessError):
        run_block(RESTORE, url, empty_url, tmp_path)
    engine = sa.create_engine(empty_url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


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
def test_what_is_unpaid_in_the_backup_is_cancelled(
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

    engine = create_engine(Settings.of(database_url=empty_url, redis_url=valkey.url))
    restored = replace(shop, engine=engine, stock_service=StockService(engine))
    assert restored.tables() == then
    env = {"DATABASE_URL": empty_url, "REDIS_URL": valkey.url}
    worker = processes.worker(env, tmp_path / "worker.log")
    expected = {paid.id: "paid", overdue.id: "cancelled", soon.id: "cancelled"}
    try:
        wait_until(lambda: statuses(engine) == expected, "what is unpaid to be cancelled")
        wait_until(
            lambda: not queue.stats().scheduled + queue.stats().leased, "no check to be left"
        )
        assert queue.dead() == []
        restored.check(tea=100)
    finally:
        worker.kill()
        engine.dispose()
