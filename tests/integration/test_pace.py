"""MAX_CANCELLATIONS_PER_SECOND: a backlog drains at a rate that a person can stop."""

import time
from functools import partial

import pytest
import sqlalchemy as sa

from orders.bootstrap import bootstrap
from orders.config import Settings
from orders.order.domain import Order, Timeouts
from orders.order.repository import OrderRepository
from orders.order.service import OrderService
from orders.sql.expressions import later, now
from orders.sql.keeping import cancellation_pace
from orders.timeouts import timeout_flow
from tests.conftest import Shop
from tests.expiring import expire_now
from tests.integration.test_orders_statements import waiting
from tests.races import together
from worker import Retry, Task

RATE = 3


@pytest.fixture
def slow(shop: Shop) -> OrderService:
    """Cancels three orders per second."""
    return OrderService(shop.engine, shop.scheduler, Timeouts(1800, 1, 86_400), per_second=RATE)


def overdue(shop: Shop, count: int) -> list[Order]:
    placed = [shop.place() for _ in range(count)]
    for number, each in enumerate(placed):
        shop.expire_in(-100 * (count - number), each)
    return placed


def used(shop: Shop, ms: int) -> None:
    """The bucket was used up to so many milliseconds from now."""
    with shop.engine.begin() as connection:
        until = sa.update(cancellation_pace).values(used_until=later(now(), "ms"))
        assert connection.execute(until, {"ms": ms}).rowcount == 1


def cancelled(shop: Shop) -> int:
    return [*shop.statuses().values()].count("cancelled")


def test_a_second_brings_so_many_the_oldest_first(shop: Shop, slow: OrderService) -> None:
    orders = overdue(shop, 10)
    ids = [each.id for each in orders]
    expire_now(slow, ids)
    statuses = shop.statuses()
    assert [id_ for id_ in ids if statuses[id_] == "cancelled"] == ids[:3]
    used(shop, 50_000)
    before = cancelled(shop)
    left = expire_now(slow, ids)
    assert cancelled(shop) == before
    assert {*left} == {id_ for id_ in ids if statuses[id_] == "unpaid"}
    assert all(ms <= 0 for ms in left.values())
    used(shop, -1000)
    expire_now(slow, ids)
    assert cancelled(shop) == before + 3
    used(shop, -3_600_000)
    expire_now(slow, ids)
    assert cancelled(shop) == before + 6, "what an hour brought is not saved"
    used(shop, 3_600_000)
    expire_now(slow, ids)
    assert cancelled(shop) > before + 6, "a clock that was set back stops nothing"
    shop.check(tea=100)


def test_who_waits_can_still_pay(shop: Shop, slow: OrderService) -> None:
    first, *rest = overdue(shop, 5)
    expire_now(slow, [first.id])
    used(shop, 50_000)
    expire_now(slow, [each.id for each in rest])
    for each in rest:
        assert shop.pay(each).payment.status == "applied"
    shop.check(tea=100)


def test_all_workers_together_keep_the_pace(shop: Shop, slow: OrderService) -> None:
    ids = [each.id for each in overdue(shop, 40)]
    expire_now(slow, ids[:1])
    used(shop, -1000)
    began = time.monotonic()
    together(*(partial(expire_now, slow, ids[start::4]) for start in range(1, 5)))
    seconds = time.monotonic() - began
    assert 3 <= cancelled(shop) - 1 <= 3 + RATE * seconds


def test_a_batch_that_waited_takes_only_what_is_left(shop: Shop, slow: OrderService) -> None:
    """Both found a full bucket when they began."""
    ids = [each.id for each in overdue(shop, 7)]
    expire_now(slow, ids[:1])
    used(shop, -1000)
    with waiting(shop, lambda: expire_now(slow, ids[4:])) as (other, _):
        OrderRepository(other).expire(ids[1:4], per_second=RATE)
        # Nothing is added while the other waits.
        far = sa.update(cancellation_pace).values(used_until=later(now(), "ms"))
        other.execute(far, {"ms": 30_000})
    assert cancelled(shop) == 4
    shop.check(tea=100)


def test_on_time_cancellations_are_not_delayed(shop: Shop) -> None:
    service = OrderService(shop.engine, shop.scheduler, Timeouts(1800, 1, 86_400), per_second=1000)
    for _ in range(3):
        ids = [each.id for each in overdue(shop, 10)]
        assert expire_now(service, ids) == {}


def test_checks_of_a_backlog_are_spread(shop: Shop) -> None:
    url = shop.engine.url.render_as_string(hide_password=False)
    services = bootstrap(
        Settings(
            database_url=url,
            redis_url="redis://127.0.0.1:1",
            max_cancellations_per_second=1,
        )
    )
    orders = overdue(shop, 4)
    try:
        left = timeout_flow(services).handler([Task(each.id) for each in orders]) or {}
    finally:
        services.close()
    delays = sorted(each.delay_ms for each in left.values() if isinstance(each, Retry))
    assert delays == [1000.0, 2000.0, 3000.0]
    assert cancelled(shop) == 1
