"""Eight workers and paying customers at once, on PostgreSQL: nobody waits in a circle."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from devtools.postgres import Postgres
from orders.db.tables import orders
from tests.kit.failpoints import REPEAT
from tests.kit.site import PATIENT, Build

pytestmark = pytest.mark.slow

ORDERS = 2000
CUSTOMERS = 8


@pytest.mark.parametrize("seed", range(REPEAT))
def test_eight_workers_and_paying_customers_never_deadlock(
    build: Build, postgres: Postgres, seed: int
) -> None:
    chance = random.Random(seed)
    logged = postgres.log.stat().st_size  # other tests deadlock on purpose
    site = build(
        BATCH_SIZE="50", LOOKAHEAD_SECONDS="1", DATABASE_POOL_SIZE=str(CUSTOMERS), **PATIENT
    )
    workers = [site.start_worker("--threads", "4") for _ in range(2)]
    ids = site.place(ORDERS, 0.5, 2.5)
    with site.services.engine.connect() as connection:
        customer = connection.execute(sa.select(orders.c.client_id).distinct()).scalar_one()

    def pay(order_id: str) -> str:
        paid = site.services.orders.pay(
            customer,
            order_id,
            provider="bank",
            reference=order_id,
            amount_minor=300,
            currency="EUR",
        )
        return paid.payment.status

    with ThreadPoolExecutor(CUSTOMERS) as customers:
        told = [*customers.map(pay, chance.sample(ids, ORDERS // 2))]
    site.wait_until_drained()

    assert {*told} <= {"applied", "refund_due"}
    assert site.latest_ms() >= 0
    assert site.violations(drained=True) == []
    with site.services.engine.connect() as connection:
        deadlocks = connection.execute(
            sa.text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        ).scalar_one()
    assert deadlocks == 0
    assert b"deadlock detected" not in postgres.log.read_bytes()[logged:]
    for worker in workers:
        log = site.log(worker)
        assert "task failed" not in log
        assert "unavailable" not in log
        assert '"batch"' in log, "every worker was to have its share"
