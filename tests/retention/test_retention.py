"""Old orders are deleted with all that belongs to them, once nothing is left to do about them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from werkzeug.test import TestResponse

from devtools.valkey import Valkey
from orders.config import Settings
from orders.db.statements import FIRST
from orders.db.tables import order_events, orders
from orders.errors import StorageUnavailable
from orders.features.providers.service import Providers  # <providers/>
from orders.features.retention.flow import Pruner
from orders.features.retention.service import Retention
from tests.kit.api import Api, content, serving
from tests.kit.races import waiting
from tests.retention.attic import DAYS, Attic
from worker import Retry, Task

PERSON = "ada@example.org"


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
    attic.api.pay(attic.cancelled(), "late")


# <providers>
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
    content(attic.bank.refunded("tx-1", currency="USD", mail=PERSON))


def waiting_since_before_the_payment(attic: Attic) -> None:
    attic.bank.refunded("tx-1", mail=PERSON)
    attic.paid("tx-1")


# </providers>
KEPT: list[Callable[[Attic], None]] = [
    *(unpaid, refund_due),
    # <providers>
    *(disputed, paying),
    *(waiting_for_the_order, waiting_for_the_payment, waiting_since_before_the_payment),
    # </providers>
]


def refunded(attic: Attic) -> None:
    refund_due(attic)
    attic.refund("late")


# <providers>
def dispute_over(attic: Attic) -> None:
    disputed(attic)
    attic.bank.refunded("tx-1", "dp-1", "dispute.lost")


def message_settled(attic: Attic) -> None:
    waiting_for_the_payment(attic)
    [message] = attic.services[Providers].messages("waiting", page_size=9)
    attic.services[Providers].dismiss(message.id)


# </providers>
GONE: list[Callable[[Attic], Any]] = [
    *(Attic.paid, Attic.cancelled, refunded),
    *(dispute_over, message_settled),  # <providers/>
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
    with attic.services.engine.begin() as connection:
        sql = connection
        gone = attic.services[Retention].delete_locked(sql, attic.ids(), datetime.now(UTC))
    assert gone == []
    assert attic.rows() == before


@pytest.mark.parametrize("make", GONE)
def test_an_old_order_goes_with_all_that_belongs_to_it(
    attic: Attic, make: Callable[[Attic], Any]
) -> None:
    attic.api.send("POST", "/v1/webhooks", {"url": "https://a.example"})  # <webhooks/>
    make(attic)
    attic.age()
    assert attic.delete() == 1
    assert attic.rows() == {}
    assert attic.services[Providers].messages("settled", page_size=9) == []  # <providers/>
    assert attic.delete() == 0


def test_only_what_is_old_by_every_clock_is_deleted(attic: Attic) -> None:
    attic.paid()
    attic.age(DAYS - 1)
    assert attic.delete() == 0, "it is too young"
    attic.age(2)
    assert attic.delete(datetime.now(UTC) - timedelta(days=2)) == 0, "by another clock"
    attic.age(DAYS + 1)
    assert attic.delete() == 1


def described(attic: Attic, order_id: str) -> TestResponse:
    headers = {"If-Match": "*"}
    return attic.api.send(
        "PATCH", f"/v1/orders/{order_id}", {"metadata": {"a": 1}}, headers=headers
    )


def refunded_late(attic: Attic, _: str) -> None:
    attic.refund("tx-1")


# <providers>
def refund_failed(attic: Attic, _: str) -> None:
    attic.bank.refunded("tx-1", kind="refund.failed")


def failed(attic: Attic, order_id: str) -> TestResponse:
    return attic.bank.report("payment.failed", order_id=order_id, reference="tx-0")


# </providers>
CHANGES: list[Callable[[Attic, str], object]] = [
    *(described, refunded_late),
    *(refund_failed, failed),  # <providers/>
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_lately_is_not_old(
    attic: Attic, change: Callable[[Attic, str], object]
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
    *("/v1/orders", "/v1/orders?status=paid"),
    *("/v1/orders/{}", "/v1/orders/{}/events", "/v1/orders/{}/payments"),
    "/v1/events",  # <feed/>
    "/v1/orders/{}/payment-attempts",  # <providers/>
]


@pytest.mark.parametrize("path", READ)
def test_who_reads_meanwhile_gets_an_order_as_it_was_or_none(attic: Attic, path: str) -> None:
    """Whichever of a request's statements it is deleted after."""
    for statements in count(1):
        order_id = attic.place()
        failed(attic, order_id)  # <providers/>
        attic.api.pay(order_id)
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


