"""A deadline is moved once per version, within bounds, and its check moves with it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from devtools import processes
from devtools.processes import wait_until
from devtools.valkey import Valkey
from orders.db.database import reading
from orders.db.tables import orders, unpaid_orders
from orders.errors import OrderCancelled, PreconditionFailed, TimeoutOutOfRange
from orders.hooks import Hooks
from orders.http.schemas.types import rfc3339
from orders.order import payments, service
from orders.order.domain import Order, OrderStatus, Timeouts
from orders.order.service import OrderService
from tests.kit.api import Api
from tests.kit.clock import bound
from tests.kit.expiring import expire_now
from tests.kit.moments import clock, later, now
from tests.kit.races import waiting
from tests.kit.shop import Shop
from tests.kit.states import states
from tests.kit.workers import frozen

#: Of a shop in tests: what `Timeouts` allows.
MAX = timedelta(days=1)


def extend(shop: Shop, order: Order, to: datetime, *versions: int, customer: str = "") -> Order:
    return shop.service.extend(
        customer or shop.client,
        order.id,
        expires_at=to,
        versions=[*map(str, versions or (order.version,))],
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
    assert events(shop, placed)[1:] == [moved(placed.expires_at, deadline)]
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


# -- what it refuses -----------------------------------------------------------------------


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
        assert shop.inside(other).cancel(shop.client, order.id)
    assert isinstance(found[0], OrderCancelled)

    order = shop.place()
    with waiting(shop, partial(extend, shop, order, deadline)) as (other, found):
        both: Any = {"versions": ["1"], "expires_at": deadline}
        assert shop.inside(other).extend(shop.client, order.id, **both)
    assert isinstance(found[0], PreconditionFailed)

    order = shop.place()
    with waiting(shop, partial(extend, shop, order, deadline, 1, 2)) as (other, found):
        shop.inside(other).extend(shop.client, order.id, **both)
    assert found[0].version == 3
    assert [kind for kind, _ in events(shop, order)] == ["order.created", *["order.extended"] * 2]

    order = shop.place()
    soon = order.created_at + timedelta(seconds=1)
    with ThreadPoolExecutor(1) as pool:
        with shop.engine.begin() as other:
            other.execute(sa.select(unpaid_orders).filter_by(order_id=order.id).with_for_update())
            late = pool.submit(extend, shop, order, soon)
            wait_until(
                lambda: bool(other.scalar(sa.select(clock() > soon))), "the deadline to pass"
            )
        assert isinstance(late.exception(), TimeoutOutOfRange)


def test_an_extension_that_waited_is_scheduled_from_then(shop: Shop) -> None:
    order = shop.place()
    with waiting(shop, partial(extend, shop, order, order.created_at + MAX)) as (other, found):
        other.execute(sa.select(unpaid_orders).with_for_update())
    extended, waited_at = found
    left = (extended.expires_at - waited_at) / timedelta(milliseconds=1)
    assert shop.scheduler.scheduled[-1][1] <= left


def test_a_check_counts_from_before_anybody_is_told(shop: Shop, monkeypatch: Any) -> None:
    now = [0.0]
    for module in (payments, service):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    tell: Any = lambda *_: now.append(now.pop() + 5)  # noqa: E731
    hooks = Hooks()
    hooks.committed.append(tell)
    told = OrderService(shop.engine, shop.scheduler, Timeouts(60, 1, 3600), hooks)
    order = told.place(shop.new()).order
    deadline = order.created_at + timedelta(seconds=60)
    told.extend(shop.client, order.id, expires_at=deadline, versions=None)
    assert all(delay_ms <= 55_000 for _, delay_ms in shop.scheduler.scheduled)


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
            return all(row.status == "cancelled" for row in rows)

        wait_until(all_ended, "every order to be cancelled")
    finally:
        worker.stop()
    late = [
        (row.ended_at - row.expires_at) / timedelta(milliseconds=1)
        for row in deadlines(api).values()
    ]
    assert min(late) >= 0, "none before the deadline that is in force"
    assert max(late) <= bound(1000)
