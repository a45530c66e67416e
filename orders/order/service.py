"""What can be done with orders: one method, one transaction.

An order ends only by a conditional DELETE, and what it returns decides. Checks are scheduled after
the commit. If that fails, orders are still cancelled on time, because the sweep reads SQL itself.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.errors import (
    AlreadyPaid,
    KeyReused,
    OrderCancelled,
    OrderError,
    OrderNotFound,
    PreconditionFailed,
    ReferenceReused,
    StockBusy,
    TimeoutOutOfRange,
    UnknownProvider,
)
from orders.order.bulkhead import Bulkhead
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
from orders.order.limits import Admission, Unpaid, UnpaidLimits
from orders.order.payments import PaymentResult, Payments
from orders.order.ports import CheckScheduler, Observer, nobody
from orders.order.reads import Reads
from orders.sql.errors import retried
from orders.sql.schema import check_ready

#: Called after the commit with the orders that were cancelled. Does not raise.
Report = Callable[[Sequence[CancelledOrder]], None]


class Placed(NamedTuple):
    """An order as it was placed, and whether an earlier request placed it."""

    order: Order
    replayed: bool


def _expected(versions: frozenset[str] | None) -> str:
    """The decimal versions, each between spaces, as `OrderRepository.extend` takes them; "*" is any."""
    return "*" if versions is None else f" {' '.join(filter(str.isdecimal, versions))} "


class OrderService(Payments, Reads):
    def __init__(
        self,
        engine: sa.Engine,
        scheduler: CheckScheduler,
        timeouts: Timeouts,
        limits: UnpaidLimits = UnpaidLimits(),  # noqa: B008  it is frozen
        placing: Bulkhead | None = None,
        *,
        webhooks: CheckScheduler | None = None,
        reminders: bool = False,
        observe: Observer = nobody,
    ) -> None:
        super().__init__(engine, scheduler, webhooks=webhooks, reminders=reminders, observe=observe)
        self._timeouts = timeouts
        self._admission = Admission(limits, self._count_unpaid)
        #: One compartment per SKU, unlimited by default: while a SKU is locked, every thread that
        #: places an order for it waits in SQL.
        self._placing = placing or Bulkhead(sys.maxsize, StockBusy)

    # -- for clients -----------------------------------------------------------------------

    @retried
    def place(self, new: NewOrder) -> Placed:
        """Place an order and reserve its stock, once for each idempotency key.

        An order that costs nothing is paid at once.

        Raises TimeoutOutOfRange, TooManyUnpaidOrders, TooManyHeldPieces, UnknownSku, OutOfStock,
        MixedCurrencies, TotalTooLarge, KeyReused, KeyInFlight, StockBusy.
        """
        pieces = sum(new.quantities.values())
        with (
            # First, because an order that waits here must not occupy another client's place at a
            # SKU.
            self._admission.placing(new.client_id, pieces) as refusal,
            self._placing.enter(new.quantities),
            self._autocommit() as repository,
        ):
            try:
                timeout_ms = self._timeouts.ms(new.timeout_seconds)
                if refusal is not None:
                    raise refusal
                order = repository.place(
                    new, timeout_ms, None if new.timeout_seconds else self._timeouts.bounds_ms
                )
                placed_at = monotonic()
            except OrderError:
                # Whatever the reason, a known key gets its original response: the same request,
                # sent twice, may have taken the last of the stock.
                known = repository.known(new.client_id, new.key)
                if known is None:
                    raise
                if not known.is_for(new.fingerprint, new.quantities):
                    raise KeyReused from None
                return Placed(known.order, replayed=True)
        self._observe(EventType.CREATED)
        if order.status is OrderStatus.PAID:  # it costs nothing
            self._observe(EventType.PAID)
            return Placed(order, replayed=False)
        # A delay, so that the clocks of SQL and Redis need not agree. It counts from when SQL's
        # response arrived, which is after the order was created, so it is never too short.
        timeout = order.expires_at - order.created_at
        passed = timedelta(seconds=monotonic() - placed_at)
        self._scheduler.schedule(order.id, delay_ms=(timeout - passed) / timedelta(milliseconds=1))
        return Placed(order, replayed=False)

    def _count_unpaid(self, client_id: str, most_orders: int) -> Unpaid:
        with self._reading() as repository:
            return repository.unpaid(client_id, most_orders)

    @retried
    def extend(
        self,
        client_id: str,
        order_id: str,
        *,
        expires_at: datetime,
        versions: frozenset[str] | None,
    ) -> Order:
        """Move the deadline of an unpaid order, later or earlier, if it has one of these versions.

        None means any version. An overdue order that is not cancelled yet can still be extended.

        Raises OrderNotFound, AlreadyPaid, OrderCancelled, PreconditionFailed, TimeoutOutOfRange.
        """
        with self._autocommit() as repository:
            extended = repository.extend(
                order_id,
                client_id,
                versions=_expected(versions),
                expires_at=expires_at,
                bounds_ms=self._timeouts.bounds_ms,
                kept_ms=self._timeouts.kept_ms,
            )
            answered_at = monotonic()
            if extended is None:
                order = repository.order(order_id, client_id)
                raise self._not_extended(order, versions)
        # A check that comes early does no harm; one that comes late would.
        passed_ms = 1000 * (monotonic() - answered_at)
        self._scheduler.schedule(order_id, delay_ms=extended.expires_in_ms - passed_ms)
        return extended.order

    def _not_extended(self, order: Order | None, versions: frozenset[str] | None) -> OrderError:
        """Why an order's deadline was not moved."""
        if order is None:
            return OrderNotFound()
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
        self,
        client_id: str,
        order_id: str,
        changes: Mapping[str, Any],
        *,
        versions: frozenset[str] | None,
    ) -> Order:
        """Change details of an order that has one of these versions, and forget what was sent of it.

        None means any version. Raises OrderNotFound, PreconditionFailed.
        """
        with self._writing() as repository:
            changed = repository.describe(order_id, client_id, changes, _expected(versions))
            order = repository.order(order_id, client_id)
        if order is None:
            raise OrderNotFound
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

        A payment after the deadline is accepted as long as the order was not cancelled: its stock
        is still reserved. Raises OrderNotFound, ReferenceReused, UnknownProvider.
        """
        with self._autocommit() as repository:
            payment = repository.pay(
                order_id,
                client_id,
                provider=provider,
                reference=reference,
                amount_minor=amount_minor,
                currency=currency,
                paid_at=paid_at,
            )
            if payment is None:
                known = repository.payment(client_id, provider, reference)
                if known is None:
                    raise UnknownProvider
                same = (known.order_id, known.amount_minor, known.currency)
                if same != (order_id, amount_minor, currency):
                    raise ReferenceReused
                return PaymentResult(known, replayed=True)
        self._observe(f"payment.{payment.status}", payment.reason or "")
        if payment.status is PaymentStatus.APPLIED:
            self._observe(EventType.PAID)
            self._scheduler.cancel(order_id)
        return PaymentResult(payment, replayed=False)

    @retried
    def cancel(self, client_id: str, order_id: str) -> Order:
        """Cancel an unpaid order on request. A cancelled order stays as it is.

        Raises OrderNotFound, AlreadyPaid.
        """
        with self._autocommit() as repository:
            order = repository.cancel(order_id, client_id)
            was_open = order is not None
            if order is None:
                order = repository.order(order_id, client_id)
            if order is None:
                raise OrderNotFound
            if order.status is OrderStatus.PAID:
                raise AlreadyPaid
        if was_open:
            self._observe(EventType.CANCELLED, CancelReason.REQUESTED)
        self._scheduler.cancel(order_id)
        return order

    # -- for the worker --------------------------------------------------------------------

    def expire(
        self,
        connection: sa.Connection,
        order_ids: Sequence[str],
        report: Report | None = None,
        not_after: datetime | None = None,
    ) -> dict[str, float]:
        """Cancel the orders that are unpaid past their deadline: all of them, or none.

        In one statement, on a connection that commits it by itself. Releases exactly the stock that
        they reserved, and writes one event for each. Repeating it changes nothing. Returns, for each
        order that is still unpaid, in how many milliseconds to look at it again: when it expires or
        what keeps it ends, 0 or less if it was locked, most likely by a payment. ``report`` gets the
        cancelled orders. No deadline that is later than ``not_after`` has passed, whatever the
        database's clock says.
        """
        found = self._opened(connection).expire(
            order_ids, in_detail=report is not None, not_after=not_after
        )
        if report is not None:
            report(found.details)
        self._observe(EventType.CANCELLED, CancelReason.EXPIRED, found.cancelled)
        return found.unpaid

    def check_ready(self) -> None:
        """Raises what `orders.sql.schema.check_ready` raises."""
        check_ready(self._engine)
