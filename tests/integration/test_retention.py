"""Old orders are deleted with all that belongs to them, once nothing is left to do about them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from devtools.valkey import Valkey
from orders.retention import repository
from orders.retention.flow import Pruner
from orders.sql.expressions import Instant
from orders.sql.ids import first_id_from
from orders.sql.statements import FIRST
from orders.sql.tables import metadata, order_events, orders, provider_messages
from tests.conftest import Api, serving
from tests.integration.test_api_routes import content
from tests.integration.test_providers import Provider
from worker import Retry, Task

DAYS = 30
PERSON = "ada@example.org"
#: What has an order's id, or belongs to what has.
OF_ORDERS = (
    *("orders", "unpaid_orders", "order_items", "order_events", "payments", "payment_entries"),
    *("payment_attempts", "webhook_deliveries"),
)


class Attic:
    """A service that keeps orders for a month, in a process whose clock says so, too."""

    def __init__(self, api: Api) -> None:
        self.api, self.services = api, api.services
        self.bank = Provider(api)

    def place(self, **body: Any) -> str:
        return str(content(self.api.place(**body))["id"])

    def paid(self, reference: str = "tx-1", **body: Any) -> str:
        order_id = self.place(**body)
        assert content(self.bank.paid(order_id, reference))["outcome"] == "applied"
        return order_id

    def cancelled(self, **body: Any) -> str:
        order_id = self.place(**body)
        content(self.api.send("POST", f"/v1/orders/{order_id}/cancel"))
        return order_id

    def age(self, days: float = DAYS + 1) -> None:
        """Have everything have happened so long ago. The id of an order is its age."""
        earlier = sa.literal(timedelta(days=days), sa.Interval)
        with self.services.engine.begin() as connection:
            connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
            for table in (metadata.tables[name] for name in OF_ORDERS):
                moved = {each: each - earlier for each in table.c if each.type is Instant}
                if moved:
                    connection.execute(sa.update(table).values(moved))
            for order_id, at in connection.execute(sa.select(orders.c.id, orders.c.created_at)):
                old = first_id_from(at)[:13] + order_id[13:]
                for table in (*(metadata.tables[name] for name in OF_ORDERS), provider_messages):
                    column = orders.c.id if table is orders else table.c.get("order_id")
                    if column is not None:
                        changed = sa.update(table).where(column == order_id)
                        connection.execute(changed.values({column: old}))

    def ids(self) -> list[str]:
        with self.services.engine.connect() as connection:
            return [*connection.execute(sa.select(orders.c.id).order_by(orders.c.id)).scalars()]

    def delete(self, not_after: datetime | None = None) -> int:
        moment = not_after or datetime.now(UTC)
        return self.services.retention.delete(FIRST.id, 100, moment).orders

    def rows(self) -> dict[str, int]:
        """How many rows there are of orders and what belongs to them, by table."""
        with self.services.engine.connect() as connection:
            counts = {
                name: len(connection.execute(sa.select(metadata.tables[name])).all())
                for name in OF_ORDERS
            }
        return {name: count for name, count in counts.items() if count}


@pytest.fixture
def attic(
    migrated_url: str,
    valkey: Valkey,
    redis_client: object,  # noqa: ARG001  empties it
) -> Iterator[Attic]:
    with serving(migrated_url, valkey.url, retention_days=DAYS) as api:
        yield Attic(api)


# -- which orders go -----------------------------------------------------------------------


def unpaid(attic: Attic) -> None:
    attic.place()


def refund_due(attic: Attic) -> None:
    attic.bank.paid(attic.cancelled(), "late")


def disputed(attic: Attic) -> None:
    attic.paid()
    attic.bank.refunded("tx-1", "dp-0", "dispute.opened")
    attic.bank.refunded("tx-1", "dp-0", "dispute.won")
    attic.bank.refunded("tx-1", "dp-1", "dispute.opened")


def paying(attic: Attic) -> None:
    order_id = attic.place()
    attic.bank.report("payment.pending", order_id=order_id, reference="tx-0")
    attic.api.send("POST", f"/v1/orders/{order_id}/cancel")


def waiting_for_the_order(attic: Attic) -> None:
    content(attic.bank.paid(attic.paid("tx-1"), "tx-1", amount_minor=1, mail=PERSON))


def waiting_for_the_payment(attic: Attic) -> None:
    attic.paid("tx-1")
    content(attic.bank.refunded("tx-1", amount_minor=251, mail=PERSON))


KEPT: list[Callable[[Attic], None]] = [
    *(unpaid, refund_due, disputed, paying, waiting_for_the_order, waiting_for_the_payment)
]


def refunded(attic: Attic) -> None:
    refund_due(attic)
    attic.bank.refunded("late")


def dispute_over(attic: Attic) -> None:
    disputed(attic)
    attic.bank.refunded("tx-1", "dp-1", "dispute.lost")


def message_settled(attic: Attic) -> None:
    waiting_for_the_payment(attic)
    [message] = attic.services.providers.messages("waiting", page_size=9)
    attic.services.providers.dismiss(message.id)


GONE: list[Callable[[Attic], Any]] = [
    *(Attic.paid, Attic.cancelled, refunded, dispute_over, message_settled)
]


@pytest.mark.parametrize("make", KEPT)
def test_an_order_with_something_left_to_do_is_kept(
    attic: Attic, make: Callable[[Attic], None]
) -> None:
    make(attic)
    attic.age()
    before = attic.rows()
    assert attic.delete() == 0
    # Nor if that came about just before it was locked.
    values = {"kept_ms": 0, "not_after": datetime.now(UTC)}
    with attic.services.engine.begin() as connection:
        assert repository.delete(connection, for_ids=attic.ids(), **values) == []
    assert attic.rows() == before


@pytest.mark.parametrize("make", GONE)
def test_an_old_order_goes_with_all_that_belongs_to_it(
    attic: Attic, make: Callable[[Attic], Any]
) -> None:
    attic.api.send("POST", "/v1/webhooks", {"url": "https://a.example"})
    make(attic)
    attic.age()
    assert attic.delete() == 1
    assert attic.rows() == {}
    assert attic.delete() == 0


def test_only_what_is_old_by_every_clock_is_deleted(attic: Attic) -> None:
    attic.paid()
    attic.age(DAYS - 1)
    assert attic.delete() == 0, "it is too young"
    attic.age(2)
    assert attic.delete(datetime.now(UTC) - timedelta(days=2)) == 0, "by another clock"
    attic.age(DAYS + 1)
    assert attic.delete() == 1


def described(attic: Attic, order_id: str) -> None:
    headers = {"If-Match": "*"}
    attic.api.send("PATCH", f"/v1/orders/{order_id}", {"metadata": {"a": 1}}, headers=headers)


def refunded_late(attic: Attic, _: str) -> None:
    attic.bank.refunded("tx-1")


def failed(attic: Attic, order_id: str) -> None:
    attic.bank.report("payment.failed", order_id=order_id, reference="tx-0")


@pytest.mark.parametrize("change", [described, refunded_late, failed])
def test_what_was_changed_lately_is_not_old(
    attic: Attic, change: Callable[[Attic, str], None]
) -> None:
    attic.paid()
    attic.age()
    change(attic, attic.ids()[0])
    assert attic.delete() == 0
    attic.age(DAYS + 1)
    assert attic.delete() == 1


def test_an_order_that_somebody_works_on_is_skipped(attic: Attic) -> None:
    attic.paid("tx-1")
    attic.paid("tx-2")
    attic.age()
    first, _ = attic.ids()
    locks = (
        sa.select(orders).where(orders.c.id == first).with_for_update(key_share=True),
        sa.select(order_events).where(order_events.c.order_id == first).with_for_update(),
    )
    for lock in locks:
        with attic.services.engine.begin() as connection:
            connection.execute(lock)
            assert attic.delete() == (lock is locks[0])
    assert attic.delete() == 1
    assert attic.ids() == []


#: What shows an order, or what belongs to it.
READ = [
    *(
        "/v1/orders",
        "/v1/orders?status=paid",
        "/v1/events",
        "/v1/orders/{}",
        "/v1/orders/{}/events",
    ),
    *("/v1/orders/{}/payments", "/v1/orders/{}/payment-attempts"),
]


@pytest.mark.parametrize("path", READ)
def test_who_reads_meanwhile_gets_an_order_as_it_was_or_none(attic: Attic, path: str) -> None:
    """Whichever of a request's statements it is deleted after."""
    for statements in count(1):
        order_id = attic.place()
        failed(attic, order_id)
        attic.bank.paid(order_id)
        attic.age()
        url = path.format(attic.ids()[0])
        whole = content(attic.api.send("GET", url))
        with deleting(attic, after=statements) as deleted:
            answer = attic.api.send("GET", url)
        if not deleted:
            return
        assert deleted == [1]
        if answer.status_code != 404:
            body = json.loads(answer.get_data())
            assert body == whole or (path[:11] != "/v1/orders/" and body["data"] == [])


