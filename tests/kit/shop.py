"""The order service without HTTP and Redis."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from orders.clients.service import Clients
from orders.config import Settings
from orders.db.base import metadata
from orders.db.database import autocommit, create_engine
from orders.db.tables import order_items, orders, stock_items, unpaid_orders
from orders.order.domain import NewOrder, Order, Payment, Timeouts
from orders.order.payments import PaymentResult
from orders.order.service import OrderService
from orders.stock.service import StockService
from tests.kit.moments import later, now
from tests.kit.states import states, status


class RecordingScheduler:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.scheduled: list[tuple[str, float]] = []
        self.cancelled: list[str] = []

    def schedule(self, order_id: str, *, delay_ms: float, even_if_dead: bool = False) -> None:  # noqa: ARG002
        self.scheduled.append((order_id, delay_ms))

    def cancel(self, order_id: str) -> None:
        self.cancelled.append(order_id)


@dataclass(frozen=True)
class Shop:
    """The order service on a migrated database, with two clients."""

    engine: sa.Engine
    service: OrderService
    stock_service: StockService
    scheduler: RecordingScheduler
    client: str
    other: str

    def stock(
        self, sku: str = "tea", on_hand: int = 100, price_minor: int = 250, currency: str = "EUR"
    ) -> None:
        self.stock_service.set(sku, on_hand=on_hand, price_minor=price_minor, currency=currency)

    def place(self, client: str | None = None, *, key: str = "", **quantities: int) -> Order:
        """One tea, unless told otherwise."""
        return self.basket(quantities or {"tea": 1}, client or self.client, key)

    def new(self, key: str = "", **values: Any) -> NewOrder:
        """An order for one tea, unless told otherwise."""
        given = {"client_id": self.client, "key": key or uuid4().hex, "fingerprint": "f"}
        return NewOrder(**{**given, "quantities": {"tea": 1}, **values})

    def basket(self, quantities: Mapping[str, int], client: str = "", key: str = "") -> Order:
        owner = client or self.client
        placed = self.service.place(
            NewOrder(
                client_id=owner,
                key=key or uuid4().hex,
                fingerprint=sha256(repr(quantities).encode()).hexdigest(),
                quantities=quantities,
            )
        )
        return self.service.order(owner, placed.order.id)

    def pay(self, order: Order, reference: str = "", **other: Any) -> PaymentResult:
        """What the order costs, at its bank, unless told otherwise."""
        payment: dict[str, Any] = {"provider": "bank", "reference": reference or uuid4().hex}
        payment |= {"amount_minor": order.total_minor, "currency": order.currency, **other}
        return self.service.pay(self.client, order.id, **payment)

    def expire_in(self, ms: int, *placed: Order) -> None:
        """Move deadlines to so many milliseconds from now; to the past when negative."""
        deadline = later(now(), "ms")
        with self.engine.begin() as connection:
            for order in placed:
                row = unpaid_orders.c.order_id == order.id
                moved = sa.update(unpaid_orders).where(row).values(expires_at=deadline)
                connection.execute(moved, {"ms": ms})

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table."""
        with autocommit(self.engine) as connection:
            return {
                table.name: sorted(
                    (tuple(row) for row in connection.execute(sa.select(table))), key=repr
                )
                for table in metadata.sorted_tables
            }

    def statuses(self) -> dict[str, str]:
        """The status of each order."""
        with self.engine.begin() as connection:
            found = connection.execute(sa.select(states.c.order_id, status))
            return {row.order_id: row.status for row in found}

    def inside(self, connection: Any, timeout_seconds: float = 60) -> OrderService:
        """The service as part of a transaction."""
        timeouts = Timeouts(timeout_seconds, -3600, 86_400)
        return OrderService(connection, RecordingScheduler(), timeouts)

    def events(self, order: Order) -> list[str]:
        found = self.service.events(self.client, order.id, after_id=0, page_size=100)
        return [event.type for event in found]

    def shelf(self, sku: str = "tea") -> tuple[int, int]:
        """How much is on hand and reserved."""
        item = self.stock_service.get(sku)
        return item.on_hand, item.reserved

    def check(self, **stocked: int) -> None:
        """Stock is conserved, and each order ended at most once, in the way it says."""
        quantity = sa.func.sum(order_items.c.quantity)
        per_status = (
            sa.select(order_items.c.sku, status, quantity)
            .join(states, states.c.order_id == order_items.c.order_id)
            .group_by(order_items.c.sku, status)
        )
        with self.engine.begin() as connection:
            sums = {(sku, status): n for sku, status, n in connection.execute(per_status)}
            for sku, on_hand in stocked.items():
                row = connection.execute(sa.select(stock_items).filter_by(sku=sku)).one()
                assert row.reserved == sums.get((sku, "unpaid"), 0)
                assert row.on_hand == on_hand - sums.get((sku, "paid"), 0)
            placed = connection.execute(sa.select(orders.c.id).order_by(orders.c.id)).scalars()
            of_state = sa.select(states.c.order_id).order_by(states.c.order_id)
            assert connection.execute(of_state).scalars().all() == placed.all()


#: sa.Connection wait as long as a search has them wait.
PATIENT = {"statement_timeout_seconds": 60, "lock_timeout_seconds": 60}


@contextmanager
def opened(url: str, **settings: Any) -> Iterator[Shop]:
    """A shop on a migrated database."""
    made = Settings.of(database_url=url, redis_url="redis://nowhere", **settings)
    with an_engine(made) as engine:
        scheduler = RecordingScheduler()
        service = OrderService(engine, scheduler, Timeouts(1800, 1, 86_400))
        clients = Clients(engine)
        ids = [
            client_id(clients, clients.create_key(name, ["orders"]))
            for name in ("customer", "other")
        ]
        yield Shop(engine, service, StockService(engine), scheduler, *ids)


#: Engines between two tests, with the statements that they have compiled: compiling them anew takes
#: longer than most tests.
IDLE_ENGINES: dict[Settings, sa.Engine] = {}


@contextmanager
def an_engine(settings: Settings) -> Iterator[sa.Engine]:
    """An engine that nobody else uses. It has no connection yet, and what listens to it is forgotten."""
    engine = IDLE_ENGINES.pop(settings, None) or create_engine(settings)
    try:
        yield engine.execution_options()
    finally:
        engine.dispose()
        IDLE_ENGINES[settings] = engine


def client_id(clients: Clients, key: str) -> str:
    """The id of the client whose key this is."""
    return clients.authenticate(key).id


def money(payment: Payment) -> dict[str, Any]:
    """What an event says of a payment."""
    return {
        "payment_id": payment.id,
        "provider": payment.provider,
        "reference": payment.reference,
        "amount_minor": payment.amount_minor,
        "currency": payment.currency,
    }


def due(shop: Shop, reference: str = "late") -> Payment:
    """Money that came after the cancellation."""
    order = shop.place()
    shop.service.cancel(shop.client, order.id)
    return shop.pay(order, reference).payment


def back(reference: str, amount_minor: int, refunded_minor: int) -> dict[str, Any]:
    """What an event says of a refund, and of the payment's refunds so far."""
    return {
        "refund_reference": reference,
        "refund_amount_minor": amount_minor,
        "refunded_minor": refunded_minor,
    }


def refundable(shop: Shop, kind: str) -> Payment:
    """A payment whose refunds are events of this kind."""
    if kind == "payment.refunded":
        return due(shop)
    shop.stock()
    return shop.pay(shop.place()).payment
