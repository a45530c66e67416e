"""What is read of orders and payments, of one client or of all."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from orders.db.ids import first_id_after, first_id_from
from orders.db.statements import FIRST, LAST, Position, Service, as_it_is
from orders.errors import OrderNotFound, PaymentNotFound
from orders.order.domain import Order, OrderEvent, Payment
from orders.order.rows import EVENT, ORDER, PAYMENT, SQL

LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"  # after any order


class Reads(Service):
    def order(self, client_id: str | None, order_id: str) -> Order:
        """An order of one client, or of any. Raises OrderNotFound, also for another client's order."""
        own = {"id": order_id, "client_id": client_id}
        return self._one(ORDER, OrderNotFound, SQL.get_order, **own)

    def orders(
        self,
        client_id: str,
        *,
        page_size: int,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        expires_before: datetime | None = None,
        client_reference: str | None = None,
        after: Position | None = None,
    ) -> list[Order]:
        """A client's orders: newest first, or with ``expires_before``, which goes with neither ``created_before`` nor
        ``client_reference``, latest deadline first.
        """
        first_id = first_id_after(created_after) if created_after else FIRST.id
        values: dict[str, Any] = {"client_id": client_id, "status": status, "first_id": first_id}
        values["page_size"] = page_size
        if expires_before:
            before = min(after or LAST, Position(expires_before, FIRST.id))
            values |= {"after": created_after or FIRST.at, "before_at": before.at}
            return self._all(ORDER, SQL.list_by_deadline, **values, before_id=before.id)
        before_id = first_id_from(created_before) if created_before else LAST_ID
        values["before_id"] = min(after.id if after else LAST_ID, before_id)
        if client_reference is None:
            return self._all(ORDER, SQL.list_newest, **values)
        return self._all(ORDER, SQL.list_by_reference, **values, reference=client_reference)

    def all_orders(self, *, page_size: int, after: Position | None = None) -> list[Order]:
        """All clients' orders, newest first."""
        before_id = after.id if after else LAST_ID
        return self._all(ORDER, SQL.list_all, before_id=before_id, page_size=page_size)

    def events(
        self, client_id: str | None, order_id: str, *, after_id: int, page_size: int
    ) -> list[OrderEvent]:
        """What happened to an order, oldest first. Raises OrderNotFound."""
        values = {"order_id": order_id, "after_id": after_id, "page_size": page_size}
        found = self._all(EVENT, SQL.list_events, **values)
        self.order(client_id, order_id)  # last: they are deleted together, so all was there
        return found

    def payment(self, client_id: str, payment_id: str) -> Payment:
        """A client's own payment. Raises PaymentNotFound."""
        own = {"id": payment_id, "client_id": client_id}
        return self._one(PAYMENT, PaymentNotFound, SQL.get_payment, **own)

    def payments_with(self, client_id: str, provider: str, reference: str) -> list[Payment]:
        """The payment that a client's provider knows by this reference, if there is one."""
        values = {"client_id": client_id, "provider": provider, "reference": reference}
        return self._all(PAYMENT, SQL.find_payment, **values)

    def payments(
        self, client_id: str, *, status: str, page_size: int, after: Position | None = None
    ) -> list[Payment]:
        """A client's payments of one status, oldest first."""
        values = {"client_id": client_id, "status": status}
        return self._page(PAYMENT, SQL.list_payments, page_size, after, **values)

    def payments_of_order(
        self, client_id: str | None, order_id: str, *, page_size: int, after: Position | None = None
    ) -> list[Payment]:
        """An order's payments, oldest first. Raises OrderNotFound."""
        own = {"order_id": order_id}
        found = self._page(PAYMENT, SQL.list_payments_of_order, page_size, after, **own)
        self.order(client_id, order_id)
        return found

    def refunds_due(self, most: int) -> list[sa.Row[Any]]:
        """What has to be refunded, by currency, of the oldest payments up to a number."""
        return self._all(as_it_is, SQL.sum_refunds_due, most=most)
