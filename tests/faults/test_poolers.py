"""PgBouncer in transaction mode between the service and PostgreSQL."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from devtools.processes import free_port
from orders.config import Settings
from orders.db.database import create_engine, session_settings
from tests.kit.features import findings  # <doctor/>
from tests.kit.pooler import pooling
from tests.kit.site import Answer, Build, Customer
from worker import Finding  # <doctor/>

pytestmark = pytest.mark.slow

#: Fewer than ask at once, so that backends are handed on all the time.
BACKENDS = 6
CUSTOMERS, ORDERS_EACH = 8, 60
BUSY = {"stock_busy", "server_busy"}


@pytest.fixture
def pooled(migrated_url: str, tmp_path: Path) -> Iterator[sa.URL]:
    """The database's URL through PgBouncer, whose users have settings of their own for it only."""
    direct = sa.make_url(migrated_url)
    with pooling(direct, tmp_path, backends=BACKENDS) as port:
        yield direct.set(port=port)
        with psycopg.connect(migrated_url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(
                "ALTER ROLE CURRENT_USER IN DATABASE " + str(direct.database) + " RESET ALL"
            )


# <doctor>
def examined(settings: Settings) -> Finding:
    engine = create_engine(settings)
    found = findings(engine, session=session_settings(settings))
    engine.dispose()
    return found["sql.settings"]


# </doctor>


def insist(ask: Callable[[], Answer]) -> Answer:
    """Ask again while the API says that the machine is busy."""
    answer = ask()
    while answer.body.get("code") in BUSY:
        answer = ask()
    return answer


def test_all_goes_on_through_a_pooler(build: Build, pooled: sa.URL, migrated_url: str) -> None:
    url = pooled.render_as_string(hide_password=False)
    settings = Settings.of(database_url=url, redis_url="redis://nowhere", database_pooler=True)
    role = f"ALTER ROLE CURRENT_USER IN DATABASE {pooled.database}"
    statements = [
        f"{role} SET {name} = '{value}'" for name, value in session_settings(settings).items()
    ]
    # <doctor>
    wrong = examined(settings)
    assert "enable_seqscan is not off" in wrong.summary
    statements = wrong.advice.partition(": ")[2].split(";")[:-1]
    # </doctor>
    with psycopg.connect(migrated_url.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
    with psycopg.connect(
        host=pooled.host, port=pooled.port, dbname="pgbouncer", user="pgbouncer", autocommit=True
    ) as console:
        console.execute("RECONNECT", prepare=False)
    assert examined(settings).level == "ok"  # <doctor/>

    site = build()
    site.env |= {"DATABASE_URL": url, "DATABASE_POOLER": "true"}
    port = free_port()
    api = site.start_api(port)
    workers = [site.start_worker(), site.start_worker()]

    def shop(number: int) -> list[int]:
        customer = Customer(site)
        told = []
        for n in range(ORDERS_EACH):
            key = f"{number}-{n}"
            placed = insist(partial(customer.order, port, key, timeout_seconds=2))
            told.append(placed.status)
            if n % 2:
                told.append(insist(partial(customer.pay, port, placed.body)).status)
        return told

    with ThreadPoolExecutor(CUSTOMERS) as customers:
        told = [status for each in customers.map(shop, range(CUSTOMERS)) for status in each]
    site.wait_until_drained()
    assert {*told} <= {200, 201}
    assert site.violations(drained=True) == []
    for process in (api, *workers):
        log = site.log(process)
        assert "Traceback" not in log
        assert "unavailable" not in log
