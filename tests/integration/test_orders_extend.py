"""A deadline is moved once per version, within bounds, and its check moves with it."""

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from devtools import processes
from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.errors import (
    AlreadyPaid,
    OrderCancelled,
    OrderNotFound,
    PreconditionFailed,
    TimeoutOutOfRange,
)
from orders.http.schemas.types import rfc3339
from orders.order.domain import Order, OrderStatus
from orders.order.repository import OrderRepository
from orders.sql.database import reading
from orders.sql.expressions import later, now
from orders.sql.ids import new_id
from orders.sql.tables import orders, unpaid_orders
from tests.clock import bound
from tests.conftest import Api, Shop
from tests.expiring import expire_now
from tests.integration.test_orders_statements import waiting
from tests.integration.workers import frozen
from tests.states import states

#: Of a shop in tests: what `Timeouts` allows.
MIN, MAX = timedelta(seconds=1), timedelta(days=1)


def extend(shop: Shop, order: Order, to: datetime, *versions: int, customer: str = "") -> Order:
    return shop.service.extend(
        customer or shop.client,
        order.id,
        expires_at=to,
        versions=frozenset(map(str, versions or (order.version,))),
    )


def events(shop: Shop, order: Order) -> list[tuple[str, Any]]:
    found = shop.service.events(shop.client, order.id, after_id=0, page_size=100)
    return [(event.type, event.data) for event in found]


def moved(before: datetime, after: datetime) -> tuple[str, dict[str, str]]:
    """The event that says so."""
    facts = {"previous_expires_at": rfc3339(before), "expires_at": rfc3339(after)}
    return "order.extended", facts


# -- what it does --------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", [45, 15])
def test_a_deadline_is_moved_later_or_earlier(shop: Shop, minutes: int) -> None:
    placed = shop.place()
    deadline = placed.created_at + timedelta(minutes=minutes, milliseconds=7)
    after = extend(shop, placed, deadline)
    assert after == shop.service.order(shop.client, placed.id)
    assert (after.expires_at, after.version) == (deadline, 2)
    assert (after.status, after.items) == (OrderStatus.UNPAID, placed.items)
    assert events(shop, placed) == [
        ("order.created", placed),
        moved(placed.expires_at, deadline),
    ]
    (_, first), (order_id, delay_ms) = shop.scheduler.scheduled
    assert order_id == placed.id
    assert first + (minutes - 30) * 60_000 - 60_000 < delay_ms <= minutes * 60_000 + 7
    shop.check(tea=100)


def test_a_replay_shows_the_order_as_it_was_placed(shop: Shop) -> None:
    new = shop.new(timeout_seconds=60)
    placed = shop.service.place(new)
    extend(shop, placed.order, placed.order.created_at + timedelta(minutes=9))
    again = shop.service.place(new)
    assert again == placed._replace(replayed=True)


def test_an_extended_order_is_cancelled_at_its_new_deadline(shop: Shop) -> None:
    order = shop.place()
    shop.expire_in(-1, order)
    extend(shop, order, order.created_at + timedelta(minutes=10))
    assert expire_now(shop.service, [order.id])[order.id] > 9 * 60_000
    shop.expire_in(-1, order)
    assert expire_now(shop.service, [order.id]) == {}
    assert [kind for kind, _ in events(shop, order)] == [
        "order.created",
        "order.extended",
        "order.cancelled",
    ]
    shop.check(tea=100)


def test_any_version_will_do_if_the_caller_says_so(shop: Shop) -> None:
    order = shop.place()
    deadline = order.created_at + timedelta(minutes=10)
    after = shop.service.extend(shop.client, order.id, expires_at=deadline, versions=None)
    assert extend(shop, order, deadline, 1, after.version, 12).version == 3


# -- what it refuses -----------------------------------------------------------------------


def test_a_refused_extension_says_why_and_changes_nothing(shop: Shop) -> None:
    unpaid, paid, cancelled, expired = (shop.place() for _ in range(4))
    shop.pay(paid)
    shop.service.cancel(shop.client, cancelled.id)
    shop.expire_in(-1, expired)
    expire_now(shop.service, [expired.id])
    before = shop.tables()
    deadline = unpaid.created_at + timedelta(minutes=10)
    second = timedelta(seconds=1)
    refused: list[tuple[type[Exception], Order, datetime, tuple[int, ...], str]] = [
        (PreconditionFailed, unpaid, deadline, (2,), ""),
        (PreconditionFailed, unpaid, deadline, (11, 0, 21), ""),
        (TimeoutOutOfRange, unpaid, unpaid.created_at + MAX + second / 1000, (1,), ""),
        (TimeoutOutOfRange, unpaid, unpaid.created_at + MIN - second / 1000, (1,), ""),
        (TimeoutOutOfRange, unpaid, unpaid.created_at - second, (1,), ""),
        (AlreadyPaid, paid, deadline, (1, 2), ""),
        (OrderCancelled, cancelled, deadline, (1, 2), ""),
        (OrderCancelled, expired, deadline, (1,), ""),
        (OrderNotFound, unpaid, deadline, (1,), shop.other),
    ]
    for error, order, to, versions, customer in refused:
        with pytest.raises(error):
            extend(shop, order, to, *versions, customer=customer)
    with pytest.raises(OrderNotFound):
        extend(shop, Order(**{**vars_of(unpaid), "id": new_id()}), deadline)
    assert shop.tables() == before
    assert len(shop.scheduler.scheduled) == 4
    assert extend(shop, unpaid, unpaid.created_at + MAX).expires_at == unpaid.created_at + MAX


