"""What the order service counts, and what a scrape reads from the database."""

from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry, generate_latest

from orders.db.database import reading
from orders.db.ids import new_id
from orders.db.tables import payments
from orders.errors import AlreadyPaid, OutOfStock
from orders.features.metrics.api import Figures
from orders.features.metrics.counters import count
from orders.features.metrics.figures import figures
from orders.features.providers.domain import MOST_WAITING  # <providers/>
from orders.features.providers.service import Providers  # <providers/>
from orders.order.reads import Reads
from tests.kit.expiring import expire_now
from tests.kit.shop import Shop
from tests.providers.provider import fill_inbox  # <providers/>

Counted = list[tuple[str, str, int]]


@pytest.fixture
def counted(shop: Shop) -> Counted:
    """What the service has told its observer."""
    told: Counted = []

    def observe(event: str, reason: str = "", count: int = 1, /) -> None:
        told.append((event, reason, count))

    shop.service._hooks.observers.append(observe)
    return told


def test_an_order_counts_once_however_often_it_is_sent(shop: Shop, counted: Counted) -> None:
    shop.place(key="k")
    shop.place(key="k")
    with pytest.raises(OutOfStock):
        shop.place(tea=10_000)
    assert counted == [("order.created", "", 1)]


def test_an_order_that_costs_nothing_counts_as_paid(shop: Shop, counted: Counted) -> None:
    shop.stock(price_minor=0)
    shop.place()
    assert counted == [("order.created", "", 1), ("order.paid", "", 1)]


def test_each_payment_counts_once_by_what_became_of_it(shop: Shop, counted: Counted) -> None:
    order = shop.place()
    counted.clear()
    for _ in range(2):
        shop.pay(order, "first")
    assert counted == [("payment.applied", "", 1), ("order.paid", "", 1)]
    counted.clear()
    twice = shop.pay(order, "second").payment
    for _ in range(2):
        shop.service.refund(shop.client, twice.id, "back")
    assert counted == [("payment.refund_due", "already_paid", 1), ("payment.refunded", "", 1)]


def test_a_cancellation_counts_once_with_its_reason(shop: Shop, counted: Counted) -> None:
    requested, paid, *expired = (shop.place() for _ in range(5))
    counted.clear()
    for _ in range(2):
        shop.service.cancel(shop.client, requested.id)
    assert counted == [("order.cancelled", "requested", 1)]
    shop.pay(paid)
    with pytest.raises(AlreadyPaid):
        shop.service.cancel(shop.client, paid.id)
    shop.expire_in(-1000, *expired[:2], requested, paid)
    counted.clear()
    batch = [order.id for order in (requested, paid, *expired)]
    assert {*expire_now(shop.service, [*batch, new_id()])} == {expired[2].id}
    expire_now(shop.service, batch)
    assert counted == [("order.cancelled", "expired", 2), ("order.cancelled", "expired", 0)]


# -- what a scrape reads -------------------------------------------------------------------


def oldest_overdue_ms(shop: Shop) -> float:
    with reading(shop.engine) as connection:
        return 1000 * next(figures(connection)).values[()]


def refunds_due(shop: Shop, most: int = 10) -> dict[str, Any]:
    return {due.currency: due for due in Reads(shop.engine).refunds_due(most)}


def test_an_event_without_a_counter_is_not_counted() -> None:
    def counted() -> list[bytes]:
        return [line for line in generate_latest().splitlines() if line.startswith(b"orders_")]

    before = counted()
    count("order.reopened", "by hand")
    assert counted() == before


def test_only_an_unpaid_order_past_its_deadline_is_overdue(shop: Shop) -> None:
    assert oldest_overdue_ms(shop) == 0
    paid, newer, older, waiting = (shop.place() for _ in range(4))
    shop.pay(paid)
    assert oldest_overdue_ms(shop) == 0
    shop.expire_in(-3_600_000, paid)
    shop.expire_in(-60_000, newer)
    shop.expire_in(-120_000, older)
    assert 120_000 <= oldest_overdue_ms(shop) < 3_000_000
    expire_now(shop.service, [newer.id, older.id, waiting.id])
    assert oldest_overdue_ms(shop) == 0


