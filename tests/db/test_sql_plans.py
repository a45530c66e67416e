"""No statement's plan depends on what a database knows of its tables.

A database that was just migrated, restored or upgraded knows nothing until it is analysed, and one that
was analysed while its tables were empty thinks that they are. Every operation of the service is run on
such databases and on an analysed copy of them, and what each statement reads is counted: in pages, by
EXPLAIN. No clock is looked at.

``ORDERS=1000000 pytest tests/db/test_sql_plans.py`` looks at a million orders.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from devtools.postgres import Postgres
from devtools.processes import ROOT
from orders.config import Settings
from orders.db.base import Instant, metadata
from orders.db.database import autocommit, reading, writing
from orders.db.ids import first_id_after, new_id, random_part
from orders.db.statements import FIRST, Position
from orders.db.tables import (
    order_events,
    order_items,
    orders,
    payment_entries,
    payments,
    stock_adjustments,
    stock_items,
    stops,
    unpaid_orders,
)
from orders.errors import (
    KeyReused,
    OutOfStock,
    PreconditionFailed,
    ReferenceReused,
    TimeoutOutOfRange,
)
from orders.features.doctor.doctor import MOST_SKUS, NEWEST  # <doctor/>
from orders.features.doctor.doctor import SQL as DOCTOR  # <doctor/>
from orders.features.feed.service import Feed  # <feed/>
from orders.features.freezes.service import Freezes  # <freezes/>
from orders.features.freezes.tables import freezes  # <freezes/>
from orders.features.limits.service import Unpaid, UnpaidLimits  # <limits/>
from orders.features.metrics.figures import figures  # <metrics/>
from orders.features.ops.lookups import SQL as OPS  # <ops/>
from orders.features.providers import tables as provider_tables  # <providers/>
from orders.features.providers.attempts.service import Attempts  # <providers/>
from orders.features.providers.domain import Sender  # <providers/>
from orders.features.providers.service import Providers  # <providers/>
from orders.features.retention.service import Retention  # <retention/>
from orders.features.signing.errors import SignatureInvalid  # <providers/>
from orders.features.signing.sender import Answer  # <webhooks/>
from orders.features.signing.signatures import signed  # <providers/>
from orders.features.webhooks import tables as webhook_tables  # <webhooks/>
from orders.features.webhooks.sending import SLICE, Sending  # <webhooks/>
from orders.features.webhooks.service import SQL as WEBHOOKS  # <webhooks/>
from orders.features.webhooks.service import Webhooks  # <webhooks/>
from orders.features.webhooks.steps import steps  # <webhooks/>
from orders.order.domain import CancelledOrder
from orders.order.reads import Reads
from orders.stock.domain import Expected
from tests.freezes.giving import give_back  # <freezes/>
from tests.kit.databases import empty_database, upgrade
from tests.kit.expiring import expire_now, swept
from tests.kit.moments import later, now
from tests.kit.reads import COUNT, Read, watched
from tests.kit.shop import Shop, opened
from tests.providers.provider import report  # <providers/>

ITEMS = 3
SKUS = 200
PAGE = 50
TIMEOUT = timedelta(minutes=30)
#: Filling the tables is part of the first test, and takes longer the more orders there are.
pytestmark = pytest.mark.timeout(max(300, COUNT // 100))
#: One order a second until now: those of the last half hour are not due yet.
NOW = datetime.now(UTC).replace(microsecond=0)
OLDEST = NOW - timedelta(seconds=COUNT)
#: Filling a table takes longer than a statement may.
PATIENT = {"statement_timeout_seconds": 3600, "lease_seconds": 4000}


# -- the databases -------------------------------------------------------------------------


def id_of(at: datetime) -> str:
    """The id of an order that was created at this moment."""
    return first_id_after(at - timedelta(milliseconds=1)).replace("-", "")[:12] + random_part()


def fill(shop: Shop) -> None:
    """Many orders of one customer, most of them unpaid, a few of the oldest paid."""
    skus = [f"sku-{number:03}" for number in range(SKUS)]
    lines: list[dict[str, Any]] = []
    placed: list[dict[str, Any]] = []
    unpaid: list[dict[str, Any]] = []
    endings: list[dict[str, Any]] = []
    for number in range(COUNT):
        at = OLDEST + timedelta(seconds=number)
        order_id = id_of(at)
        # Of the older half; who lists them newest first must not read the newer half.
        reference = "old" if number < COUNT // 2 else None
        placed.append(
            {
                "id": order_id,
                "client_id": shop.client,
                "currency": "EUR",
                "total_minor": 750,
                "created_at": at,
                "idempotency_key": order_id,
                "fingerprint": "",
                "timeout_ms": TIMEOUT // timedelta(milliseconds=1),
                "client_reference": reference,
            }
        )
        state = {
            "order_id": order_id,
            "client_id": shop.client,
            "expires_at": at + TIMEOUT,
            "client_reference": reference,
        }
        if number < PAGE:
            endings.append({**state, "type": "order.paid", "at": at, "data": {}})
        elif number % 4 == 0:
            because = {"reason": "requested"}
            endings.append({**state, "type": "order.cancelled", "at": at, "data": because})
        else:
            unpaid.append({**state, "pieces": ITEMS})
        for item in range(ITEMS):
            sku = skus[(number + 7 * item) % SKUS]
            lines.append({"order_id": order_id, "sku": sku, "quantity": 1, "unit_price_minor": 250})
    stock = [
        {"sku": sku, "on_hand": 10**8, "reserved": 10**7, "price_minor": 250, "currency": "EUR"}
        for sku in skus
    ]
    events = [
        {
            "order_id": row["id"],
            "client_id": shop.client,
            "type": "order.created",
            "at": row["created_at"],
            "data": {},
        }
        for row in placed
    ]
    # Too late, and paid back. An analysed table without them would be thought small for ever.
    late = [
        {
            "id": new_id(),
            "order_id": row["order_id"],
            "client_id": shop.client,
            "provider": "bank",
            "reference": row["order_id"],
            "amount_minor": 750,
            "currency": "EUR",
            "status": "refunded",
            "reason": "order_cancelled",
            "created_at": row["expires_at"],
            "refunded_minor": 750,
            "refunded_at": row["expires_at"],
            "refund_reference": row["order_id"],
        }
        for row in endings
        if row["type"] == "order.cancelled"
    ]
    endpoints = [new_id() for _ in range(COUNT // 10)]  # <providers/>
    adjustments = [
        {
            "sku": row["sku"],
            "client_id": shop.client,
            "delta": 1,
            "reason": "counted",
            "on_hand": number,
            "at": row["at"],
            "idempotency_key": row["key"],
        }
        for number, row in enumerate(
            {"sku": skus[number % SKUS], "at": order["created_at"], "key": order["id"]}
            for number, order in enumerate(placed)
        )
    ]
    with shop.engine.begin() as connection:
        # <providers>
        connection.execute(
            sa.insert(provider_tables.provider_endpoints),
            [
                {"id": each, "client_id": shop.client, "provider": "bank", "created_at": NOW}
                for each in endpoints
            ],
        )
        connection.execute(
            sa.insert(provider_tables.provider_secrets),
            [
                {"endpoint_id": each, "id": new_id(), "secret": "whsec_", "created_at": NOW}
                for each in endpoints
            ],
        )
        connection.execute(
            sa.insert(provider_tables.provider_messages),
            [
                {
                    "id": new_id(),
                    "endpoint_id": endpoints[0],
                    "webhook_id": "m",
                    "body": b"{}",
                    "created_at": order["created_at"],
                    "status": "settled",
                    "note": "applied",
                }
                for order in placed
            ],
        )
        # </providers>
        connection.execute(sa.insert(stock_items), stock)
        connection.execute(sa.insert(stock_adjustments), adjustments)
        connection.execute(sa.insert(orders), placed)
        connection.execute(sa.insert(order_items), lines)
        connection.execute(sa.insert(unpaid_orders), unpaid)
        # No triggers: each of these statements would hold a lock.
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.execute(sa.insert(order_events), events)
        connection.execute(sa.insert(order_events).values(version=2), endings)
        connection.execute(sa.insert(payments), late)
        # <providers>
        paid_as = sa.cast(orders.c.id, sa.String)
        settled = sa.select(
            *(orders.c.id, orders.c.id, orders.c.client_id, sa.literal("bank"), paid_as),
            *(orders.c.created_at, orders.c.created_at, orders.c.created_at),
            *(sa.literal("expired"), sa.false()),
        )
        names = ["id", "order_id", "client_id", "provider", "reference", "opened_at", "ends_at"]
        names += ["settled_at", "outcome", "asks"]
        connection.execute(sa.insert(provider_tables.payment_attempts).from_select(names, settled))
        # </providers>
        sent = sa.select(
            *(payments.c[name] for name in ("client_id", "provider", "id", "amount_minor")),
            *(payments.c.refund_reference, payments.c.refunded_at, sa.literal("refund")),
        )
        columns = ["client_id", "provider", "payment_id", "amount_minor", "reference", "at", "kind"]
        connection.execute(sa.insert(payment_entries).from_select(columns, sent))


#: What ANALYZE notes of tables whose rows have all been deleted, and not yet vacuumed away.
EMPTIED = """
    UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i') AND pg_relation_size(oid) > 0