def vars_of(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in Order.__dataclass_fields__}


def test_a_deadline_is_not_moved_into_the_past(shop: Shop) -> None:
    order = shop.place()
    an_hour_ago = {"created_at": later(now(), "ms")}
    with shop.engine.begin() as connection:
        connection.execute(sa.update(orders).values(an_hour_ago), {"ms": -3_600_000})
    aged = shop.service.order(shop.client, order.id)
    with pytest.raises(TimeoutOutOfRange, match="not past"):
        extend(shop, order, aged.created_at + timedelta(minutes=59))
    assert extend(shop, order, aged.created_at + timedelta(minutes=61)).version == 2


def test_an_extension_is_decided_when_it_has_the_lock(shop: Shop) -> None:
    deadline = shop.place().created_at + timedelta(minutes=10)

    order = shop.place()
    with waiting(shop, partial(extend, shop, order, deadline)) as (other, found):
        assert OrderRepository(other).cancel(order.id, shop.client)
    assert isinstance(found[0], OrderCancelled)

    order = shop.place()
    with waiting(shop, partial(extend, shop, order, deadline)) as (other, found):
        both = {"versions": " 1 ", "bounds_ms": (0, 10**9), "kept_ms": 0}
        assert OrderRepository(other).extend(order.id, shop.client, expires_at=deadline, **both)  # type: ignore[arg-type]
    assert isinstance(found[0], PreconditionFailed)

    order = shop.place()
    with waiting(shop, partial(extend, shop, order, deadline, 1, 2)) as (other, found):
        OrderRepository(other).extend(order.id, shop.client, expires_at=deadline, **both)  # type: ignore[arg-type]
    assert found[0].version == 3
    assert [kind for kind, _ in events(shop, order)] == ["order.created", *["order.extended"] * 2]


def test_an_extension_that_waited_is_scheduled_from_then(shop: Shop) -> None:
    order = shop.place()
    with waiting(shop, partial(extend, shop, order, order.created_at + MAX)) as (other, found):
        other.execute(sa.select(unpaid_orders).with_for_update())
    extended, waited_at = found
    left = (extended.expires_at - waited_at) / timedelta(milliseconds=1)
    assert shop.scheduler.scheduled[-1][1] <= left


# -- a worker in a process of its own ------------------------------------------------------


def deadlines(api: Api) -> dict[str, Any]:
    with reading(api.services.engine) as connection:
        return {row.order_id: row for row in connection.execute(sa.select(states))}


@pytest.mark.clock
@pytest.mark.slow
def test_a_worker_cancels_at_the_deadline_that_is_in_force(
    api: Api, migrated_url: str, valkey: Valkey, tmp_path: Path
) -> None:
    env = {"DATABASE_URL": migrated_url, "REDIS_URL": valkey.url, "LOOKAHEAD_SECONDS": "600"}
    worker = processes.worker(env, tmp_path / "worker.log")
    try:
        wait_until(lambda: '"available"' in worker.log.read_text(), "the worker to be at work")
        with frozen(worker):
            for seconds in (3, 600):  # the first ones are extended, the others shortened
                for order in [api.place(timeout_seconds=seconds).get_json() for _ in range(5)]:
                    created = datetime.fromisoformat(order["created_at"])
                    body = {"expires_at": rfc3339(created + timedelta(seconds=8))}
                    headers = {"If-Match": '"1"'}
                    path = f"/v1/orders/{order['id']}"
                    assert api.send("PATCH", path, body, headers=headers).status_code == 200

        def all_ended() -> bool:
            rows = deadlines(api).values()
            return all(row.ending == "order.cancelled" for row in rows)

        wait_until(all_ended, "every order to be cancelled")
    finally:
        worker.stop()
    late = [
        (row.ended_at - row.expires_at) / timedelta(milliseconds=1)
        for row in deadlines(api).values()
    ]
    assert min(late) >= 0, "none before the deadline that is in force"
    assert max(late) <= bound(1000)