def test_what_is_due_back_is_summed_by_currency_over_all_clients(shop: Shop) -> None:
    order = shop.place()
    shop.pay(order)
    assert refunds_due(shop) == {}
    for n in range(3):
        shop.pay(order, f"again {n}", amount_minor=100 + n)
    due = shop.service.payments(shop.client, status="refund_due", page_size=10)
    add_refunds_due(shop, shop.other, "USD", 7, 8)
    found = refunds_due(shop)
    assert found["EUR"][:3] == ("EUR", 3, 303)
    assert found["USD"][:3] == ("USD", 2, 15)
    assert found["EUR"].oldest_ms >= 0
    shop.service.refund(shop.client, due[0].id, "back")
    assert refunds_due(shop)["EUR"].payments == 2


def test_the_sum_of_what_is_due_back_is_bounded(shop: Shop) -> None:
    add_refunds_due(shop, shop.client, "EUR", *[1] * 30)
    add_refunds_due(shop, shop.other, "EUR", *[1] * 30)
    assert refunds_due(shop, most=20)["EUR"].payments == 20
    assert refunds_due(shop, most=100)["EUR"].payments == 60


def add_refunds_due(shop: Shop, client: str, currency: str, *amounts: int) -> None:
    order = shop.place(client)
    rows = [
        {
            "id": new_id(),
            "order_id": order.id,
            "client_id": client,
            "provider": "bank",
            "reference": new_id(),
            "amount_minor": amount,
            "currency": currency,
            "status": "refund_due",
            "reason": "already_paid",
            "created_at": order.created_at,
        }
        for amount in amounts
    ]
    with shop.engine.begin() as connection:
        connection.execute(sa.insert(payments), rows)


@pytest.fixture
def scraped(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> tuple[CollectorRegistry, list[Any]]:
    """A registry with the figures, and the statements that the database is sent."""
    sent: list[Any] = []
    sa.event.listen(shop.engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
    registry = CollectorRegistry()
    monkeypatch.setattr("orders.features.metrics.api.FIGURES_SECONDS", 3600.0)
    registry.register(Figures(shop.engine))
    return registry, sent


# <providers>
def test_scrapes_do_not_load_the_database(
    shop: Shop, scraped: tuple[CollectorRegistry, list[Any]]
) -> None:
    registry, sent = scraped
    assert sent == [], "nothing is read before it is asked for"
    order = shop.place()
    shop.expire_in(-60_000, order)
    add_refunds_due(shop, shop.other, "USD", 7, 8)
    fill_inbox(shop.engine, Providers(shop.engine).add("other", "bank")[0].id)
    sent.clear()
    for _ in range(100):
        assert registry.get_sample_value("orders_database_readable") == 1
    assert len([statement for statement in sent if "SELECT" in statement]) == 4
    age = registry.get_sample_value("orders_oldest_overdue_age_seconds")
    assert age is not None
    assert age >= 60
    usd = {"currency": "USD"}
    assert registry.get_sample_value("orders_refunds_due", usd) == 2
    assert registry.get_sample_value("orders_refunds_due_minor_units", usd) == 15
    assert registry.get_sample_value("orders_oldest_refund_due_age_seconds", usd) is not None
    assert registry.get_sample_value("orders_waiting_messages") == MOST_WAITING - 1
    waited = registry.get_sample_value("orders_oldest_waiting_message_age_seconds")
    assert waited == pytest.approx(7200, abs=60)


# </providers>


def test_without_the_database_a_scrape_says_so_and_no_more(database_url: str) -> None:
    engine = sa.create_engine(database_url)  # there is no table in it
    registry = CollectorRegistry()
    registry.register(Figures(engine))
    assert registry.get_sample_value("orders_database_readable") == 0
    assert registry.get_sample_value("orders_oldest_overdue_age_seconds") is None
    engine.dispose()