"""


class Shops(NamedTuple):
    """Shops with the same orders: one's database was never analysed, one's while it was empty, and one's with them."""

    cold: Shop
    emptied: Shop
    analysed: Shop


@pytest.fixture(scope="module")
def shops(postgres: Postgres) -> Iterator[Shops]:
    with ExitStack() as stack:
        cold_url = stack.enter_context(empty_database(postgres))
        fill_empty(cold_url)
        cold_name = sa.make_url(cold_url).database
        copies = [
            stack.enter_context(empty_database(postgres, f"TEMPLATE {cold_name}")) for _ in range(2)
        ]
        shops = Shops(*(stack.enter_context(opened(url, **PATIENT)) for url in (cold_url, *copies)))
        with writing(shops.emptied.engine) as connection:
            connection.execute(sa.text(EMPTIED))
        with writing(shops.analysed.engine) as connection:
            connection.execute(sa.text("ANALYZE"))
        yield shops


def fill_empty(url: str) -> None:
    """Make the tables, which nothing analyses by itself, and many orders in them."""
    upgrade(url)
    with opened(url, **PATIENT) as shop:
        with writing(shop.engine) as connection:
            for table in metadata.sorted_tables:
                off = f"ALTER TABLE {table} SET (autovacuum_enabled = off)"
                connection.execute(sa.text(off))
        fill(shop)


