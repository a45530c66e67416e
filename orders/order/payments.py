"""Payments once they are recorded, and their refunds."""

from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.db.acting import KEY_ID
from orders.db.errors import retried
from orders.db.files import Statement
from orders.db.statements import one
from orders.errors import (
    AlreadyRefunded,
    PaymentNotFound,
    ReferenceReused,
    RefundTooLarge,
    WrongCurrency,
)
from orders.hooks import Hooks
from orders.order.domain import EventType, Payment
from orders.order.reads import Reads
from orders.order.rows import PAYMENT, SQL


class PaymentResult(NamedTuple):
    """A payment, and whether it, or its refund, had been recorded before."""

    payment: Payment
    replayed: bool


class Payments(Reads):
    def __init__(self, engine: sa.Engine, hooks: Hooks | None = None) -> None:
        super().__init__(engine)
        self._hooks = hooks or Hooks()

    def _write(
        self, sql: sa.Connection, statement: Statement, **values: Any
    ) -> tuple[list[sa.Row[Any]], float]:
        """Run a statement that writes events of a client, and tell who waits for that. Returns its rows, and when
        they came, before anybody was told: on the monotonic clock.
        """
        rows, answered_at = [*statement(sql, **values, key_id=KEY_ID.get())], monotonic()
        if rows:
            self._hooks.tell([values["client_id"]], sql)
        return rows, answered_at

    def refund(
        self,
        client_id: str,
        payment_id: str,
        reference: str,
        amount_minor: int | None = None,
        currency: str | None = None,
        *,
        is_reported: bool = False,
    ) -> PaymentResult:
        """Record a refund, of all that is left if it has no amount, once for each of its provider's references.

        One that has failed is not made good by the provider's report of it that comes later; by hand, its
        reference is refused. Raises PaymentNotFound, ReferenceReused, WrongCurrency, AlreadyRefunded, RefundTooLarge.
        """
        named = {"client_id": client_id, "payment_id": payment_id, "reference": reference}
        statements, of = (SQL.refund, SQL.find_refund), (amount_minor, currency)
        return self._enter(EventType.REFUNDED, statements, named, of, is_reported=is_reported)

    @retried
    def _enter(
        self,
        event: EventType,
        statements: tuple[Statement, Statement],
        named: Mapping[str, str],
        of: tuple[int | None, str | None],
        *,
        is_reported: bool = True,
    ) -> PaymentResult:
        """Run the first of these statements; if it recorded nothing, the second finds what was recorded before."""
        (enter, find), (amount, currency) = statements, of
        own = {"id": named["payment_id"], "client_id": named["client_id"]}
        with self._autocommit() as sql:
            new, _ = self._write(sql, enter, **named, amount=amount, currency=currency)
            known = None if new else find(sql, **named).one_or_none()
            # Last: whoever sees the payment has seen its entries.
            payment = one(PAYMENT, SQL.get_payment(sql, **own))
        if payment is None:
            raise PaymentNotFound
        if new:
            self._hooks.observe(event)
            return PaymentResult(payment, replayed=False)
        if known is None:
            if currency not in (None, payment.currency):
                raise WrongCurrency(f"It was paid in {payment.currency}.")
            refunded = payment.refunded_minor if event is EventType.REFUNDED else 0
            if not (left := payment.amount_minor - refunded):
                raise AlreadyRefunded
            raise RefundTooLarge(f"{left} of {payment.amount_minor} are left.")
        given = (amount or known.amount_minor, currency or payment.currency)
        same = given == (known.amount_minor, payment.currency)
        # Of a refund that has failed since, only its provider's report may come once more.
        if payment.id != known.payment_id or not (is_reported if known.failed_at else same):
            raise ReferenceReused
        return PaymentResult(payment, replayed=True)
