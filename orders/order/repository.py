"""The SQL statements on orders, payments and events, each with a name and a sentence.

Those of several steps are in `orders.order.operations`, and in ``sql/``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.errors import (
    KeyInFlight,
    KeyReused,
    MixedCurrencies,
    OrderError,
    OrderNotFound,
    OutOfStock,
    TotalTooLarge,
    UnknownSku,
)
from orders.order import details, entries, operations
from orders.order.domain import (
    CancelledOrder,
    Entry,
    EventType,
    Item,
    NewOrder,
    Order,
    OrderEvent,
    OrderStatus,
    Payment,
    PaymentStatus,
    RefundsDue,
)
from orders.order.limits import Unpaid
from orders.order.operations import OWN_PAYMENT, WITH_KEY
from orders.order.origin import Origin
from orders.order.sparing import spared
from orders.order.states import (
    ITEMS,
    client_of,
    ended_state,
    listed,
    placed,
    refunded_minor,
    state_of,
    unpaid_state,
    with_items,
    with_placed,
)
from orders.sql.acting import KEY_ID
from orders.sql.errors import waited_for
from orders.sql.expressions import Id, Instant, ms_until, now
from orders.sql.files import Room
from orders.sql.ids import array_of, new_id, random_part
from orders.sql.statements import FIRST, Position, Statements, made_of, oldest_first
from orders.sql.steps import Operation
from orders.sql.tables import (
    REFUND_DUE,
    TERMINAL,
    order_events,
    orders,
    payment_entries,
    payments,
    unpaid_orders,
)
from orders.stock.domain import MAX_MINOR

p = sa.bindparam
SQL = Room("orders.order")
PAYMENT = made_of(Payment, status=PaymentStatus)


class Known(NamedTuple):
    """What an idempotency key was used for before: the order as it was placed."""

    fingerprint: str
    order: Order

    def is_for(self, fingerprint: str, quantities: Mapping[str, int]) -> bool:
        """Whether this was the same request. If another version made the fingerprint, or if it was
        erased, the items decide.
        """
        if self.fingerprint.rpartition(":")[0] == fingerprint.rpartition(":")[0]:
            return self.fingerprint == fingerprint
        return {item.sku: item.quantity for item in self.order.items} == dict(quantities)


class Extended(NamedTuple):
    """An order whose deadline was moved, and the milliseconds until then."""

    order: Order
    expires_in_ms: int


class Expired(NamedTuple):
    """How many of a batch of orders were cancelled, and those that are still unpaid."""

    cancelled: int
    #: Each that was cancelled, if asked for.
    details: list[CancelledOrder]
    #: In how many milliseconds to look at each again; 0 or less if it was skipped because it is locked.
    unpaid: dict[str, float]


_of_id = p("for_id", type_=Id)
_state = sa.union_all(
    unpaid_state().where(unpaid_orders.c.order_id == _of_id),
    ended_state().where(order_events.c.order_id == _of_id, TERMINAL),
).subquery("state")
_state_columns = (each for each in _state.c if each.name != "order_id")
# Not `with_items`: that is for many orders, and takes longer for one.
_order = sa.select(
    orders,
    *_state_columns,
    refunded_minor(_state.c.ending, orders.c.id),
    client_of(orders.c.client_id),
    ITEMS,
).select_from(orders.join(_state, sa.true()))
_client = sa.func.coalesce(p("for_client", type_=Id), orders.c.client_id)
# One order of one client, or of any if none is given.
GET_ORDER = Operation(lambda _: _order.where(orders.c.id == _of_id, orders.c.client_id == _client))
# The order that was placed with a key, as it was placed.
GET_PLACED_WITH_KEY = Operation(lambda _: placed(*WITH_KEY))
_unpaid = (
    sa.select(unpaid_orders.c.pieces)
    .where(unpaid_orders.c.client_id == p("for_client"))
    .limit(p("most"))
    .subquery()
)
# How many unpaid orders a client has, up to a number, and the pieces that those reserve.
COUNT_UNPAID = sa.select(
    sa.func.count().label("unpaid"),
    sa.cast(sa.func.coalesce(sa.func.sum(_unpaid.c.pieces), 0), sa.BigInteger).label("pieces"),
).select_from(_unpaid)
# An order's events, oldest first, from a page's end on.
LIST_EVENTS = with_placed(
    sa.select(order_events)
    .where(order_events.c.order_id == p("for_id"), order_events.c.id > p("after_id"))
    .order_by(order_events.c.id)
    .limit(p("page_size"))
)

# The payment that a client's provider knows by this reference.
GET_PAYMENT = sa.select(payments).where(
    payments.c.client_id == p("for_client"),
    payments.c.provider == p("for_provider"),
    payments.c.reference == p("for_reference"),
)

# The refund or dispute that a client's provider knows by this reference.
GET_ENTRY = sa.select(payment_entries).where(
    payment_entries.c.client_id == p("for_client"),
    payment_entries.c.provider == p("for_provider"),
    payment_entries.c.kind == p("for_kind"),
    payment_entries.c.reference == p("for_reference"),
)

# One payment of one client.
GET_OWN_PAYMENT = sa.select(payments).where(*OWN_PAYMENT)
_payments = oldest_first(sa.select(payments), payments.c.created_at, payments.c.id)
# A client's payments of one status, oldest first, from a page's end on.
LIST_PAYMENTS = _payments.where(
    payments.c.client_id == p("for_client"), payments.c.status == p("for_status")
)
# An order's payments, likewise, of any client.
LIST_PAYMENTS_OF_ORDER = _payments.where(payments.c.order_id == p("for_order"))

# The deadline that passed longest ago, of an unpaid order that nothing spares.
OLDEST_OVERDUE = (
    sa.select(ms_until(unpaid_orders.c.expires_at).label("ms"))
    .where(unpaid_orders.c.expires_at <= now(), ~spared(unpaid_orders))
    .order_by(unpaid_orders.c.expires_at, unpaid_orders.c.order_id)
    .limit(1)
)
_some_due = (
    sa.select(
        payments.c.currency,
        (payments.c.amount_minor - payments.c.refunded_minor).label("amount_minor"),
        payments.c.created_at,
    )
    # The bound is for planners: with it they search the index instead of reading all of it.
    .where(payments.c.status == REFUND_DUE, payments.c.created_at > sa.literal(FIRST.at, Instant))
    .order_by(payments.c.created_at, payments.c.id)
    .limit(p("most"))
    .subquery()
)
# What is due back in each currency, of the oldest payments up to a number.
SUM_REFUNDS_DUE = sa.select(
    _some_due.c.currency,
    sa.func.count().label("payments"),
    sa.cast(sa.func.sum(_some_due.c.amount_minor), sa.BigInteger).label("amount_minor"),
    ms_until(sa.func.min(_some_due.c.created_at)).label("ms"),
).group_by(_some_due.c.currency)


#: After any order.
LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
# A page of all clients' orders, newest first.
_last_id = p("last_id", type_=orders.c.id.type)
_all = listed(
    unpaid_state().where(unpaid_orders.c.order_id < _last_id),
    ended_state().where(order_events.c.order_id < _last_id, TERMINAL),
    by=["order_id"],
)
LIST_ALL_ORDERS = with_items(_all.cte("page")).order_by(orders.c.id.desc())


class OrderRepository(Statements):
    """The statements, on one connection."""

    def __init__(
        self,
        connection: sa.Connection,
        *,
        reminders: bool = False,
        send: Callable[[Iterable[str]], object] = lambda _: None,
    ) -> None:
        """``reminders`` says whether webhooks remind of deadlines; ``send`` gets the webhook
        deliveries that a statement made, once it is done: committed by itself, as a rule.
        """
        super().__init__(connection)
        self._reminders = reminders
        self._send = send

    def _do(self, operation: Operation, **values: Any) -> Sequence[sa.Row[Any]]:
        """Run an operation, and send the webhook deliveries that it made."""
        rows = self.do(operation, **values, by_key=KEY_ID.get())
        self._send((rows[0].deliveries if rows else None) or ())
        return rows

    # -- orders --

    def place(
        self, new: NewOrder, timeout_ms: int, bounds_ms: tuple[int, int] | None = None
    ) -> Order:
        """Place an order.

        With bounds, the timeout is only the default: the shortest of its SKUs' timeouts counts.

        Raises KeyReused when its key was used before; UnknownSku, OutOfStock, MixedCurrencies and
        TotalTooLarge whether or not it was; KeyInFlight when another request is still using it.
        """
        try:
            rows = self._do(
                operations.place,
                for_random=random_part(),
                for_client=new.client_id,
                for_key=new.key,
                for_fingerprint=new.fingerprint,
                for_ms=timeout_ms,
                for_min_ms=bounds_ms and bounds_ms[0],
                for_max_ms=bounds_ms and bounds_ms[1],
                for_reference=new.client_reference,
                for_metadata=new.metadata,
                for_origin=str(new.origin) or None,
                quantities=new.quantities,
                skus=len(new.quantities),
                reminders=self._reminders,
            )
        except sa.exc.OperationalError as error:
            if waited_for(error, orders.name):
                raise KeyInFlight from error
            raise
        if not rows or rows[0].order_id is None:
            raise _refusal(new.quantities, rows)
        prices = {row.sku: row.price_minor for row in rows}
        placed = rows[0]
        order = Order(
            id=placed.order_id,
            status=OrderStatus.UNPAID,
            currency=placed.currency,
            total_minor=int(placed.total),
            items=tuple(Item(sku, n, prices[sku]) for sku, n in sorted(new.quantities.items())),
            created_at=placed.created_at,
            expires_at=placed.created_at + timedelta(milliseconds=placed.timeout_ms),
            client=placed.client,
            client_reference=new.client_reference,
            metadata=new.metadata,
        )
        return _paid_if_free(order)

    def known(self, client_id: str, key: str) -> Known | None:
        """What a key was used for before."""
        rows = self.do(GET_PLACED_WITH_KEY, for_client=client_id, for_key=key)
        return Known(rows[0].fingerprint, as_placed(rows[0])) if rows else None

    def expire(
        self,
        order_ids: Sequence[str],
        *,
        in_detail: bool = False,
        not_after: datetime | None = None,
    ) -> Expired:
        """Cancel the orders that are unpaid past their deadline, if that is not after a moment."""
        values = {"ids": array_of(order_ids), "not_after": not_after, "in_detail": in_detail}
        kinds: dict[str, list[sa.Row[Any]]] = defaultdict(list)
        for row in SQL.expire(self.connection, **values):
            kinds[row.kind].append(row)
        self._send(row.id for row in kinds["delivery"])
        cancelled = [
            CancelledOrder(row.id, row.ms, Origin.parse(row.origin))
            for row in (kinds["cancelled"] if in_detail else ())
        ]
        unpaid = {row.id: row.ms for row in kinds["unpaid"]}
        return Expired(len(kinds["cancelled"]), cancelled, unpaid)

    def cancel(self, order_id: str, client_id: str) -> Order | None:
        """Cancel an unpaid order; None if there is none."""
        rows = self._do(operations.cancel, for_id=order_id, for_client=client_id)
        return order_of(rows[0]) if rows else None

    def extend(
        self,
        order_id: str,
        client_id: str,
        *,
        versions: str,
        expires_at: datetime,
        bounds_ms: tuple[int, int],
        kept_ms: int,
    ) -> Extended | None:
        """Move the deadline of an unpaid order that has one of these versions; None if there is
        none.

        ``versions`` has each between spaces, or is "*" for any. Attempts may keep it for ``kept_ms``
        past its deadline.
        """
        rows = self._do(
            operations.extend,
            for_id=order_id,
            for_client=client_id,
            for_versions=versions,
            for_deadline=expires_at,
            for_min_ms=bounds_ms[0],
            for_max_ms=bounds_ms[1],
            for_most_ms=kept_ms,
            reminders=self._reminders,
        )
        return Extended(order_of(rows[0]), rows[0].ms) if rows else None

    def describe(
        self, order_id: str, client_id: str, changes: Mapping[str, Any], versions: str
    ) -> bool:
        """Change what ``changes`` has of an order's details; whether it has one of these versions, given
        as to `extend`.

        For a transaction: what was written about the order while it was waited for is seen by the last
        statement. Raises ValueError for what is no detail.
        """
        if unknown := changes.keys() - details.NO_DETAILS:
            raise ValueError(f"not among {details.DETAILS}: {unknown}")
        given: dict[str, Any] = {"for_versions": versions}
        for name in details.DETAILS:
            given |= {f"has_{name}": name in changes, f"for_{name}": changes.get(name)}
        own = {"for_id": order_id, "for_client": client_id}
        changed = any(self.do(details.describe, **own, **given) for _ in range(2))
        if changed:
            self.run(details.FORGET_SENT, for_id=order_id)
        return changed

    def order(self, order_id: str, client_id: str | None) -> Order | None:
        """An order of one client, or of any."""
        rows = self.do(GET_ORDER, for_id=order_id, for_client=client_id)
        return order_of(rows[0]) if rows else None

    def check(self, order_id: str, client_id: str | None) -> None:
        """Raises OrderNotFound for an order that is not there, after reading what belongs to it: they are
        deleted together, so if it is there, all of that was.
        """
        if self.order(order_id, client_id) is None:
            raise OrderNotFound

    def unpaid(self, client_id: str, most: int) -> Unpaid:
        """How many unpaid orders a client has, and what they reserve; counts ``most`` orders at most."""
        row = self.run(COUNT_UNPAID, for_client=client_id, most=most).one()
        return Unpaid(row.unpaid, row.pieces)

    # -- payments --

    def pay(
        self,
        order_id: str,
        client_id: str,
        *,
        provider: str,
        reference: str,
        amount_minor: int,
        currency: str,
        paid_at: datetime | None = None,
    ) -> Payment | None:
        """Record a payment, and the order as paid if it is good; None if the reference is known, or
        the provider is not.

        Raises OrderNotFound.
        """
        rows = self._pay(
            payment_id=new_id(),
            for_id=order_id,
            for_client=client_id,
            for_provider=provider,
            for_reference=reference,
            for_amount=amount_minor,
            for_currency=currency,
            for_paid_at=paid_at,
        )
        if not rows:
            raise OrderNotFound
        return None if rows[0].id is None else PAYMENT(rows[0])

    def _pay(self, **values: Any) -> Sequence[sa.Row[Any]]:
        rows = self._do(operations.pay, **values, for_neither="lost")
        if rows and rows[0].lost:
            rows = self._do(operations.pay, **values, for_neither="already_paid")
        return rows

    def payment(self, client_id: str, provider: str, reference: str) -> Payment | None:
        """The payment that a provider knows by this reference."""
        values = {"for_client": client_id, "for_provider": provider}
        return self.one(PAYMENT, GET_PAYMENT, **values, for_reference=reference)

    def own_payment(self, payment_id: str, client_id: str) -> Payment | None:
        return self.one(PAYMENT, GET_OWN_PAYMENT, for_id=payment_id, for_client=client_id)

    def payments_of_order(
        self, order_id: str, *, page_size: int, after: Position | None
    ) -> list[Payment]:
        """An order's payments, oldest first."""
        return self.page(PAYMENT, LIST_PAYMENTS_OF_ORDER, page_size, after, for_order=order_id)

    def enter(self, entry: Entry, payment_id: str, client_id: str) -> bool:
        """Record a refund, its failure, or a dispute; whether it was recorded."""
        rows = self._do(
            entries.fail if entry.kind == "failed" else entries.enter,
            for_id=payment_id,
            for_client=client_id,
            for_amount=entry.amount_minor,
            for_currency=entry.currency,
            **_named(entry),
        )
        return bool(rows)

    def known_entry(self, entry: Entry, of: Payment, client_id: str) -> sa.Row[Any] | None:
        """What was recorded before under the same reference."""
        return self.run(
            GET_ENTRY,
            for_client=client_id,
            for_provider=of.provider,
            **_named(entry),
        ).one_or_none()

    # -- for metrics --

    def oldest_overdue_ms(self) -> int:
        """How long the oldest overdue order has been overdue; 0 if none is."""
        row = self.run(OLDEST_OVERDUE).one_or_none()
        return 0 if row is None else -row.ms

    def refunds_due(self, most: int) -> list[RefundsDue]:
        """What has to be refunded, by currency, of the oldest payments up to a number."""
        return [
            RefundsDue(row.currency, row.payments, row.amount_minor, max(0, -row.ms))
            for row in self.run(SUM_REFUNDS_DUE, most=most)
        ]

    # -- events --

    def events(self, order_id: str, after_id: int, page_size: int) -> list[OrderEvent]:
        """An order's events, oldest first."""
        values = {"for_id": order_id, "after_id": after_id, "page_size": page_size}
        return [
            OrderEvent(row.sequence, EventType(row.type), row.at, data_of(row), row.key_id)
            for row in self.run(LIST_EVENTS, **values)
        ]


