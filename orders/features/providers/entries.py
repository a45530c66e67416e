"""What providers report about payments that are recorded: refunds, that one failed, and disputes."""

from orders.errors import PaymentNotFound, ReferenceReused
from orders.features.providers.service import SQL
from orders.order.domain import EventType
from orders.order.payments import PaymentResult, Payments
from orders.order.rows import SQL as PAYMENTS


class Entries(Payments):
    def enter(
        self,
        client_id: str,
        provider: str,
        kind: str,
        *,
        payment_reference: str,
        reference: str,
        amount_minor: int | None = None,
        currency: str | None = None,
        order_id: str | None = None,
    ) -> PaymentResult:
        """Record a refund, that one has failed, or that a dispute was opened, won or lost, once for each reference.

        Without an amount, a dispute is of the whole payment. Raises what `refund` raises.
        """
        found = self.payments_with(client_id, provider, payment_reference)
        if not found:
            raise PaymentNotFound
        if order_id not in (None, found[0].order_id):
            raise ReferenceReused
        of = (amount_minor, currency)
        if kind == "refund":
            return self.refund(client_id, found[0].id, reference, *of, is_reported=True)
        named = {"client_id": client_id, "payment_id": found[0].id, "reference": reference}
        if kind == "failed":
            statements = (SQL.fail, PAYMENTS.find_refund)
            return self._enter(EventType.REFUND_FAILED, statements, named, of)
        statements = (SQL.dispute, SQL.find_dispute)
        return self._enter(EventType.DISPUTED, statements, {**named, "kind": kind}, of)
