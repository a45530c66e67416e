"""What can be done with orders: one method, one transaction.

An unpaid order ends only when its row in `unpaid_orders` is deleted. Checks are scheduled after the commit.
If that fails, orders are still cancelled on time, because the sweep reads SQL itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.db.errors import retried, waited_for
from orders.db.files import Statement
from orders.db.ids import array_of, new_id, random_part
from orders.db.statements import one
from orders.db.tables import orders
from orders.errors import (
    AlreadyPaid,
    KeyInFlight,
    KeyReused,
    NotAvailable,
    OrderCancelled,
    OrderError,
    OrderNotFound,
    PreconditionFailed,
    ReferenceReused,
    TimeoutOutOfRange,
    UnknownSku,
)
from orders.hooks import CheckScheduler, Hooks
from orders.order.domain import (
    CancelledOrder,
    CancelReason,
    EventType,
    NewOrder,
    Order,
    OrderStatus,
    PaymentStatus,
    Timeouts,
)
from orders.order.payments import PaymentResult, Payments
from orders.order.reads import Reads
from orders.order.rows import ORDER, PAYMENT, SQL, is_same, placed_order

#: The changes that erase what an order says that may be about a person.
NO_DETAILS = {column.name: None for column in orders.c if column.info.get("personal")}
#: Called after the commit with the orders that were cancelled. Does not raise.
Report = Callable[[Sequence[CancelledOrder]], None]
#: Those that an order may have; None: any.
Versions = list[str] | None


class Placed(NamedTuple):
    """An order as it was placed, and whether an earlier request placed it."""

    order: Order
    replayed: bool


class OrderService(Payments):
    def __init__(
        self,
        engine: sa.Engine,
        scheduler: CheckScheduler,
        timeouts: Timeouts,
        hooks: Hooks | None = None,
    ) -> None:
        super().__init__(engine, hooks)
        self._scheduler = scheduler
        self._timeouts = timeouts

    @retried
    def place(self, new: NewOrder) -> Placed:
        """Place an order and reserve its stock, once for each idempotency key. What costs nothing is paid at once.

        Raises TimeoutOutOfRange, UnknownSku, OutOfStock, MixedCurrencies, TotalTooLarge, KeyReused,
        KeyInFlight; what `Hooks.around_placing` raises.
        """
        try:
            order, placed_at = self._hooks.place(new, self._place)
        except NotAvailable:
            raise
        except OrderError as error:
            # Whatever the reason, a known key gets its original response: the same request,
            # sent twice, may have taken the last of the stock.
            if (known := self._placed_before(new)) is not None:
                return known
            if not isinstance(error, KeyReused | UnknownSku):
                raise
            # Its order may have been deleted since the key was found.
            order, placed_at = self._hooks.place(new, self._place)
        self._hooks.observe(EventType.CREATED)
        if order.status is OrderStatus.PAID:  # it costs nothing
            self._hooks.observe(EventType.PAID)
            return Placed(order, replayed=False)
        # A delay, so that the clocks of SQL and Redis need not agree. It counts from when SQL's
        # response arrived, which is after the order was created, so it is never too short.
        delay_ms = (order.expires_at - order.created_at) / timedelta(milliseconds=1)
        self._scheduler.schedule(order.id, delay_ms=delay_ms - 1000 * (monotonic() - placed_at))
        return Placed(order, replayed=False)

    def _place(self, new: NewOrder) -> tuple[Order, float]:
        timeout_ms = self._timeouts.ms(new.timeout_seconds)
        # Without a timeout of its own, its default: the shortest of its SKUs' timeouts counts.
        min_ms, max_ms = (None, None) if new.timeout_seconds else self._timeouts.bounds_ms
        of = ("client_id", "key", "fingerprint", *NO_DETAILS)
        values: dict[str, Any] = {name: getattr(new, name) for name in of}
        values["skus"] = [*new.quantities]
        values["quantities"] = array_of(map(str, new.quantities.values()))
        values |= {"timeout_ms": timeout_ms, "min_ms": min_ms, "max_ms": max_ms}
        with self._autocommit() as sql:
            try:
                rows, placed_at = self._write(sql, SQL.place, **values, random=random_part())
            except sa.exc.OperationalError as error:
                if waited_for(error, "orders"):
                    raise KeyInFlight from error
                raise
        return placed_order(new, rows), placed_at

    def _placed_before(self, new: NewOrder) -> Placed | None:
        """What the key placed. Raises KeyReused if that was another order."""
        with self._reading() as sql:
            placed = SQL.get_placed_with_key(sql, client_id=new.client_id, key=new.key)
            row = placed.one_or_none()
        if row is not None and not is_same(new, row.fingerprint, ORDER(row)):
            raise KeyReused
        return None if row is None else Placed(ORDER(row), replayed=True)

    def _change(
        self, sql: sa.Connection, statement: Statement, **values: Any
    ) -> tuple[list[sa.Row[Any]], float]:
        """`_write` to an existing order."""
        rows, answered_at = self._write(sql, statement, **values)
        if rows and rows[0].was_kept:
            for hook in self._hooks.after_change:
                hook(sql, values["order_id"])
        return rows, answered_at

    @retried
    def extend(
        self, client_id: str, order_id: str, *, expires_at: datetime, versions: Versions
    ) -> Order:
        """Move the deadline of an unpaid order, later or earlier, if it has one of these versions.

        An overdue order that is not cancelled yet can still be extended.
        Raises OrderNotFound, AlreadyPaid, OrderCancelled, PreconditionFailed, TimeoutOutOfRange.
        """
        values: dict[str, Any] = {"order_id": order_id, "client_id": client_id}
        values |= {"versions": versions, "expires_at": expires_at}
        values["min_ms"], values["max_ms"] = self._timeouts.bounds_ms
        values["kept_ms"] = self._timeouts.kept_ms
        with self._autocommit() as sql:
            rows, answered_at = self._change(sql, SQL.extend, **values)
            if not rows:
                raise self._not_extended(Reads(sql).order(client_id, order_id), versions)
        # A check that comes early does no harm; one that comes late would.
        passed_ms = 1000 * (monotonic() - answered_at)
        self._scheduler.schedule(order_id, delay_ms=rows[0].ms - passed_ms)
        return ORDER(rows[0])

    def _not_extended(self, order: Order, versions: Versions) -> OrderError:
        """Why an order's deadline was not moved."""
        if order.status is OrderStatus.PAID:
            return AlreadyPaid()
        if order.status is OrderStatus.CANCELLED:
            return OrderCancelled()
        if versions is not None and str(order.version) not in versions:
            return PreconditionFailed()
        return TimeoutOutOfRange(
            f"The deadline is {self._timeouts.bounds} after the order's creation, and not past."
        )

    @retried
    def describe(
        self, client_id: str, order_id: str, changes: Mapping[str, Any], *, versions: Versions
    ) -> Order:
        """Change details of an order that has one of these versions. Raises OrderNotFound, PreconditionFailed."""
        own = {"order_id": order_id, "client_id": client_id, "versions": versions}
        values = {**own, **NO_DETAILS, **changes, "given": [*changes]}
        with self._writing() as sql:
            # Twice for an order that ends meanwhile.
            changed = any(SQL.describe(sql, **values).first() for _ in range(2))
            order = Reads(sql).order(client_id, order_id)
        if not changed:
            raise PreconditionFailed
        return order

    @retried
    def pay(
        self,
        client_id: str,
        order_id: str,
        *,
        provider: str,
        reference: str,
        amount_minor: int,
        currency: str,
        paid_at: datetime | None = None,
    ) -> PaymentResult:
        """Report a payment: the order is paid, or the money is kept and marked for refund.

        A payment after the deadline is accepted as long as the order was not cancelled: its stock is still
        reserved. Raises what `Hooks.refusal` returned, unless the payment is known; OrderNotFound, ReferenceReused.
        """
        named = {"client_id": client_id, "provider": provider, "reference": reference}
        money = {"order_id": order_id, "amount_minor": amount_minor, "currency": currency}
        values = {**named, **money, "paid_at": paid_at, "payment_id": new_id()}
        refusal = self._hooks.refusal(client_id, provider)
        with self._autocommit() as sql:
            rows = [] if refusal else self._change(sql, SQL.pay, **values, otherwise="lost")[0]
            if rows and rows[0].lost:  # how the order ended is seen by the next statement
                rows, _ = self._change(sql, SQL.pay, **values, otherwise="already_paid")
            if not rows and not refusal:
                raise OrderNotFound
            if not rows or rows[0].id is None:
                known = one(PAYMENT, SQL.find_payment(sql, **named))
                if known is None:  # or it was deleted just now, with its order
                    raise refusal or OrderNotFound
                same = (known.order_id, known.amount_minor, known.currency)
                if same != (order_id, amount_minor, currency):
                    raise ReferenceReused
                return PaymentResult(known, replayed=True)
        payment = PAYMENT(rows[0])
        self._hooks.observe(f"payment.{payment.status}", payment.reason or "")
        if payment.status is PaymentStatus.APPLIED:
            self._hooks.observe(EventType.PAID)
            self._scheduler.cancel(order_id)
        return PaymentResult(payment, replayed=False)

    @retried
    def cancel(self, client_id: str, order_id: str) -> Order:
        """Cancel an unpaid order on request. A cancelled one stays as it is. Raises OrderNotFound, AlreadyPaid."""
        with self._autocommit() as sql:
            rows, _ = self._change(sql, SQL.cancel, order_id=order_id, client_id=client_id)
            order = ORDER(rows[0]) if rows else Reads(sql).order(client_id, order_id)
        if order.status is OrderStatus.PAID:
            raise AlreadyPaid
        if rows:
            self._hooks.observe(EventType.CANCELLED, CancelReason.REQUESTED)
        self._scheduler.cancel(order_id)
        return order

    def expire(
        self,
        connection: sa.Connection,
        order_ids: Sequence[str],
        report: Report | None = None,
        not_after: datetime | None = None,
    ) -> dict[str, float]:
        """Cancel the orders that are unpaid past their deadline: all of them, or none.

        In one statement, on a connection that commits it by itself. Returns, for each order that it left, in how
        many milliseconds to look at it again: see ``expire.sql``; inf if it is not unpaid. ``report`` gets the
        cancelled orders. No deadline later than ``not_after`` has passed, whatever the database's clock says.
        """
        ids, in_detail = array_of(order_ids), report is not None
        rows = SQL.expire(connection, ids=ids, not_after=not_after, in_detail=in_detail).all()
        cancelled = {row.id: row.number for row in rows if row.kind == "client"}
        self._hooks.tell(cancelled, connection)
        if report is not None:
            found = (row for row in rows if row.kind == "cancelled")
            report([CancelledOrder(row.id, row.number, row.origin) for row in found])
        self._hooks.observe(EventType.CANCELLED, CancelReason.EXPIRED, sum(cancelled.values()))
        left = {row.id: row.number for row in rows if row.kind == "left"}
        return {id_: math.inf if ms is None else ms for id_, ms in left.items()}
