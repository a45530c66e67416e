"""The checker can fail: each seeded bug is reported as the promise that it breaks."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from orders.db.tables import order_events, orders, payments, stock_items, unpaid_orders
from orders.order.domain import CancelReason, Payment
from orders.queues import QUEUE
from orders.wiring import Services
from tests.kit.expiring import expire_now
from tests.kit.moments import now
from tests.kit.settling import ack, release, retry
from tests.kit.site import ON_HAND, SKUS, Build, Site
from tests.kit.states import status
from worker import DelayQueue, Due, LeaseLost
from worker.queue.scripts import scripts

pytestmark = pytest.mark.slow


def check(site: Site, **expectations: Any) -> set[str]:
    """The promises that are broken."""
    return {found.promise for found in site.violations(**expectations)}


def expire(services: Services, ids: Sequence[str]) -> None:
    expire_now(services.orders, ids)


@pytest.fixture
def site(build: Build) -> Site:
    return build()


def test_a_sound_history_is_not_reported(site: Site) -> None:
    ids = site.place(20, -1, -1)
    assert check(site, complete=True) == set()
    expire(site.services, ids[:10])
    for task in site.queue.claim(20, 1000).tasks:
        ack(site.queue, [task])
    expire(site.services, ids)
    assert check(site, drained=True, complete=True) == set()


def test_ack_before_commit_loses_a_check(site: Site) -> None:
    site.place(1, -1, -1)
    claim = site.queue.claim(1, 1000)
    ack(site.queue, claim.tasks)
    # ... and here the worker dies, before its transaction commits.
    assert check(site, complete=True) == {"S4"}


def test_select_then_update_cancels_what_was_paid(site: Site) -> None:
    [order_id] = site.place(1, -1, -1)
    with site.services.engine.begin() as connection:
        seen = connection.execute(sa.select(status)).scalar_one()
    pay(site, order_id)
    assert check(site) == set()
    if seen == "unpaid":
        with site.services.engine.begin() as connection:
            connection.execute(
                sa.update(order_events)
                .where(order_events.c.type == "order.paid")
                .values(type="order.cancelled", data={"reason": CancelReason.EXPIRED})
            )
    assert {"S1", "S2"} <= check(site)


def test_the_database_refuses_the_second_ending_of_such_a_bug(site: Site) -> None:
    [order_id] = site.place(1, -1, -1)
    pay(site, order_id)
    paid = sa.select(order_events).where(order_events.c.type == "order.paid")
    once = pytest.raises(sa.exc.IntegrityError, match="uq_order_events_terminal")
    with once, site.services.engine.begin() as connection:
        ended = connection.execute(paid).one()._asdict()
        del ended["id"], ended["place"]
        again = ended | {"type": "order.cancelled", "data": {"reason": CancelReason.EXPIRED}}
        connection.execute(sa.insert(order_events), again)


def test_both_or_neither_of_row_and_ending_is_reported(site: Site) -> None:
    ids = site.place(1, -1, -1)
    with site.services.engine.begin() as connection:
        row = connection.execute(sa.select(unpaid_orders)).one()._asdict()
    expire(site.services, ids)
    assert check(site) == set()
    with site.services.engine.begin() as connection:
        connection.execute(sa.insert(unpaid_orders), row)
    assert "S1" in check(site)
    with site.services.engine.begin() as connection:
        connection.execute(sa.delete(unpaid_orders))
        connection.execute(sa.delete(order_events))
    assert "S1" in check(site)


def test_a_deadline_that_moves_unannounced_is_reported(site: Site) -> None:
    ids = site.place(1, 60, 60)
    [customer] = customers(site)
    service = site.services.orders
    order = service.order(customer, ids[0])
    later = order.expires_at + timedelta(seconds=60)
    service.extend(customer, order.id, expires_at=later, versions=["1"])
    assert check(site) == set()
    row = sa.update(unpaid_orders).where(unpaid_orders.c.order_id == order.id)
    ended = sa.update(order_events).where(order_events.c.type == "order.cancelled")
    with site.services.engine.begin() as connection:
        connection.execute(row.values(expires_at=order.expires_at))
    assert check(site) == {"S3"}
    with site.services.engine.begin() as connection:
        connection.execute(row.values(expires_at=later, version=1))
    assert check(site) == {"S1"}
    with site.services.engine.begin() as connection:
        connection.execute(row.values(version=2, expires_at=now()))
    expire_now(service, ids)
    with site.services.engine.begin() as connection:
        connection.execute(ended.values(expires_at=later))
    assert check(site) == {"S3"}, "it was cancelled at the time that was in force no more"


def test_stock_released_twice_is_reported(site: Site) -> None:
    ids = site.place(2, -1, -1)
    expire(site.services, ids[:1])
    with site.services.engine.begin() as connection:
        connection.execute(sa.update(stock_items).values(reserved=stock_items.c.reserved - 1))
    assert check(site) == {"S2"}


def test_stock_that_changes_without_a_row_is_reported(site: Site) -> None:
    site.place(1, -1, -1)
    stock, sku = site.services.stock, SKUS[0]
    [customer] = customers(site)
    change: dict[str, Any] = {"client_id": customer, "reason": "counted"}
    stock.adjust(sku, key="one", delta=-3, **change)
    stock.adjust(sku, key="one", delta=-3, **change)
    stock.set(sku, on_hand=ON_HAND - 1, price_minor=1, currency="EUR")
    assert check(site) == set()
    with site.services.engine.begin() as connection:
        connection.execute(sa.update(stock_items).values(on_hand=stock_items.c.on_hand + 1))
    assert check(site) == {"S2"}


def test_money_sent_back_twice_or_without_a_word_is_reported(site: Site) -> None:
    ids = site.place(2, -1, -1)
    expire(site.services, ids)
    late = [pay(site, order_id, "refund_due") for order_id in ids]
    [customer] = customers(site)
    site.services.orders.refund(customer, late[0].id, "sent")
    assert check(site) == set()
    with site.services.engine.begin() as connection:
        noted = sa.select(order_events).where(order_events.c.type == "payment.refunded")
        event = connection.execute(noted).one()._asdict() | {"order_id": late[1].order_id}
        del event["id"], event["place"]
        connection.execute(sa.insert(order_events), event)  # the first one's money, once more
    assert check(site) == {"S1"}
    with site.services.engine.begin() as connection:
        twice = order_events.c.order_id == late[1].order_id, order_events.c.type == event["type"]
        connection.execute(sa.delete(order_events).where(*twice))
    assert check(site) == set()
    with site.services.engine.begin() as connection:
        all_of_it = {"status": "refunded", "refunded_minor": payments.c.amount_minor}
        connection.execute(sa.update(payments).values(all_of_it))
    assert check(site) == {"S1"}


def test_release_without_the_token_ends_another_workers_lease(site: Site) -> None:
    """The zombie's lease has ended, another worker has the task, and the zombie gives it back."""
    site.place(1, -1, -1)
    zombie = site.queue.claim(1, 1)
    now_ms = zombie.tasks[0].due_at_ms + 3_600_000
    # By another queue object: to that of the zombie, an hour would be an outage of Redis.
    holder = DelayQueue(site.services.redis, QUEUE).claim(1, 7_200_000, now_ms=now_ms)
    assert [task.id for task in holder.tasks] == [task.id for task in zombie.tasks]
    held = {task.id: task.token for task in holder.tasks}
    with pytest.raises(LeaseLost):
        release(site.queue, zombie.tasks)
    assert check(site, held=held) == set()
    unfenced = variant(site, "settle", "string.sub(kept, 1, 64) == token", "true")
    release(unfenced, zombie.tasks)
    assert check(site, held=held) == {"S5"}