def overdue(shop: Shop, count: int) -> list[str]:
    """The ids of so many orders that are unpaid past their deadline, the oldest first."""
    query = (
        sa.select(unpaid_orders.c.order_id)
        .where(unpaid_orders.c.expires_at < NOW)
        .order_by(unpaid_orders.c.expires_at)
        .limit(count)
    )
    with shop.engine.begin() as connection:
        return [*connection.execute(query).scalars()]


# -- what is promised ----------------------------------------------------------------------


def assert_alike(shops: Shops, use: Callable[[Shop], object]) -> list[Read]:
    """An operation reads no table from end to end, and about as much on each database."""
    costs, found = [], []
    for shop in shops:
        with watched(shop.engine) as reads:
            use(shop)
        assert reads
        assert [read for read in reads if read.faults] == []
        costs.append(sum(read.cost for read in reads))
        found += reads
    *others, analysed = costs
    assert max(others) <= 3 * analysed + 20
    return found


@pytest.mark.parametrize("in_detail", [False, True])
@pytest.mark.parametrize("size", [1, 20, 500])
def test_a_batch_expires_without_statistics(shops: Shops, size: int, *, in_detail: bool) -> None:
    batches = {id(shop): overdue(shop, size) for shop in shops}
    told: list[CancelledOrder] = []
    report = told.extend if in_detail else None
    assert_alike(shops, lambda shop: expire_now(shop.service, batches[id(shop)], report))
    for shop in shops:
        assert not {*batches[id(shop)]} & {*overdue(shop, size)}
    assert len(told) == len(shops) * size * in_detail


def test_a_batch_that_is_settled_already_costs_no_more(shops: Shops) -> None:
    batches = {id(shop): overdue(shop, 500) for shop in shops}
    for shop in shops:
        expire_now(shop.service, batches[id(shop)])
    assert_alike(shops, lambda shop: expire_now(shop.service, batches[id(shop)]))


# <freezes>
@pytest.fixture
def frozen(shops: Shops) -> Iterator[list[str]]:
    """Ten freezes that hold other orders, one of which gives back, and many that are over."""
    past = sa.text(
        "INSERT INTO freezes (id, reason, opened_by, opened_at, ends_at, asked_ms, give_back_seconds, given_back_at)"
        " SELECT gen_random_uuid(), '', '', at, at, 0, 0, at FROM generate_series("
        "CAST(:oldest AS timestamptz), CAST(:now AS timestamptz), interval '10 s') AS at"
    )
    made = [new_id() for _ in range(10)]
    for shop in shops:
        with shop.engine.begin() as connection:
            connection.execute(past, {"oldest": OLDEST, "now": NOW})
        for client, each in zip(["customer", *9 * ["other"]], made, strict=True):
            Freezes(shop.engine).open(client, reason="r", by="b", seconds=600, made_id=each)
    yield made
    for shop in shops:
        with shop.engine.begin() as connection:
            for table in (freezes, stops):
                connection.execute(sa.delete(table))
        with autocommit(shop.engine) as connection:
            connection.execute(sa.text("VACUUM unpaid_orders"))  # of what was extended


def test_freezes_need_no_statistics(shops: Shops, frozen: list[str]) -> None:
    batches = {id(shop): overdue(shop, 500) for shop in shops}

    def use(shop: Shop) -> None:
        held, batch = Freezes(shop.engine), batches[id(shop)]
        assert len(expire_now(shop.service, batch)) == 500
        assert not [*islice(swept(shop.engine, None, 0, 500), 1)]
        assert held.count("customer", NOW + TIMEOUT, most=500) == 500
        assert len(held.in_force()) == 10
        assert len(held.page(page_size=PAGE)) == PAGE
        held.thaw(frozen[0], by="b")
        extended, _ = give_back(shop, frozen[0])
        assert len(extended) == 500
        with shop.engine.begin() as connection:
            connection.execute(sa.delete(stops).where(stops.c.id == frozen[0]))
        assert expire_now(shop.service, overdue(shop, 100)) == {}

    assert_alike(shops, use)


# </freezes>