@contextmanager
def deleting(attic: Attic, after: int) -> Iterator[list[int]]:
    """Has all orders deleted after so many statements of a request, if it has as many. Yields what was deleted."""
    engine, deleted, seen = attic.services.engine, list[int](), count(1)

    def look(*_: Any) -> None:
        if next(seen) == after:
            deleted.append(attic.delete())

    sa.event.listen(engine, "after_cursor_execute", look)
    yield deleted
    sa.event.remove(engine, "after_cursor_execute", look)


# -- the flow ------------------------------------------------------------------------------


def test_a_run_goes_on_until_nothing_old_is_left(attic: Attic) -> None:
    """An order that has to stay is passed over, and looked at again by the next run."""
    refund_due(attic)
    for number in range(2):
        attic.paid(f"tx-{number}")
    attic.age()
    slow = replace(
        attic.services, settings=replace(attic.services.settings, retention_per_second=2)
    )
    run = Pruner(slow)
    now_ms = int(1000 * datetime.now(UTC).timestamp())
    again = run(Task("noon", due_at_ms=now_ms))
    assert isinstance(again, Retry)
    assert 0 < again.delay_ms <= 1000
    assert run(Task("noon", due_at_ms=now_ms, attempt=2)) is None
    assert len(attic.ids()) == 1
    attic.bank.refunded("late")
    attic.age()
    assert run(Task("one", due_at_ms=now_ms)) is None
    assert attic.ids() == []


def test_a_run_ends_before_the_next_but_one_begins(attic: Attic) -> None:
    for number in range(2):
        attic.paid(f"tx-{number}")
    attic.age()
    slow = replace(
        attic.services, settings=replace(attic.services.settings, retention_per_second=1)
    )
    task = Task("noon", due_at_ms=int(1000 * datetime.now(UTC).timestamp()), attempt=3600)
    assert Pruner(slow)(task) is None
    assert len(attic.ids()) == 1


def test_orders_are_kept_unless_days_are_set(api: Api) -> None:
    attic = Attic(api)
    attic.paid()
    attic.age(36_500)
    assert attic.delete() == 0