def _named(entry: Entry) -> dict[str, str]:
    """What an entry is known by. The failure of a refund is noted with the refund."""
    kind = "refund" if entry.kind == "failed" else entry.kind
    return {"for_kind": kind, "for_reference": entry.reference}


def order_of(row: sa.Row[Any]) -> Order:
    return Order(**_fixed(row), **state_of(row))


def as_placed(row: sa.Row[Any]) -> Order:
    """An order as it was placed."""
    expires_at = row.created_at + timedelta(milliseconds=row.timeout_ms)
    return _paid_if_free(Order(**_fixed(row), status=OrderStatus.UNPAID, expires_at=expires_at))


def data_of(event: sa.Row[Any]) -> Mapping[str, Any] | Order:
    """The details of an event that `with_placed` found; of the first one, the order as it was placed."""
    data: Mapping[str, Any] = event.data
    return as_placed(event) if event.type == EventType.CREATED else data


def _fixed(row: sa.Row[Any]) -> dict[str, Any]:
    """The fields of an order that never change."""
    return {
        "id": row.id,
        "currency": row.currency,
        "total_minor": row.total_minor,
        "items": tuple(sorted((Item(**each) for each in row.items), key=attrgetter("sku"))),
        "created_at": row.created_at,
        "client": row.client,
        "client_reference": row.client_reference,
        "metadata": row.metadata,
    }


def _paid_if_free(placed: Order) -> Order:
    """An order that costs nothing is paid when it is placed."""
    if placed.total_minor:
        return placed
    return replace(placed, status=OrderStatus.PAID, paid_at=placed.created_at)


def _refusal(quantities: Mapping[str, int], rows: Sequence[sa.Row[Any]]) -> OrderError:
    """Why `operations.place` placed nothing, with the first SKU that cannot be had."""
    lines = {row.sku: row for row in rows}
    for sku in sorted(quantities):
        if sku not in lines:
            return UnknownSku(sku, sku=sku)
        if (spare := lines[sku].spare) < 0:
            return OutOfStock(sku, sku=sku, available=spare + quantities[sku])
    match rows[0].refusal:
        case "mixed_currencies":
            return MixedCurrencies(
                f"These have {', '.join(sorted({row.currency for row in rows}))}."
            )
        case "total_too_large":
            return TotalTooLarge(f"It may be {MAX_MINOR} at most.")
    return KeyReused()


def read_order(connection: sa.Connection, order_id: str, client_id: str) -> Order | None:
    """One order of one client, for contexts that know no statement of this one."""
    return OrderRepository(connection).order(order_id, client_id)
