"""Every SQL statement of the service, each with a name and a sentence.

Locks are taken in one order everywhere: an idempotency key or payment reference, then orders by
id, then stock by SKU. So no two transactions wait for each other in a circle.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert  # renders ON CONFLICT for SQLite as well
from uuid_utils import uuid7

from orders.database import (
    LOCK_NOT_AVAILABLE,
    Instant,
    later,
    ms_until,
    now,
    one_of,
    read_only,
    sqlstate,
)
from orders.domain import (
    Client,
    Event,
    Item,
    Order,
    OrderStatus,
    Payment,
    PaymentStatus,
    Position,
    StockItem,
)
from orders.errors import KeyInFlight
from orders.models import (
    UNPAID,
    api_clients,
    idempotency_keys,
    order_events,
    order_items,
    orders,
    payments,
    stock_items,
)

p = sa.bindparam


def new_id() -> str:
    """A UUIDv7: unguessable, and in the order of creation, which is kind to an index."""
    return str(uuid7())


class Key(NamedTuple):
    """An idempotency key that was seen before."""

    fingerprint: str
    order_id: str


class State(NamedTuple):
    """What the readiness check reads from the database."""

    revision: str
    read_only: bool


class Waiting(NamedTuple):
    """An unpaid order, and when it expires from now; negative when it is overdue."""

    id: str
    expires_at: datetime
    expires_in_ms: int


# Insert a key, waiting for a transaction that is inserting the same one.
ADD_KEY = (
    insert(idempotency_keys)
    .values(
        client_id=p("client_id"),
        key=p("key"),
        fingerprint=p("fingerprint"),
        order_id=p("order_id"),
        created_at=now(),
    )
    .on_conflict_do_nothing()
    .returning(idempotency_keys.c.key)
)
# Read a key that was there before.
GET_KEY = sa.select(idempotency_keys.c.fingerprint, idempotency_keys.c.order_id).where(
    idempotency_keys.c.client_id == p("for_client"), idempotency_keys.c.key == p("for_key")
)

# Hold some of a SKU if that much is free.
HOLD = (
    sa.update(stock_items)
    .where(
        stock_items.c.sku == p("for_sku"),
        stock_items.c.on_hand - stock_items.c.reserved >= p("quantity"),
    )
    .values(reserved=stock_items.c.reserved + p("quantity"))
    .returning(stock_items.c.price_minor, stock_items.c.currency)
)
# What a set of orders holds, its stock rows locked in SKU order: by bytes, as Python sorts
# where stock is held. As text they would sort by the database's locale.
HELD = (
    sa.select(order_items.c.sku, sa.func.sum(order_items.c.quantity).label("quantity"))
    .where(one_of(order_items.c.order_id, "ids"))
    .group_by(order_items.c.sku)
    .cte("held")
)
LOCKED = (
    sa.select(stock_items.c.sku)
    .where(stock_items.c.sku.in_(sa.select(HELD.c.sku)))
    .order_by(sa.cast(stock_items.c.sku, sa.LargeBinary))
    .with_for_update(key_share=True)
    .cte("locked")
)
OF_HELD = (stock_items.c.sku == LOCKED.c.sku, stock_items.c.sku == HELD.c.sku)
# Give back what a set of orders holds.
RELEASE = (
    sa.update(stock_items).where(*OF_HELD).values(reserved=stock_items.c.reserved - HELD.c.quantity)
)
# Sell what a set of orders holds: it leaves the shelf.
SELL = (
    sa.update(stock_items)
    .where(*OF_HELD)
    .values(
        reserved=stock_items.c.reserved - HELD.c.quantity,
        on_hand=stock_items.c.on_hand - HELD.c.quantity,
    )
)

# Insert an order, its deadline computed by the database's clock.
ADD_ORDER = (
    sa.insert(orders)
    .values(
        id=p("id"),
        customer_id=p("customer_id"),
        status=UNPAID,
        currency=p("currency"),
        total_minor=p("total_minor"),
        created_at=now(),
        expires_at=later(now(), "timeout_ms"),
    )
    .returning(orders.c.created_at, orders.c.expires_at)
)
# Insert an order's items.
ADD_ITEMS = sa.insert(order_items)

# Unpaid, for statements that name their orders. Said without the status, so that the sweep's
# partial index does not qualify: a planner without statistics would read it from end to end
# rather than look up the ids.
OPEN = (orders.c.paid_at.is_(None), orders.c.cancelled_at.is_(None))

# The orders of a batch that are unpaid past their deadline, locked in id order. One that
# somebody is paying at this moment is skipped, not waited for.
EXPIRED = (
    sa.select(orders.c.id)
    .where(one_of(orders.c.id, "ids"), *OPEN, orders.c.expires_at <= now())
    .order_by(orders.c.id)
    .with_for_update(key_share=True, skip_locked=True)
    .cte("expired")
)
# Cancel them; what comes back decides.
CANCEL_EXPIRED = (
    sa.update(orders)
    .where(orders.c.id == EXPIRED.c.id)
    .values(
        status="cancelled",
        cancelled_at=now(),
        cancel_reason="expired",
        version=orders.c.version + 1,
    )
    .returning(orders.c.id)
)
# Of those that did not come back, find the unpaid ones: not due yet, or skipped.
STILL_UNPAID = sa.select(orders.c.id, ms_until(orders.c.expires_at).label("ms")).where(
    one_of(orders.c.id, "ids"), *OPEN
)

OWN = (orders.c.id == p("for_id"), orders.c.customer_id == p("for_customer"))
# Cancel one unpaid order, expired or not.
CANCEL = (
    sa.update(orders)
    .where(*OWN, *OPEN)
    .values(
        status="cancelled",
        cancelled_at=now(),
        cancel_reason="requested",
        version=orders.c.version + 1,
    )
    .returning(orders.c.id)
)
# Pay one unpaid order with exactly its total.
PAY = (
    sa.update(orders)
    .where(
        *OWN,
        *OPEN,
        orders.c.total_minor == p("amount_minor"),
        orders.c.currency == p("for_currency"),
    )
    .values(status="paid", paid_at=now(), version=orders.c.version + 1)
    .returning(orders.c.id)
)
# Write an event for one order; inline: nobody asks for its id.
ADD_EVENT = sa.insert(order_events).values(at=now()).inline()
# Write the same event for each order of a set.
ADD_EVENTS = sa.insert(order_events).from_select(
    ["order_id", "type", "at", "data"],
    sa.select(orders.c.id, p("type", type_=sa.String), now(), p("data", type_=sa.JSON)).where(
        one_of(orders.c.id, "ids")
    ),
)

# Unpaid orders by deadline, from a page's end on. Two queries: a null bound hides the index.
UNPAID_UNTIL = (
    sa.select(orders.c.id, orders.c.expires_at, ms_until(orders.c.expires_at).label("ms"))
    .where(
        orders.c.status == UNPAID,
        orders.c.expires_at <= later(now(), "before_ms"),
        sa.tuple_(orders.c.expires_at, orders.c.id)
        > sa.tuple_(p("last_expires_at", type_=Instant), p("last_id", type_=orders.c.id.type)),
    )
    .order_by(orders.c.expires_at, orders.c.id)
    .limit(p("page_size"))
)
UNPAID_BETWEEN = UNPAID_UNTIL.where(orders.c.expires_at > later(now(), "after_ms"))
FIRST_PAGE: dict[str, Any] = {
    "last_expires_at": datetime.fromisoformat("1970-01-01T00:00:00Z"),
    "last_id": "00000000-0000-0000-0000-000000000000",
}

# One order of one customer.
GET_ORDER = sa.select(orders).where(*OWN)
# The items of one order.
GET_ORDER_ITEMS = sa.select(order_items).where(order_items.c.order_id == p("for_id"))
# The items of a set of orders.
GET_ITEMS = sa.select(order_items).where(one_of(order_items.c.order_id, "ids"))
# An order's events, oldest first, from a page's end on.
LIST_EVENTS = (
    sa.select(order_events)
    .where(order_events.c.order_id == p("for_id"), order_events.c.id > p("after_id"))
    .order_by(order_events.c.id)
    .limit(p("page_size"))
)

_payment_row: dict[str, sa.ColumnElement[Any]] = {
    "order_id": orders.c.id,
    "created_at": now(),
    **{
        name: p(name, type_=payments.c[name].type)
        for name in ("id", "provider", "reference", "amount_minor", "currency", "status")
    },
}
# Note a payment of one's own order, unless its reference was noted before.
ADD_PAYMENT = (
    insert(payments)
    .from_select([*_payment_row], sa.select(*_payment_row.values()).where(*OWN))
    .on_conflict_do_nothing()
    .returning(payments)
)
# The payment that a provider knows by this reference.
GET_PAYMENT = sa.select(payments).where(
    payments.c.provider == p("for_provider"), payments.c.reference == p("for_reference")
)
# Mark a payment as due back.
OWE_PAYMENT = (
    sa.update(payments)
    .where(payments.c.id == p("for_id"))
    .values(status="refund_due", reason=p("reason"))
    .returning(payments)
)

# One SKU.
GET_STOCK = sa.select(stock_items).where(stock_items.c.sku == p("for_sku"))
_new = insert(stock_items).values(reserved=0)
# Set a SKU's stock and price, unless unpaid orders hold more than that.
SET_STOCK = _new.on_conflict_do_update(
    index_elements=["sku"],
    set_={name: _new.excluded[name] for name in ("on_hand", "price_minor", "currency")},
    where=stock_items.c.reserved <= _new.excluded.on_hand,
).returning(stock_items)

# Insert an API client, unless its name is taken.
ADD_CLIENT = (
    insert(api_clients)
    .values(created_at=now())
    .on_conflict_do_nothing()
    .returning(api_clients.c.id)
)
# One API client.
GET_CLIENT = sa.select(api_clients).where(api_clients.c.id == p("for_id"))
# The revision that migrations brought the database to, and whether it refuses to write.
GET_STATE = sa.select(
    sa.column("version_num", sa.String).label("revision"), read_only().label("read_only")
).select_from(sa.table("alembic_version"))


class Repository:
    """The statements, on one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def _run(self, statement: sa.Executable, **values: Any) -> sa.CursorResult[Any]:
        return self._connection.execute(statement, values)

    # -- idempotency keys --

    def add_key(self, client_id: str, key: str, fingerprint: str, order_id: str) -> Key | None:
        """Take a key for an order; None when it is ours, else what it was used for before.

        Raises KeyInFlight when whoever is using it takes too long.
        """
        try:
            row = self._run(
                ADD_KEY, client_id=client_id, key=key, fingerprint=fingerprint, order_id=order_id
            ).one_or_none()
        except sa.exc.OperationalError as error:
            if sqlstate(error) == LOCK_NOT_AVAILABLE:
                raise KeyInFlight from error
            raise
        if row is not None:
            return None
        row = self._run(GET_KEY, for_client=client_id, for_key=key).one()
        return Key(row.fingerprint, row.order_id)

    # -- stock --

    def hold(self, sku: str, quantity: int) -> tuple[int, str] | None:
        """Hold some of a SKU; its price and currency, or None when that much is not free."""
        row = self._run(HOLD, for_sku=sku, quantity=quantity).one_or_none()
        return None if row is None else (row.price_minor, row.currency)

    def release(self, order_ids: Sequence[str]) -> None:
        """Give back what these orders hold."""
        self._run(RELEASE, ids=order_ids)

    def sell(self, order_ids: Sequence[str]) -> None:
        """Take what these orders hold off the shelf."""
        self._run(SELL, ids=order_ids)

    def stock(self, sku: str) -> StockItem | None:
        row = self._run(GET_STOCK, for_sku=sku).one_or_none()
        return None if row is None else _stock_item(row)

    def set_stock(
        self, sku: str, *, on_hand: int, price_minor: int, currency: str
    ) -> StockItem | None:
        """Set a SKU's stock and price; None when unpaid orders hold more."""
        row = self._run(
            SET_STOCK, sku=sku, on_hand=on_hand, price_minor=price_minor, currency=currency
        ).one_or_none()
        return None if row is None else _stock_item(row)

    # -- orders --

    def add_order(
        self,
        order_id: str,
        customer_id: str,
        items: Sequence[Item],
        *,
        currency: str,
        total_minor: int,
        timeout_ms: int,
    ) -> Order:
        """Insert an order with its items."""
        times = self._run(
            ADD_ORDER,
            id=order_id,
            customer_id=customer_id,
            currency=currency,
            total_minor=total_minor,
            timeout_ms=timeout_ms,
        ).one()
        self._connection.execute(
            ADD_ITEMS,
            [
                {
                    "order_id": order_id,
                    "sku": item.sku,
                    "quantity": item.quantity,
                    "unit_price_minor": item.unit_price_minor,
                }
                for item in items
            ],
        )
        return Order(
            id=order_id,
            status=OrderStatus.UNPAID,
            currency=currency,
            total_minor=total_minor,
            items=tuple(items),
            created_at=times.created_at,
            expires_at=times.expires_at,
        )

    def cancel_expired(self, order_ids: Sequence[str]) -> list[str]:
        """Cancel those that are unpaid past their deadline; return which those were."""
        return [*self._run(CANCEL_EXPIRED, ids=order_ids).scalars().all()]

    def still_unpaid(self, order_ids: Sequence[str]) -> dict[str, int]:
        """Those that are unpaid, and in how many ms each expires; negative when it is overdue."""
        return {row.id: row.ms for row in self._run(STILL_UNPAID, ids=order_ids)}

    def cancel(self, order_id: str, customer_id: str) -> bool:
        """Cancel an unpaid order; whether it was one."""
        result = self._run(CANCEL, for_id=order_id, for_customer=customer_id)
        return result.one_or_none() is not None

    def pay(self, order_id: str, customer_id: str, amount_minor: int, currency: str) -> bool:
        """Pay an unpaid order with exactly its total; whether that was so."""
        result = self._run(
            PAY,
            for_id=order_id,
            for_customer=customer_id,
            amount_minor=amount_minor,
            for_currency=currency,
        )
        return result.one_or_none() is not None

    def order(self, order_id: str, customer_id: str) -> Order | None:
        row = self._run(GET_ORDER, for_id=order_id, for_customer=customer_id).one_or_none()
        if row is None:
            return None
        return _order(row, self._run(GET_ORDER_ITEMS, for_id=order_id).all())

    def orders(
        self,
        customer_id: str,
        *,
        page_size: int,
        status: str | None = None,
        created_after: datetime | None = None,
        expires_before: datetime | None = None,
        after: Position | None = None,
    ) -> list[Order]:
        """A customer's orders: newest first, or with ``expires_before`` latest deadline first.

        Each status is read from an index in the order of the list, so that a page costs the same
        however many orders there are and whatever is known of them.
        """
        moment = orders.c.created_at if expires_before is None else orders.c.expires_at
        bounds = [orders.c.customer_id == p("for_customer")]
        if created_after is not None:
            bounds.append(orders.c.created_at > created_after)
        if expires_before is not None:
            bounds.append(orders.c.expires_at < expires_before)
        if created_after is not None and expires_before is not None:
            bounds.append(orders.c.expires_at > created_after)  # as every deadline of these is
        if after is not None:
            last = sa.tuple_(sa.literal(after.at, Instant), sa.literal(after.id, orders.c.id.type))
            bounds.append(sa.tuple_(moment, orders.c.id) < last)
        pages = [
            sa.select(orders)
            .where(*bounds, orders.c.status == one)
            .order_by(moment.desc(), orders.c.id.desc())
            .limit(p("page_size"))
            .subquery()
            for one in ([status] if status else OrderStatus)
        ]
        found = sa.union_all(*map(sa.select, pages)).subquery()
        query = (
            sa.select(found)
            .order_by(found.c[moment.name].desc(), found.c.id.desc())
            .limit(p("page_size"))
        )
        rows = self._run(query, for_customer=customer_id, page_size=page_size)
        return self._orders(rows.all())

    def _orders(self, rows: Sequence[sa.Row[Any]]) -> list[Order]:
        items: dict[str, list[sa.Row[Any]]] = {row.id: [] for row in rows}
        for item in self._run(GET_ITEMS, ids=list(items)):
            items[item.order_id].append(item)
        return [_order(row, items[row.id]) for row in rows]

    def unpaid(
        self, after_ms: int | None, before_ms: int, page_size: int, last: Waiting | None
    ) -> list[Waiting]:
        """A page of unpaid orders whose deadline is within bounds from now, soonest first."""
        values = {"before_ms": before_ms, "page_size": page_size, **FIRST_PAGE}
        if last is not None:
            values |= {"last_expires_at": last.expires_at, "last_id": last.id}
        if after_ms is None:
            rows = self._run(UNPAID_UNTIL, **values)
        else:
            rows = self._run(UNPAID_BETWEEN, **values, after_ms=after_ms)
        return [Waiting(row.id, row.expires_at, row.ms) for row in rows]

    # -- payments --

    def add_payment(
        self,
        order_id: str,
        customer_id: str,
        *,
        provider: str,
        reference: str,
        amount_minor: int,
        currency: str,
    ) -> Payment | None:
        """Note a payment as applied; None for a known reference, or when there is no such order."""
        row = self._run(
            ADD_PAYMENT,
            id=new_id(),
            for_id=order_id,
            for_customer=customer_id,
            provider=provider,
            reference=reference,
            amount_minor=amount_minor,
            currency=currency,
            status=PaymentStatus.APPLIED,
        ).one_or_none()
        return None if row is None else _payment(row)

    def payment(self, provider: str, reference: str) -> Payment:
        """The payment of a reference that was noted before."""
        return _payment(
            self._run(GET_PAYMENT, for_provider=provider, for_reference=reference).one()
        )

    def owe(self, payment: Payment, reason: str) -> Payment:
        """Mark a payment as due back."""
        return _payment(self._run(OWE_PAYMENT, for_id=payment.id, reason=reason).one())

    # -- events --

    def add_event(self, order_id: str, kind: str, data: Mapping[str, Any]) -> None:
        """Write an event for an order of this transaction."""
        self._run(ADD_EVENT, order_id=order_id, type=kind, data=dict(data))

    def add_events(self, order_ids: Sequence[str], kind: str, data: Mapping[str, Any]) -> None:
        """Write one event for each order."""
        self._run(ADD_EVENTS, ids=order_ids, type=kind, data=dict(data))

    def events(self, order_id: str, after_id: int, page_size: int) -> list[Event]:
        """An order's events, oldest first."""
        rows = self._run(LIST_EVENTS, for_id=order_id, after_id=after_id, page_size=page_size)
        return [Event(row.id, row.type, row.at, row.data) for row in rows]

    # -- clients and schema --

    def add_client(self, name: str, secret_hash: str, scopes: Sequence[str]) -> str | None:
        """Insert an API client; its id, or None when the name is taken."""
        return self._run(
            ADD_CLIENT, id=new_id(), name=name, secret_hash=secret_hash, scopes=" ".join(scopes)
        ).scalar_one_or_none()

    def client(self, client_id: str) -> tuple[Client, str] | None:
        """An API client, and the hash of its secret."""
        row = self._run(GET_CLIENT, for_id=client_id).one_or_none()
        if row is None:
            return None
        return Client(row.id, row.name, frozenset(row.scopes.split())), row.secret_hash

    def state(self) -> State:
        """The schema's revision, "" when there is none, and whether the database is read-only."""
        row = self._run(GET_STATE).one_or_none()
        return State("", read_only=False) if row is None else State(row.revision, row.read_only)


def _stock_item(row: sa.Row[Any]) -> StockItem:
    return StockItem(row.sku, row.on_hand, row.reserved, row.price_minor, row.currency)


def _order(row: sa.Row[Any], items: Sequence[sa.Row[Any]]) -> Order:
    return Order(
        id=row.id,
        status=OrderStatus(row.status),
        currency=row.currency,
        total_minor=row.total_minor,
        items=tuple(
            Item(item.sku, item.quantity, item.unit_price_minor)
            for item in sorted(items, key=lambda item: str(item.sku))
        ),
        created_at=row.created_at,
        expires_at=row.expires_at,
        paid_at=row.paid_at,
        cancelled_at=row.cancelled_at,
        cancel_reason=row.cancel_reason,
        version=row.version,
    )


def _payment(row: sa.Row[Any]) -> Payment:
    return Payment(
        id=row.id,
        order_id=row.order_id,
        provider=row.provider,
        reference=row.reference,
        amount_minor=row.amount_minor,
        currency=row.currency,
        status=PaymentStatus(row.status),
        reason=row.reason,
        created_at=row.created_at,
    )