def test_an_orders_operations_need_no_statistics(shops: Shops) -> None:
    one = {"sku-000": 1}
    hundred = {f"sku-{number:03}": 1 for number in range(100)}

    def use(shop: Shop) -> None:
        paid, cancelled = shop.basket(one, key="paid"), shop.basket(hundred)
        assert shop.basket(one, key="paid") == paid
        with pytest.raises(OutOfStock):
            shop.basket({"sku-001": 2 * 10**8})
        for customer in (shop.client, None):
            shop.service.order(customer, paid.id)
        later = paid.created_at + TIMEOUT + TIMEOUT
        for versions in (["1", "2"], None):
            moved: dict[str, Any] = {"expires_at": later, "versions": versions}
            shop.service.extend(shop.client, paid.id, **moved)
        with pytest.raises(TimeoutOutOfRange):
            shop.service.extend(shop.client, paid.id, expires_at=OLDEST, versions=None)
        shop.pay(paid, "r-1")
        shop.pay(paid, "r-1")
        shop.pay(paid, "r-2")
        with pytest.raises(ReferenceReused):
            shop.pay(cancelled, "r-1")
        shop.service.cancel(shop.client, cancelled.id)
        late = shop.pay(cancelled, "r-3").payment
        for status in ("refund_due", "applied"):
            shop.service.payments(shop.client, status=status, page_size=PAGE)
        shop.service.payments_of_order(shop.client, cancelled.id, page_size=PAGE)
        shop.service.refund(shop.client, late.id, "re-1")
        shop.events(paid)
        for order in (paid, shop.basket({"sku-000": 1})):
            details = {"client_reference": "A-2", "metadata": {"a": 1}}
            shop.service.describe(shop.client, order.id, details, versions=None)

    assert_alike(shops, use)


# <providers>
def test_providers_are_managed_without_statistics(shops: Shops) -> None:
    # Of another client: one that has most endpoints is listed by reading most.
    def use(shop: Shop) -> None:
        providers = Providers(shop.engine)
        endpoint, secret = providers.add("other", "bank")
        headers = signed("m-1", b"{}", [secret], now_seconds=0)
        assert providers.authenticate(endpoint.id, headers, b"{}", now_seconds=0)
        assert len(providers.list_endpoints("other")) == 1
        providers.rotate(endpoint.id)
        providers.revoke(endpoint.id)
        sender = Sender(endpoint.id, shop.client, "bank")
        providers.keep(sender, "m-1", b"{}", "no", waits=True)
        for message_id in ("m-2", "m-3"):
            providers.keep(sender, message_id, b"{}", "ping", waits=True, unknown_type="ping")
        for status in ("waiting", "settled"):
            for after in (None, Position(OLDEST, new_id())):
                page = providers.messages(status, page_size=PAGE, after=after)
        providers.dismiss(page[0].id)
        assert providers.waiting().messages == 2
        with pytest.raises(SignatureInvalid):
            providers.authenticate(new_id(), headers, b"{}", now_seconds=0)

    assert_alike(shops, use)


def test_attempts_are_opened_and_settled_without_statistics(shops: Shops) -> None:
    def use(shop: Shop) -> None:
        attempts = Attempts(shop.engine, shop.scheduler, shop.scheduler, 10**9)
        order_id = id_of_unpaid[id(shop)]
        names = {"provider": "bank", "reference": new_id()}
        opened = attempts.open(shop.client, order_id, **names, seconds=900).attempt
        assert attempts.open(shop.client, order_id, **names, seconds=900).replayed
        assert expire_now(shop.service, [order_id])
        assert len(attempts.of_order(order_id, page_size=PAGE)) == 2
        [found] = attempts.open_ones([opened.id])
        assert not found.is_over
        with autocommit(shop.engine) as connection:
            attempts.settle(connection, [opened.id], [])
        names["reference"] = new_id()
        attempts.open(shop.client, order_id, **names, seconds=900)
        assert attempts.fail(shop.client, order_id, **names)
        names["reference"] = new_id()
        assert not attempts.fail(shop.client, order_id, **names)
        attempts.open(shop.client, order_id, provider="bank", reference="left", seconds=900)
        with autocommit(shop.engine) as connection:
            attempts.end(connection, order_id)
        assert shop.service.cancel(shop.client, order_id)
        assert Providers(shop.engine).closer(shop.client, "nobody") is None

    id_of_unpaid = {id(shop): overdue(shop, 1)[0] for shop in shops}
    assert_alike(shops, use)


# </providers>


def test_stock_is_set_adjusted_and_listed_without_statistics(shops: Shops) -> None:
    def use(shop: Shop) -> None:
        stock = shop.stock_service
        change: dict[str, Any] = {"client_id": shop.client, "reason": "counted"}
        price: dict[str, Any] = {"price_minor": 250, "currency": "EUR", "client_id": shop.client}
        read = Expected([stock.get("sku-000").version], exists=True)
        stock.set("sku-000", on_hand=2 * 10**8, **price, expected=read)
        with pytest.raises(PreconditionFailed):
            stock.set("sku-000", on_hand=10**8, **price, expected=read)
        stock.set("sku-000", on_hand=10**8, **price)
        stock.set("new", on_hand=1, **price)
        made = stock.adjust("sku-000", key="one", delta=-1, **change)
        assert stock.adjust("sku-000", key="one", delta=-1, **change).adjustment == made.adjustment
        with pytest.raises(KeyReused):
            stock.adjust("sku-001", key="one", delta=-1, **change)

    assert_alike(shops, use)