#: What changes an order that is paid, or asks for what was done to it before.
WRITES: dict[str, Callable[[Attic, str], Any]] = {
    "place": lambda attic, _: attic.api.place("key"),
    "pay": lambda attic, order_id: attic.api.pay(order_id, "tx-1"),
    "pay twice": lambda attic, order_id: attic.api.pay(order_id, "tx-2"),
    "cancel": lambda attic, order_id: attic.api.send("POST", f"/v1/orders/{order_id}/cancel"),
    "describe": described,
    # <providers>
    "refund": lambda attic, _: attic.bank.refunded("tx-1", "re-1", amount_minor=250),
    "refund failed": lambda attic, _: attic.bank.refunded("tx-1", "re-2", "refund.failed"),
    "pending": lambda attic, order_id: attic.bank.report(
        "payment.pending", order_id=order_id, reference="tx-0"
    ),
    "failed": failed,
    # </providers>
}


@pytest.mark.parametrize("write", WRITES)
def test_who_writes_meanwhile_is_told_as_before_or_that_it_is_gone(
    attic: Attic, write: str
) -> None:
    told = set()
    for statements in count(0):
        order_id = str(content(attic.api.place("key"))["id"])
        content(attic.api.pay(order_id, "tx-1"))
        # <providers>
        content(attic.bank.refunded("tx-1", "re-1"))
        failed(attic, order_id)
        # </providers>
        attic.age()
        with deleting(attic, after=statements) as deleted:
            answer = WRITES[write](attic, attic.ids()[0])
        told.add((answer.status_code, answer.json.get("code")))
        if statements and not deleted:
            break
        if deleted == [1]:
            assert not attic.rows() or write == "place"
        attic.empty()
    gone = {(404, "order_not_found"), (404, "payment_not_found")}
    assert len(told - gone) == 1, told


# <providers>
@pytest.mark.parametrize("write", ["pending", "failed"])
def test_no_attempt_outlives_an_order_that_is_being_deleted(attic: Attic, write: str) -> None:
    attic.paid()
    attic.age()
    [order_id] = attic.ids()
    services: Any = attic.services
    with waiting(services, lambda: WRITES[write](attic, order_id)) as (other, found):
        Retention(other, lambda *_: None, DAYS).delete(FIRST.id, 100, datetime.now(UTC))
    assert found[0].status_code == 404
    assert attic.rows() == {}


def test_a_message_that_comes_meanwhile_and_waits_stays(attic: Attic) -> None:
    attic.paid("tx-1")
    attic.age()

    def report(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("WITH gone"):
            content(attic.bank.report("payment.odd", reference="tx-1"))

    sa.event.listen(attic.services.engine, "before_cursor_execute", report)
    assert attic.delete() == 1
    assert len(attic.services[Providers].messages("waiting", page_size=9)) == 1


# </providers>
@contextmanager
def deleting(attic: Attic, after: int) -> Iterator[list[int]]:
    """Has all orders deleted after so many statements of a request, if it has as many. Yields what was deleted."""
    engine, deleted, seen = attic.services.engine, list[int](), count(1)

    def look(*_: Any) -> None:
        if next(seen) == after:
            deleted.append(0)
            with suppress(StorageUnavailable):  # which waits for what the request has locked
                deleted[0] = attic.delete()

    sa.event.listen(engine, "after_cursor_execute", look)
    yield deleted
    sa.event.remove(engine, "after_cursor_execute", look)


# -- the flow ------------------------------------------------------------------------------


def test_a_run_goes_on_until_nothing_old_is_left(attic: Attic) -> None:
    """Or the next run begins. An order that has to stay is passed over, and looked at again by the next run."""
    refund_due(attic)
    for number in range(3):
        attic.paid(f"tx-{number}")
    attic.age()
    settings = Settings.of(database_url="", redis_url="", retention_per_second=2)
    slow = replace(attic.services, settings=settings)
    run = Pruner(slow)
    now_ms = int(1000 * datetime.now(UTC).timestamp())
    assert run(Task("noon", due_at_ms=now_ms, attempt=3600)) is None
    assert len(attic.ids()) == 3
    again = run(Task("one", due_at_ms=now_ms))
    assert isinstance(again, Retry)
    assert 0 < again.delay_ms <= 1000
    assert run(Task("one", due_at_ms=now_ms, attempt=2)) is None
    assert len(attic.ids()) == 1
    attic.refund("late")
    attic.age()
    assert run(Task("two", due_at_ms=now_ms)) is None
    assert attic.ids() == []


def test_orders_are_kept_unless_days_are_set(api: Api) -> None:
    attic = Attic(api)
    attic.paid()
    attic.age(36_500)
    assert attic.delete() == 0
