"""What is known of payments once they are recorded, and what follows them: refunds and disputes."""

from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sa

from orders.errors import (
    AlreadyRefunded,
    OrderError,
    PaymentNotFound,
    ReferenceReused,
    RefundTooLarge,
    WrongCurrency,
)
from orders.order.domain import Entry, EventType, Payment
from orders.order.ports import CheckScheduler, Observer, nobody
from orders.order.repository import GET_OWN_PAYMENT, LIST_PAYMENTS, PAYMENT, OrderRepository
from orders.sql.errors import retried
from orders.sql.statements import Position
from orders.sql.transactions import Transactional


class PaymentResult(NamedTuple):
    """A payment, and whether it, or its refund, had been recorded before."""

    payment: Payment
    replayed: bool


class Payments(Transactional[OrderRepository]):
    _repository = OrderRepository

    def __init__(
        self,
        engine: sa.Engine,
        scheduler: CheckScheduler,
        *,
        webhooks: CheckScheduler | None = None,
        reminders: bool = False,
        observe: Observer = nobody,
    ) -> None:
        """``webhooks`` schedules deliveries; ``reminders`` says whether deadlines have reminders."""
        super().__init__(engine)
        self._engine = engine
        self._scheduler = scheduler
        self._webhooks = webhooks
        self._reminders = reminders
        self._observe = observe

    def _opened(self, connection: sa.Connection) -> OrderRepository:
        return OrderRepository(connection, reminders=self._reminders, send=self._send)

    def _send(self, deliveries: Iterable[str]) -> None:
        if self._webhooks is not None:
            for delivery_id in deliveries:
                self._webhooks.schedule(delivery_id, delay_ms=0)

    def refund(
        self,
        client_id: str,
        payment_id: str,
        *,
        reference: str,
        amount_minor: int | None = None,
        currency: str | None = None,
    ) -> PaymentResult:
        """Record a refund that the provider has sent, with the provider's reference for it.

        Without an amount, it is of all that is left. Raises PaymentNotFound, ReferenceReused,
        WrongCurrency, AlreadyRefunded, RefundTooLarge.
        """
        return self.enter(client_id, payment_id, Entry(reference, amount_minor, currency))

    @retried
    def enter(
        self, client_id: str, payment_id: str, entry: Entry, *, reported: bool = False
    ) -> PaymentResult:
        """Record a refund, its failure, or a dispute, once for each reference. Raises as `refund` does.

        A refund that has failed is not made good by the provider's report of it that comes later; by hand, its
        reference is refused.
        """
        with self._autocommit() as repository:
            recorded = repository.enter(entry, payment_id, client_id)
            payment = repository.own_payment(payment_id, client_id)
            if payment is None:
                raise PaymentNotFound
            if not recorded:
                known = repository.known_entry(entry, payment, client_id)
                if known is None:
                    raise _refusal(entry, payment)
                given = (
                    entry.amount_minor or known.amount_minor,
                    entry.currency or payment.currency,
                )
                same = given == (known.amount_minor, payment.currency)
                # Of a refund that has failed since, only its provider's report may come once more.
                if payment.id != known.payment_id or not (reported if known.failed_at else same):
                    raise ReferenceReused
                return PaymentResult(payment, replayed=True)
        observed = {"refund": EventType.REFUNDED, "failed": EventType.REFUND_FAILED}
        self._observe(observed.get(entry.kind, EventType.DISPUTED))
        return PaymentResult(payment, replayed=False)

    def enter_by_reference(
        self, client_id: str, provider: str, payment_reference: str, entry: Entry
    ) -> PaymentResult:
        """`enter` what is about the payment that the provider knows by ``payment_reference``."""
        found = self.payments_with(client_id, provider, payment_reference)
        if not found:
            raise PaymentNotFound
        return self.enter(client_id, found[0].id, entry, reported=True)

    def payment(self, client_id: str, payment_id: str) -> Payment:
        """A client's own payment. Raises PaymentNotFound."""
        own = {"for_id": payment_id, "for_client": client_id}
        return self._one(PAYMENT, PaymentNotFound, GET_OWN_PAYMENT, **own)

    def payments_with(self, client_id: str, provider: str, reference: str) -> list[Payment]:
        """The payment that a client's provider knows by this reference, if there is one."""
        with self._reading() as repository:
            payment = repository.payment(client_id, provider, reference)
        return [] if payment is None else [payment]

    def payments(
        self, client_id: str, *, status: str, page_size: int, after: Position | None = None
    ) -> list[Payment]:
        """A client's payments of one status, oldest first."""
        values = {"for_client": client_id, "for_status": status}
        return self._page(PAYMENT, LIST_PAYMENTS, page_size, after, **values)

    def payments_of_order(
        self,
        client_id: str | None,
        order_id: str,
        *,
        page_size: int,
        after: Position | None = None,
    ) -> list[Payment]:
        """An order's payments, oldest first. Raises OrderNotFound."""
        with self._reading() as repository:
            found = repository.payments_of_order(order_id, page_size=page_size, after=after)
            repository.check(order_id, client_id)
            return found


def _refusal(entry: Entry, payment: Payment) -> OrderError:
    """Why a refund or a dispute was not recorded."""
    if entry.currency not in (None, payment.currency):
        return WrongCurrency(f"It was paid in {payment.currency}.")
    left = payment.amount_minor - (payment.refunded_minor if entry.kind == "refund" else 0)
    if not left:
        return AlreadyRefunded()
    return RefundTooLarge(f"{left} of {payment.amount_minor} are left.")