# <providers>
def test_a_refund_by_reference_needs_no_statistics(shops: Shops) -> None:
    def use(shop: Shop) -> None:
        order = shop.basket({"sku-000": 1})
        paid = shop.pay(order, "by-reference", amount_minor=1).payment
        for kind in ("refund", "refund", "opened", "failed"):
            report(shop, paid, kind, "re-9")

    assert_alike(shops, use)


# </providers>


def test_a_page_of_stock_reads_no_more_than_it_shows(shops: Shops) -> None:
    costs: dict[Any, int] = {}
    for shop in shops:
        stock = shop.stock_service
        for after in (None, "sku-100"):
            with watched(shop.engine) as reads:
                assert len(stock.items(page_size=PAGE, after=after)) == PAGE
            costs[shop is shops.cold, "items", after] = reads[-1].cost
            assert [read for read in reads if read.faults] == []
        for before in (None, COUNT // 2):
            with watched(shop.engine) as reads:
                stock.adjustments("sku-000", page_size=PAGE, before_id=before)
            costs[shop is shops.cold, "adjustments", before] = reads[-1].cost
            assert [read for read in reads if read.faults] == []
    # Each adjustment is looked up with the name of its client, on one page of an index and one of
    # the table.
    most = 2 * PAGES
    assert {what: cost for what, cost in costs.items() if cost > most} == {}


def make_due_soon(shop: Shop, count: int) -> None:
    """Move deadlines to some seconds from now: it may be long since the tables were filled."""
    newest = sa.select(unpaid_orders.c.order_id).order_by(unpaid_orders.c.expires_at.desc())
    some = newest.limit(count).scalar_subquery()
    moved = (
        sa.update(unpaid_orders)
        .where(unpaid_orders.c.order_id.in_(some))
        .values(expires_at=later(now(), "ms"))
    )
    with shop.engine.begin() as connection:
        connection.execute(moved, {"ms": 50_000})


def test_the_sweep_needs_no_statistics(shops: Shops) -> None:
    for shop in shops:
        make_due_soon(shop, 20)

    def use(shop: Shop) -> None:
        for after, before in ((None, 0.0), (-1.0, 60.0)):
            pages = swept(shop.engine, after, before, 500)
            assert [len(page) for page, _ in zip(pages, range(3), strict=False)]

    assert_alike(shops, use)


# <metrics>
def test_what_metrics_read_is_bounded_without_statistics(shops: Shops) -> None:
    def use(shop: Shop) -> None:
        with reading(shop.engine) as connection:
            overdue, *_ = figures(connection)
            assert overdue.values[()] > 0

    assert_alike(shops, use)
    for shop in shops:
        with watched(shop.engine) as reads:
            use(shop)
        assert max(read.cost for read in reads) <= 20


# </metrics>


# <limits>
def counted(shop: Shop, customer: str, most: int) -> tuple[Unpaid, int]:
    """What is counted, and what that reads."""
    with watched(shop.engine) as reads:
        held = UnpaidLimits(shop.engine).count(customer, most)
    assert [read for read in reads if read.faults] == []
    return held, max(read.cost for read in reads)


@pytest.mark.parametrize("most", [10, 1000])
def test_what_a_client_holds_is_counted_up_to_its_limit(shops: Shops, most: int) -> None:
    for shop in shops:
        held, cost = counted(shop, shop.client, most)
        assert held == Unpaid(most, ITEMS * most)
        assert cost <= 3 * most + 20
        nothing, cost = counted(shop, shop.other, most)
        assert nothing == Unpaid(0, 0)
        assert cost <= 20, "of the others' orders nothing is read"


# </limits>


# <webhooks>
#: Of the deliveries of one subscription, by what became of them; the rest are delivered.
OVERDUE_DELIVERIES, LATER_DELIVERIES, DEAD_DELIVERIES = 2000, 2000, 500
SETTINGS = Settings.of(
    database_url="", redis_url="", webhook_expiring_minutes=5.0, webhook_keep_days=1
)


@pytest.fixture
def hooked(shops: Shops) -> Iterator[dict[int, str]]:
    """The id of a subscription in each shop, with a delivery for each order, and of no other event."""
    ids = {}
    for shop in shops:
        ids[id(shop)] = webhooks(shop).subscribe(shop.client, url="https://a.example", events=None)[
            0
        ]["id"]
        fill_deliveries(shop, ids[id(shop)])
    with writing(shops.analysed.engine) as connection:
        connection.execute(sa.text("ANALYZE"))
    yield ids
    for shop in shops:
        with shop.engine.begin() as connection:
            for table in (webhook_tables.webhook_deliveries, webhook_tables.webhook_secrets):
                connection.execute(sa.delete(table))
            connection.execute(sa.delete(webhook_tables.webhook_subscriptions))


def fill_deliveries(shop: Shop, subscription_id: str) -> None:
    """Deliveries of one subscription, and the subscriptions of many others."""
    others = [new_id() for _ in range(1000)]
    with shop.engine.begin() as connection:
        connection.execute(
            sa.insert(webhook_tables.webhook_subscriptions).values(created_at=NOW, reminds=True),
            [
                {"id": each, "client_id": shop.other, "url": "https://b.example", "deleted_at": NOW}
                for each in others
            ],
        )
        found = connection.execute(
            sa.select(order_events.c.order_id, sa.func.min(order_events.c.id).label("event_id"))
            .group_by(order_events.c.order_id)
            .limit(COUNT)
        ).all()
        later = [NOW - timedelta(hours=1)] * OVERDUE_DELIVERIES + [
            NOW + timedelta(hours=1)
        ] * LATER_DELIVERIES
        rows = [
            {
                "subscription_id": subscription_id,
                "order_id": row.order_id,
                "event_id": row.event_id,
                "type": "order.created",
                "status": "pending"
                if number < len(later)
                else "dead"
                if number < len(later) + DEAD_DELIVERIES
                else "delivered",
                "created_at": OLDEST + timedelta(seconds=number),
                "due_at": later[number] if number < len(later) else NOW,
                "attempts": 3 if number < OVERDUE_DELIVERIES else 0,
            }
            for number, row in enumerate(found)
        ]
        connection.execute(sa.insert(webhook_tables.webhook_deliveries), rows)


def webhooks(shop: Shop) -> Webhooks:
    return Webhooks(shop.engine, shop.scheduler, SETTINGS)


def sending(shop: Shop) -> Sending:
    return Sending(shop.engine, shop.scheduler, SETTINGS)


def test_webhooks_are_written_with_events_without_statistics(
    shops: Shops, hooked: dict[int, str]
) -> None:
    batches = {id(shop): overdue(shop, 500) for shop in shops}

    def use(shop: Shop) -> None:
        expire_now(shop.service, batches[id(shop)])
        paid, cancelled = shop.basket({"sku-000": 1}), shop.basket({"sku-001": 1})
        shop.pay(paid, "hooked")
        shop.service.cancel(shop.client, cancelled.id)
        late = shop.pay(cancelled, "hooked and late").payment
        shop.service.refund(shop.client, late.id, "hooked")

    assert_alike(shops, use)
    for shop in shops:
        with shop.engine.begin() as connection:
            made = sa.select(webhook_tables.webhook_deliveries.c.type).where(
                webhook_tables.webhook_deliveries.c.created_at > NOW,
                webhook_tables.webhook_deliveries.c.status == "pending",
            )
            # Two of them are reminders.
            assert len(connection.execute(made).all()) == 500 + 8, hooked[id(shop)]


#: What triggers run, which EXPLAIN does not see; and what stands in for the rows that they get.
OUTBOX = Path(ROOT, "orders/features/webhooks/outbox.sql").read_text()
TRIGGERED = [
    *map("SELECT FROM written WHERE {}".format, re.findall(r"(?s)IF (EXISTS .*?) THEN", OUTBOX)),
    *re.findall(r"(?sm)^ +((?:INSERT|UPDATE).*?);\n", OUTBOX),
]
ROWS = (
    "CREATE TEMP TABLE written ON COMMIT DROP AS SELECT * FROM order_events ORDER BY id DESC LIMIT {}",
    "SELECT {}",
    "CREATE TEMP TABLE changed ON COMMIT DROP AS SELECT * FROM orders ORDER BY id DESC LIMIT {}",
)


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("size", [1, 500])
def test_triggers_of_webhooks_need_no_statistics(shops: Shops, size: int) -> None:
    def use(shop: Shop) -> None:
        with shop.engine.begin() as connection:
            for query, rows in zip(TRIGGERED, ROWS, strict=True):
                cursor = connection.connection.cursor()  # which nobody watches
                cursor.execute(rows.format(size))
                assert connection.exec_driver_sql(query).rowcount >= size
            connection.rollback()

    assert_alike(shops, use)


def test_webhooks_are_sent_without_statistics(shops: Shops, hooked: dict[int, str]) -> None:
    def use(shop: Shop) -> None:
        service, one = sending(shop), hooked[id(shop)]
        for after, before in ((None, 0), (-7_200_000, 60_000)):
            assert [line.id for line in service.lines(after_ms=after, before_ms=before)] == [one]
        assert service.lines(after_ms=0, before_ms=7_200_000) == []
        sent = []
        for status in (200, 500, 410):
            message, more = service.claim(one, lambda _: "body")
            assert message
            assert more
            sent.append(message.id)
            service.record(message, Answer(status, None, "thanks"))
        assert service.lines([*sent, one]) == [], "it is paused"
        webhooks(shop).change(shop.client, one, {"paused": False})
        assert [line.id for line in service.lines([*sent, one])] == [one]
        service.prune()
        webhooks(shop).redeliver(None, sent[0])

    assert_alike(shops, use)


def test_webhooks_are_managed_without_statistics(shops: Shops, hooked: dict[int, str]) -> None:
    def use(shop: Shop) -> None:
        service, one = webhooks(shop), hooked[id(shop)]
        for status in (None, "pending", "delivered", "dead"):
            before = None
            for _ in range(2):
                page = service.deliveries(
                    shop.client, one, status=status, page_size=PAGE, before=before
                )
                assert len(page) == PAGE
                before = Position(page[-1].created_at, page[-1].id)
        service.subscriptions(shop.client, page_size=PAGE)
        service.rotate_secret(shop.client, one)
        service.change(shop.client, one, {"paused": True})
        service.subscribe(shop.client, url="https://b.example", events=["order.expiring"])
        service.unsubscribe(shop.client, one)
        assert sending(shop).claim(one, lambda _: "body") == (None, False)
        assert sending(shop).prune()

    reads = assert_alike(shops, use)
    pruned = [read for read in reads if "DELETE FROM webhook_deliv" in read.statement]
    assert max(read.cost for read in reads if read not in pruned) <= PAGES * 3
    for shop in shops:
        with shop.engine.begin() as connection:
            left = connection.scalar(
                sa.select(sa.func.count()).select_from(webhook_tables.webhook_deliveries)
            )
        assert left == COUNT - SLICE


# </webhooks>


# <doctor>
@pytest.mark.slow
def test_the_doctor_reads_no_table_from_end_to_end(
    shops: Shops,
    hooked: dict[int, str],  # <webhooks/>
) -> None:
    def use(shop: Shop) -> None:
        with reading(shop.engine) as connection:
            sql = connection
            DOCTOR.list_wrong_stock(sql, most_unpaid=500, most_skus=MOST_SKUS, most=5).all()
            # They were not placed by the service.
            assert DOCTOR.list_wrong_orders(sql, newest=NEWEST, most=5).all()
            # <webhooks>
            [failing] = WEBHOOKS.list_failing(sql)
            assert (failing.subscription_id, failing.since) == (hooked[id(shop)], OLDEST)
            # </webhooks>

    assert_alike(shops, use)


# </doctor>


# <ops>
@pytest.mark.usefixtures("hooked")  # <webhooks/>
@pytest.mark.slow
def test_the_operators_page_reads_a_bounded_part_of_the_tables(shops: Shops) -> None:
    def use(shop: Shop) -> None:
        with reading(shop.engine) as connection:
            sql = connection
            assert OPS.count_unpaid(sql, most=100).scalar_one() == 100
            for listed in (OPS.list_overdue, OPS.list_next, OPS.list_latest):
                assert len(listed(sql, most=PAGE).all()) == PAGE
            found = OPS.list_refunds_due(sql, most=PAGE).all()
            assert len(found) == PAGE
            [money] = Reads(connection).refunds_due(200)
            assert money.payments == 200
            some = found[0]
            assert OPS.get_payer(sql, id=some.id).scalar_one() == shop.client
            for reference, most in (("old", 20), ("none", 0)):
                values = {"reference": reference, "most": 20}
                assert len(OPS.find_by_reference(sql, **values).all()) == most
            list(steps(sql, some.order_id))  # <webhooks/>

    for shop in shops:
        fill_expired(shop)
    with writing(shops.analysed.engine) as connection:
        connection.execute(sa.text("ANALYZE"))
    assert_alike(shops, use)
    for shop in shops:
        with watched(shop.engine) as reads:
            use(shop)
        # A page of its index and one of the table for each row, and the name of its client.
        most = 2600
        assert [read for read in reads if read.cost > most] == []


#: Cancellations are in so many of the last minutes.
LATE_MINUTES = 5


def fill_expired(shop: Shop) -> None:
    """Have the cancelled orders be cancelled just now, and money be due back for as many."""
    with shop.engine.begin() as connection:
        found = connection.execute(
            sa.select(order_events.c.order_id, order_events.c.client_id)
            .where(order_events.c.type == "order.cancelled")
            .limit(COUNT // 10)
        ).all()
        since: datetime = connection.execute(sa.select(now())).scalar_one()
        moment = sa.bindparam("moment", type_=Instant)
        connection.execute(
            sa.update(order_events)
            .where(order_events.c.order_id == sa.bindparam("for_id"), order_events.c.place == 0)
            .values(data={"reason": "expired"}, at=moment, expires_at=moment),
            [
                {
                    "for_id": row.order_id,
                    "moment": since - timedelta(minutes=n % LATE_MINUTES, seconds=20),
                }
                for n, row in enumerate(found)
            ],
        )
        rows = [
            {
                "id": new_id(),
                "order_id": row.order_id,
                "client_id": row.client_id,
                "provider": "card",
                "reference": new_id(),
                "amount_minor": 750,
                "currency": "EUR",
                "status": "refund_due",
                "reason": "order_cancelled",
                "created_at": NOW - timedelta(minutes=n % LATE_MINUTES),
            }
            for n, row in enumerate(found)
        ]
        connection.execute(sa.insert(payments), rows)


# </ops>


# -- lists ---------------------------------------------------------------------------------

STATUSES: list[str | None] = [None, "unpaid", "paid", "cancelled"]
MOMENTS: dict[str, datetime | None] = {
    "no bound": None,
    "before all": OLDEST - timedelta(days=1),
    "among the oldest": OLDEST + timedelta(minutes=10),
    "in the middle": OLDEST + timedelta(seconds=COUNT // 2),
    "now": NOW,
    "after all": NOW + timedelta(days=1),
}
#: What a page of 50 things may read, however many there are; of orders, each by its id in the three tables
#: that it may be in, and once there are refunds, each paid one's in their index.
PAGES, ORDER_PAGES = 100, 310 + 13 * PAGE


@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.slow
def test_a_page_of_a_list_reads_no_more_than_it_shows(shops: Shops, after: str) -> None:
    costs: dict[Any, int] = {}
    for shop, status, (name, before) in product(shops, STATUSES, MOMENTS.items()):
        sorted_by = "expires_at" if before else "created_at"
        position = None
        for number in range(2):
            # The first look may pass index entries of rows that other tests changed. PostgreSQL marks
            # them, so that the second does not.
            for _ in range(2):
                with watched(shop.engine) as reads:
                    page = shop.service.orders(
                        shop.client,
                        page_size=PAGE,
                        status=status,
                        created_after=MOMENTS[after],
                        expires_before=before,
                        after=position,
                    )
                assert [read for read in reads if read.faults] == []
            [list_of_orders, *_] = reads
            costs[shop is shops.cold, status, name, number] = list_of_orders.cost
            if page:
                position = Position(getattr(page[-1], sorted_by), page[-1].id)
    assert {what: cost for what, cost in costs.items() if cost > ORDER_PAGES} == {}


def pages(shop: Shop, **filters: Any) -> tuple[int, int]:
    """The most that one of two pages of a list reads, and how many orders they show."""
    costs, shown, position = [], 0, None
    for _ in range(2):
        with watched(shop.engine) as reads:
            if "client_id" in filters:
                page = shop.service.orders(**filters, page_size=PAGE, after=position)
            else:
                page = shop.service.all_orders(page_size=PAGE, after=position)
        assert [read for read in reads if read.faults] == []
        costs.append(reads[0].cost)
        shown += len(page)
        position = Position(page[-1].created_at, page[-1].id) if page else None
    return max(costs), shown


def test_a_page_of_all_orders_reads_no_more_than_it_shows(shops: Shops) -> None:
    for shop in shops:
        cost, shown = pages(shop)
        assert shown == 2 * PAGE
        # Beside each order, its client's name.
        assert cost <= ORDER_PAGES + 2 * PAGE


@pytest.mark.parametrize("status", STATUSES)
def test_a_page_between_two_moments_reads_no_more_than_it_shows(
    shops: Shops, status: str | None
) -> None:
    bounds = {"created_after": MOMENTS["among the oldest"], "status": status}
    for shop, before in product(shops, ["among the oldest", "in the middle", "after all"]):
        cost, _ = pages(shop, client_id=shop.client, created_before=MOMENTS[before], **bounds)
        assert cost <= ORDER_PAGES


# <feed>
@pytest.mark.parametrize("after_id", [0, COUNT // 2, 10**9])
def test_a_page_of_events_reads_no_more_than_it_shows(
    shops: Shops, after_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for their messages, of which these orders have thousands."""
    monkeypatch.setattr("orders.features.feed.service.features", tuple)
    for shop, client in product(shops, ["client", "other"]):
        for _ in range(2):  # as above
            with watched(shop.engine) as reads:
                Feed(shop.engine).events(getattr(shop, client), after_id=after_id, page_size=PAGE)
        assert [read for read in reads if read.faults] == []
        # Beside each event its order with the items and the client.
        assert max(read.cost for read in reads) <= 20 * PAGE


# </feed>


@pytest.mark.parametrize("reference", ["old", "unknown"])
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.slow
def test_a_page_by_reference_reads_no_more_than_it_shows(
    shops: Shops, status: str | None, reference: str
) -> None:
    for shop, (name, after) in product(shops, MOMENTS.items()):
        filters = {"client_id": shop.client, "status": status, "client_reference": reference}
        cost, shown = pages(shop, **filters, created_after=after)
        if reference == "unknown" or name in ("now", "after all"):
            assert shown == 0
        elif name in ("no bound", "before all"):
            assert shown
        assert cost <= ORDER_PAGES


# <retention>
def test_old_orders_are_deleted_without_statistics(
    shops: Shops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orders.features.retention.service.DAY_MS", 1)

    def use(shop: Shop) -> None:
        retention = Retention(shop.engine, lambda *_: None, days=1)
        moment = OLDEST + timedelta(seconds=COUNT // 4)
        deleted = retention.delete(FIRST.id, 500, moment)
        assert deleted.orders >= PAGE
        assert retention.delete(new_id(), 500, moment) == (0, None)
        assert retention.export(str(deleted.last_id))["order_id"] == deleted.last_id
        retention.erase(str(deleted.last_id))

    assert_alike(shops, use)


# </retention>
