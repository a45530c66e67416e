"""Whatever happens to Redis and the workers: a freeze stops them, and gives back exactly."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from devtools.processes import Process, wait_until
from orders.db.tables import order_events, unpaid_orders
from orders.features.freezes.domain import Freeze, FreezeState
from orders.features.freezes.service import Freezes
from tests.kit.clock import bound
from tests.kit.pauses import last
from tests.kit.site import HURRIED, Build, Site

ORDERS = 3000
SETTINGS = {**HURRIED, "BATCH_SIZE": "50", "FLOWS": "freezes"}
#: Each batch takes a tenth of a second, so that a drain lasts.
SLOW_DELETES = """
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END $$;
CREATE TRIGGER nap BEFORE DELETE ON unpaid_orders FOR EACH STATEMENT EXECUTE FUNCTION nap()
"""
STOP_SECONDS = 0.5
#: Longer than a lease, and three sweeps.
FAULT_SECONDS = 4


def flush(site: Site, _workers: list[Process]) -> None:
    site.client.flushall()


def kill_redis(site: Site, _workers: list[Process]) -> None:
    site.valkey.kill()


def kill_workers(_site: Site, workers: list[Process]) -> None:
    for worker in workers:
        worker.kill()
    workers.clear()


def restart(site: Site, workers: list[Process]) -> None:
    kill_workers(site, workers)
    site.client.flushall()
    workers[:] = [site.start_worker(), site.start_worker()]


def cancellations(site: Site) -> list[datetime]:
    cancelled = order_events.c.type == "order.cancelled"
    with site.services.engine.connect() as connection:
        query = sa.select(order_events.c.at).where(cancelled).order_by(order_events.c.at)
        return [*connection.execute(query).scalars()]


def deadlines(site: Site) -> list[datetime]:
    with site.services.engine.connect() as connection:
        return [*connection.execute(sa.select(unpaid_orders.c.expires_at)).scalars()]


def stop(site: Site, give_back_seconds: int) -> Freeze:
    return (
        site.services[Freezes]
        .open(
            reason="an emergency",
            by="command line",
            seconds=600,
            give_back_seconds=give_back_seconds,
        )
        .freeze
    )


@pytest.mark.slow
@pytest.mark.parametrize("fault", [flush, kill_redis, restart, kill_workers])
def test_a_stop_in_a_drain_holds_and_gives_back(
    build: Build, fault: Callable[[Site, list[Process]], None]
) -> None:
    site = build(**SETTINGS)
    with site.services.engine.begin() as connection:
        connection.exec_driver_sql(SLOW_DELETES)
    workers = [site.start_worker(), site.start_worker()]
    site.place(ORDERS, 0, 1)
    wait_until(lambda: site.unpaid() < ORDERS - 500, "a drain")

    freeze = stop(site, give_back_seconds=20)
    fault(site, workers)
    last(FAULT_SECONDS)

    ended = cancellations(site)
    assert 0 < len(ended) < ORDERS, "it was to be stopped in the middle"
    assert max(ended) <= freeze.opened_at + timedelta(seconds=bound(STOP_SECONDS))
    left = site.unpaid()

    thawed = site.services[Freezes].thaw(freeze.id, by="command line")
    get = site.services[Freezes].get
    if not workers:  # it ends while nobody is there to give back
        assert get(freeze.id).state is FreezeState.THAWING
        site.start_worker()
    wait_until(lambda: get(freeze.id).state is FreezeState.OVER, "all to be given back")
    assert {*deadlines(site)} == {thawed.deadline}
    over = get(freeze.id)
    assert over.given_back == left
    assert over.given_back_at is not None
    assert over.given_back_at < thawed.deadline, "nobody was cancelled before"
    assert len(cancellations(site)) == len(ended)

    site.wait_until_all_are_cancelled()
    assert min(cancellations(site)[len(ended) :]) >= freeze.opened_at
    assert site.latest_ms() >= 0
    redis_is_there = fault is not kill_redis
    assert site.violations(of_the_queue=redis_is_there) == []
