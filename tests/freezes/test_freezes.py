"""While a freeze holds, none of its orders is cancelled; afterwards each gets its time back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
import sqlalchemy as sa
from structlog.testing import capture_logs

from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.ids import new_id
from orders.db.tables import stops, unpaid_orders
from orders.errors import ClientNotFound
from orders.features.freezes.domain import Freeze, FreezeState
from orders.features.freezes.errors import FreezeEnded, FreezeNotFound, FreezeOutOfRange
from orders.features.freezes.flow import thaw_flow
from orders.features.freezes.service import Freezes
from orders.features.freezes.tables import freezes
from orders.http.schemas.types import rfc3339
from orders.order.domain import Order
from orders.timeouts import timeout_flow
from orders.wiring import Services, bootstrap
from tests.freezes.giving import give_back
from tests.kit.expiring import expire_now, swept
from tests.kit.moments import later, now
from tests.kit.shop import Shop
from worker import NotDue, Task

NOWHERE = "redis://127.0.0.1:1"
MINUTE_MS = 60_000


def freeze(shop: Shop, client: str | None = None, minutes: float = 60, **more: Any) -> Freeze:
    opened = Freezes(shop.engine).open(
        client, reason="a bad deploy", by="command line", seconds=60 * minutes, **more
    )
    return opened.freeze


def end(shop: Shop, *which: Freeze, ms_ago: int = 0) -> None:
    """Have freezes end so long ago, and begin an hour before that."""
    with shop.engine.begin() as connection:
        for each in which:
            ends_at = {"ends_at": later(now(), "ago"), "opened_at": later(now(), "before")}
            moved = sa.update(freezes).where(freezes.c.id == each.id).values(ends_at)
            connection.execute(moved, {"ago": -ms_ago, "before": -ms_ago - 60 * MINUTE_MS})
            until = sa.select(freezes.c.ends_at).where(freezes.c.id == stops.c.id)
            connection.execute(sa.update(stops).values(until=until.scalar_subquery()))


def give_all_back(shop: Shop, freeze: Freeze) -> dict[str, float]:
    extended: dict[str, float] = {}
    while batch := give_back(shop, freeze.id)[0]:
        extended |= batch
    return extended


def overdue(shop: Shop, count: int = 1, client: str = "") -> list[Order]:
    placed = [shop.place(client) for _ in range(count)]
    shop.expire_in(-1, *placed)
    return placed


@contextmanager
def wired(shop: Shop, redis_url: str = NOWHERE) -> Iterator[Services]:
    """What a worker runs with."""
    url = shop.engine.url.render_as_string(hide_password=False)
    services = bootstrap(Settings.of(database_url=url, redis_url=redis_url))
    yield replace(services, engine=shop.engine)
    services.close()


# -- while it holds ------------------------------------------------------------------------


@pytest.mark.parametrize("client", [None, "customer"])
def test_none_of_its_orders_is_cancelled(shop: Shop, client: str | None) -> None:
    [order] = overdue(shop)
    freeze(shop, client, minutes=10)
    left = expire_now(shop.service, [order.id])
    assert 9 * MINUTE_MS < left[order.id] <= 10 * MINUTE_MS, "when to look again"
    assert [*swept(shop.engine, None, 3600, 10)] == [], "the sweep leaves it alone"
    assert shop.statuses() == {order.id: "unpaid"}
    shop.check(tea=100)


def test_another_clients_order_is_cancelled(shop: Shop) -> None:
    [order] = overdue(shop)
    freeze(shop, "other")
    [[due]] = swept(shop.engine, None, 0, 10)
    assert due.id == order.id
    assert expire_now(shop.service, [order.id]) == {}
    assert shop.statuses() == {order.id: "cancelled"}


def test_a_batch_cancels_what_is_not_frozen(shop: Shop) -> None:
    frozen, [free], not_due = overdue(shop, 2), overdue(shop, client=shop.other), shop.place()
    freeze(shop, "customer")
    left = expire_now(shop.service, [each.id for each in (*frozen, free, not_due)])
    assert {*left} == {each.id for each in (*frozen, not_due)}
    assert left[not_due.id] <= 30 * MINUTE_MS, "its own deadline, not the freeze's end"
    shop.check(tea=100)


def test_everything_else_goes_on(shop: Shop) -> None:
    freeze(shop)
    paid, cancelled, extended = overdue(shop, 3)
    placed = shop.place()
    assert shop.pay(paid).payment.status == "applied"
    shop.service.cancel(shop.client, cancelled.id)
    deadline = extended.created_at + timedelta(hours=1)
    shop.service.extend(shop.client, extended.id, expires_at=deadline, versions=None)
    assert shop.statuses() == {
        paid.id: "paid",
        cancelled.id: "cancelled",
        extended.id: "unpaid",
        placed.id: "unpaid",
    }
    shop.check(tea=100)


# -- afterwards ----------------------------------------------------------------------------


def test_nobody_is_cancelled_before_all_is_given_back(shop: Shop) -> None:
    [order] = overdue(shop)
    held = freeze(shop)
    end(shop, held, ms_ago=10 * MINUTE_MS)
    assert expire_now(shop.service, [order.id]) == {order.id: 1000}
    assert [*swept(shop.engine, None, 0, 10)] == []
    assert Freezes(shop.engine).get(held.id).state is FreezeState.THAWING
    give_all_back(shop, held)
    assert expire_now(shop.service, [order.id]) == {}, "its five minutes were over, too"


def test_each_deadline_is_given_back_exactly(shop: Shop) -> None:
    """Those that passed in the freeze, or less than five minutes after it, and no others."""
    before, during, soon, in_time = placed = [shop.place() for _ in range(4)]
    held = freeze(shop)
    end(shop, held)
    until = Freezes(shop.engine).get(held.id).deadline
    moments = [-2 * 3_600_000, -1, 5 * MINUTE_MS - 1000, 5 * MINUTE_MS + 60_000]
    for order, ms in zip(placed, moments, strict=True):
        shop.expire_in(ms, order)
    was = {order.id: shop.service.order(shop.client, order.id) for order in placed}
    extended = give_all_back(shop, held)
    assert {*extended} == {before.id, during.id, soon.id}
    for order in (before, during, soon):
        after = shop.service.order(shop.client, order.id)
        assert (after.expires_at, after.version) == (until, 2)
        [_, event] = shop.service.events(shop.client, order.id, after_id=0, page_size=9)
        assert (event.type, event.data) == (
            "order.extended",
            {
                "previous_expires_at": rfc3339(was[order.id].expires_at),
                "expires_at": rfc3339(until),
                "reason": "freeze",
                "freeze_id": held.id,
                "note": "a bad deploy",
                "by": "command line",
            },
        )
        assert (order.id, extended[order.id]) in shop.scheduler.scheduled
    assert shop.service.order(shop.client, in_time.id) == was[in_time.id]
    over = Freezes(shop.engine).get(held.id)
    assert (over.state, over.given_back) == (FreezeState.OVER, 3)
    assert give_back(shop, held.id) == ({}, None)


def test_who_ordered_after_a_freeze_gets_nothing(shop: Shop) -> None:
    held = freeze(shop)
    end(shop, held, ms_ago=1)
    order = shop.place()
    shop.expire_in(MINUTE_MS, order)
    assert give_all_back(shop, held) == {}
    assert shop.service.order(shop.client, order.id).version == 1


def test_the_later_of_two_freezes_counts(shop: Shop) -> None:
    [order] = overdue(shop)
    first, second = freeze(shop), freeze(shop, "customer", give_back_seconds=600)
    end(shop, first)
    give_all_back(shop, first)
    left = expire_now(shop.service, [order.id])
    assert 4 * MINUTE_MS < left[order.id] <= 5 * MINUTE_MS
    shop.expire_in(-1, order)
    left = expire_now(shop.service, [order.id])
    assert left[order.id] > 50 * MINUTE_MS, "the second still holds"
    end(shop, second)
    give_all_back(shop, second)
    after = shop.service.order(shop.client, order.id)
    assert after.expires_at == Freezes(shop.engine).get(second.id).deadline
    # And in the other order, the shorter one takes nothing away.
    third = freeze(shop, give_back_seconds=0)
    end(shop, third)
    assert give_all_back(shop, third) == {}
    assert shop.service.order(shop.client, order.id) == after


def test_giving_back_can_be_interrupted_anywhere(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.features.freezes.flow.BATCH_SIZE", 2)
    orders = overdue(shop, 5)
    held = freeze(shop)
    end(shop, held)
    sizes = []
    for _ in range(4):
        extended, freeze_row = give_back(shop, held.id)
        sizes.append((len(extended), freeze_row is not None and freeze_row.kind))
        left = expire_now(shop.service, [each.id for each in orders])
        assert len(left) == 5, "nobody is cancelled in between"
    assert sizes == [(2, "left"), (2, "left"), (1, "left"), (0, "over")]
    assert Freezes(shop.engine).get(held.id).given_back == 5


def test_a_locked_order_counts_as_left(shop: Shop) -> None:
    paying, other = overdue(shop, 2)
    held = freeze(shop)
    end(shop, held)
    row = sa.select(unpaid_orders).where(unpaid_orders.c.order_id == paying.id)
    with shop.engine.begin() as payer:
        payer.execute(row.with_for_update())
        for expected in ([other.id], []):
            extended, left = give_back(shop, held.id)
            assert [*extended] == expected
            assert left is not None
            assert (left.kind, left.ms <= 0) == ("left", True), "to look again at once"
    assert [*give_all_back(shop, held)] == [paying.id]


def test_two_workers_give_back_once(shop: Shop) -> None:
    [order] = overdue(shop)
    held = freeze(shop)
    end(shop, held)
    row = sa.select(freezes).where(freezes.c.id == held.id)
    with shop.engine.begin() as other:
        other.execute(row.with_for_update())
        assert give_back(shop, held.id)[0] == {}
    assert [*give_all_back(shop, held)] == [order.id]


# -- by the worker -------------------------------------------------------------------------


def test_the_worker_gives_back_without_redis(shop: Shop) -> None:
    [order] = overdue(shop)
    held = freeze(shop)
    with wired(shop) as services:
        flow, expiring = thaw_flow(services), timeout_flow(services)
        assert flow.without_redis == expiring.without_redis == "handle"
        assert flow.sweep is not None
        assert [*flow.sweep(None, 0)] == [[]]
        [outcome] = (flow.handler([Task(held.id)]) or {}).values()
        assert isinstance(outcome, NotDue), "it still lasts"
        end(shop, held)
        [[due]] = (page for page in flow.sweep(None, 0) if page)
        assert due.id == held.id
        assert flow.handler([Task(due.id)]) == {}
        assert [*flow.sweep(None, 0)] == [[]]
    assert shop.service.order(shop.client, order.id).version == 2


def test_a_flushed_redis_changes_nothing(
    shop: Shop, valkey: Valkey, redis_client: redis.Redis
) -> None:
    [order] = overdue(shop)
    freeze(shop)
    with wired(shop, valkey.url) as services:
        for _ in range(2):
            [outcome] = (timeout_flow(services).handler([Task(order.id)]) or {}).values()
            assert isinstance(outcome, NotDue)
            redis_client.flushall()
    assert shop.statuses() == {order.id: "unpaid"}


# -- opening, prolonging and ending --------------------------------------------------------


def test_a_freeze_is_opened_prolonged_and_thawed(shop: Shop) -> None:
    overdue(shop, 3)
    service = Freezes(shop.engine)
    with capture_logs() as lines:
        held = freeze(shop, "customer", minutes=10)
    [line] = lines
    assert (line["event"], line["scope"], line["reason"], line["opened_by"]) == (
        *("freeze opened", "client customer", held.reason, held.opened_by),
    )
    assert (held.state, held.give_back_seconds) == (FreezeState.OPEN, 300)
    assert held.ends_at == held.opened_at + timedelta(minutes=10)
    assert service.count("customer", held.deadline) == 3
    assert service.count(None, held.deadline, most=2) == 2
    assert service.count("other", held.deadline) == 0
    longer = service.prolong(held.id, by="key k", seconds=7200)
    assert longer.ends_at > held.ends_at + timedelta(minutes=100)
    assert service.in_force() == [longer]
    with capture_logs() as lines:
        thawed = service.thaw(held.id, by="key k")
    assert [(line["event"], line["by"]) for line in lines] == [("freeze thawed", "key k")]
    assert (thawed.state, thawed.thawed_by) == (FreezeState.THAWING, "key k")
    assert service.thaw(held.id, by="somebody else") == thawed
    with pytest.raises(FreezeEnded):
        service.prolong(held.id, by="key k", seconds=60)
    give_all_back(shop, held)
    assert service.in_force() == []
    [over] = service.page(page_size=10)
    assert (over.state, over.given_back) == (FreezeState.OVER, 3)


def test_a_freeze_that_makes_no_sense_is_refused(shop: Shop) -> None:
    service = Freezes(shop.engine)
    before = shop.tables()
    for error, client, seconds, give_back_seconds in (
        (FreezeOutOfRange, None, 0, 300),
        (FreezeOutOfRange, None, 86_401, 300),
        (FreezeOutOfRange, None, 60, -1),
        (ClientNotFound, "nobody", 60, 300),
    ):
        with pytest.raises(error):
            service.open(
                client, reason="r", by="b", seconds=seconds, give_back_seconds=give_back_seconds
            )
    for act in (service.get, lambda id_: service.thaw(id_, by="b")):
        with pytest.raises(FreezeNotFound):
            act(new_id())
    assert shop.tables() == before