def test_a_sweep_that_ignores_unpaid_queues_settled_orders(site: Site) -> None:
    ids = site.place(5, -1, -1)
    expire(site.services, ids)
    for task in site.queue.claim(5, 1000).tasks:
        ack(site.queue, [task])
    assert check(site, drained=True) == set()
    with site.services.engine.connect() as connection:
        everything = connection.execute(sa.select(orders.c.id)).scalars().all()
    site.queue.restore([Due(order_id, -1000) for order_id in everything])
    assert check(site, drained=True) == {"S4"}


def test_zadd_before_zrem_stops_a_worker_whose_redis_is_full(site: Site) -> None:
    """The settle script as it is goes through; with its ZREM as the last write it does not."""
    site.place(2, -1, -1)
    claim = site.queue.claim(2, 60_000)
    with redis.Redis.from_url(site.valkey.url) as client:
        client.config_set("maxmemory", 1)
    zrem = "redis.call('ZREM', leased, unpack(held))\n"
    wrong = (
        script("settle")
        .replace(zrem, "")
        .replace("now + delay, text)\n", f"now + delay, text)\n{zrem}")
    )
    assert wrong != script("settle")
    [first, second] = claim.tasks
    with pytest.raises(redis.ResponseError, match="maxmemory"):
        retry(with_script(site, "settle", wrong), [(first, 1)])
    retry(site.queue, [(second, 1)])
    assert site.queue.stats().leased == 1


def pay(site: Site, order_id: str, status: str = "applied") -> Payment:
    order = site.services.orders
    [customer] = customers(site)
    paid = order.pay(
        customer,
        order_id,
        provider="bank",
        reference=order_id,
        amount_minor=300,
        currency="EUR",
    )
    assert paid.payment.status == status
    return paid.payment


def customers(site: Site) -> Iterator[str]:
    with site.services.engine.connect() as connection:
        yield from connection.execute(sa.select(orders.c.client_id).distinct()).scalars()


def script(name: str) -> str:
    [text] = (file.text for file in scripts() if file.name == name)
    return text


def variant(site: Site, name: str, good: str, bad: str) -> DelayQueue:
    """The queue with a bug in one script."""
    assert good in script(name)
    return with_script(site, name, script(name).replace(good, bad))


def with_script(site: Site, name: str, text: str) -> DelayQueue:
    queue = DelayQueue(site.client, QUEUE)
    _, keys = queue._scripts[name]
    queue._scripts[name] = site.client.register_script(text), keys
    return queue
