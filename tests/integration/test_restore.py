"""A backup of SQL is restored into an empty database, whatever Redis has: nothing is missing, and all goes on."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa

from devtools import processes
from devtools.postgres import Postgres, binary
from devtools.processes import free_port, wait_until
from devtools.valkey import Valkey
from examples.provider import PaymentProvider
from orders.config import Settings
from orders.freezes.domain import FreezeState
from orders.freezes.service import Freezes
from orders.providers.service import Providers
from orders.queues import QUEUE
from orders.sql.database import create_engine, reading
from orders.sql.tables import unpaid_orders
from orders.stock.service import StockService
from tests.conftest import Shop, empty_database
from tests.e2e.pages import OPERATIONS, the_block
from tests.states import states, status
from worker import DelayQueue, Place

DUMP = the_block("sh", "pg_dump", OPERATIONS)
RESTORE = the_block("sh", "pg_restore", OPERATIONS)


def dump_and_restore(url: str, to: str, folder: Path) -> None:
    """What the page says."""
    for block in (DUMP, RESTORE):
        run_block(block, url, to, folder)


def run_block(block: str, url: str, to: str, folder: Path) -> None:
    programs = Path(binary("pg_dump")).parent
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "DATABASE": url.replace("+psycopg", ""),
        "EMPTY_DATABASE": to.replace("+psycopg", ""),
    }
    environ = {**os.environ, **env}
    subprocess.run(["/bin/bash", "-ec", block], cwd=folder, env=environ, check=True)


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


def as_written(command: str, env: dict[str, str], **values: str) -> str:
    """Run the page's only command that begins so; return its output."""
    [found] = re.findall(rf"`python -m ({command} [^`]*)`", OPERATIONS)
    return processes.run([values.get(word, word) for word in shlex.split(found)], env)


@pytest.fixture
def empty_url(postgres: Postgres) -> Iterator[str]:
    """A second database, with nothing in it."""
    with empty_database(postgres) as url:
        yield url


@pytest.mark.slow  # without a backup: faults/test_redis_fails.py, where Redis is empty, too
@pytest.mark.parametrize(
    ("checks", "frozen"),
    [
        pytest.param([], False, id="Redis is empty"),
        pytest.param(["soon", "later"], False, id="Redis is newer"),
        pytest.param(["paid"], False, id="Redis is older"),
        pytest.param(["soon", "later"], True, id="frozen, as the page says"),
    ],
)
def test_a_freeze_saves_what_was_paid_after_the_backup(
    shop: Shop,
    empty_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,
    tmp_path: Path,
    *,
    checks: list[str],
    frozen: bool,
) -> None:
    """Without one, all that is unpaid in the backup is cancelled."""
    paid, overdue, soon = shop.place(tea=2), shop.place(tea=3), shop.place(tea=4)
    shop.pay(paid)
    shop.expire_in(-60_000, overdue)
    shop.expire_in(1000, soon)
    endpoint, secret = Providers(shop.engine).add("customer", "bank")
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
    freeze = as_written("orders freeze --reason", env).partition(":")[0] if frozen else ""
    running = [processes.worker(env, tmp_path / "worker.log")]
    expected = {paid.id: "paid", overdue.id: "cancelled", soon.id: "cancelled"}
    try:
        if frozen:
            wait_until(lambda: is_put_off(queue, soon.id), "the worker to leave it for later")
            port = free_port()
            running.append(processes.api(env, port, tmp_path / "api.log"))
            url = f"http://127.0.0.1:{port}/v1/providers/{endpoint.id}/webhook"
            provider = PaymentProvider(url, secret)
            report = provider.charge(asdict(soon))
            wait_until(lambda: provider.deliver(report), "the API to serve", ignoring=OSError)
            as_written("orders thaw", env, ID=freeze)
            get = Freezes(engine).get
            wait_until(lambda: get(freeze).state is FreezeState.OVER, "time to be given back")
            assert deadlines(engine) == {overdue.id: get(freeze).ends_at + timedelta(minutes=5)}
            expected[soon.id] = "paid"
            restored.expire_in(-1, overdue)
            queue.schedule(overdue.id, delay_ms=0)
        wait_until(lambda: statuses(engine) == expected, "what is unpaid to be cancelled")
        wait_until(
            lambda: not queue.stats().scheduled + queue.stats().leased, "no check to be left"
        )
    finally:
        for process in running:
            process.kill()
    assert queue.dead() == []
    restored.check(tea=100)
    engine.dispose()


def is_put_off(queue: DelayQueue, order_id: str) -> bool:
    """Whether its check is scheduled for a time after the deadline that it had."""
    found = queue.look_up(order_id)
    return found is not None and found.place is Place.SCHEDULED and (found.in_ms or 0) > 1000


def deadlines(engine: sa.Engine) -> dict[str, datetime]:
    """Of each unpaid order."""
    with reading(engine) as connection:
        rows = connection.execute(sa.select(unpaid_orders.c.order_id, unpaid_orders.c.expires_at))
        return {row.order_id: row.expires_at for row in rows}


def statuses(engine: sa.Engine) -> dict[str, str]:
    with reading(engine) as connection:
        rows = connection.execute(sa.select(states.c.order_id, status))
        return {row.order_id: row.status for row in rows}
