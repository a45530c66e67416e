"""What is read of orders, of one client or of all."""

from datetime import datetime

from orders.errors import OrderNotFound
from orders.order.domain import Order, OrderEvent
from orders.order.repository import LAST_ID, LIST_ALL_ORDERS, OrderRepository, order_of
from orders.order.states import list_orders
from orders.sql.ids import first_id_after, first_id_from
from orders.sql.statements import Position
from orders.sql.transactions import Transactional


class Reads(Transactional[OrderRepository]):
    _repository = OrderRepository

    def order(self, client_id: str | None, order_id: str) -> Order:
        """An order of one client, or of any. Raises OrderNotFound, also for another client's order."""
        with self._reading() as repository:
            order = repository.order(order_id, client_id)
        if order is None:
            raise OrderNotFound
        return order

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
        """A client's orders: newest first, or with ``expires_before`` latest deadline first.

        ``expires_before`` goes with neither ``created_before`` nor ``client_reference``.
        """
        bounds = {
            "created_after": created_after,
            "created_before": created_before,
            "expires_before": expires_before,
            "client_reference": client_reference,
            "last": after,
        }
        query = list_orders(status, frozenset(name for name in bounds if bounds[name] is not None))
        with self._reading() as sql:
            rows = sql.do(
                query,
                for_client=client_id,
                page_size=page_size,
                first_id=created_after and first_id_after(created_after),
                before_id=created_before and first_id_from(created_before),
                after=created_after,
                before=expires_before,
                reference=client_reference,
                last_at=after and after.at,
                last_id=after and after.id,
            )
        return [order_of(row) for row in rows]

    def all_orders(self, *, page_size: int, after: Position | None = None) -> list[Order]:
        """All clients' orders, newest first."""
        last_id = LAST_ID if after is None else after.id
        with self._reading() as sql:
            found = sql.run(LIST_ALL_ORDERS, last_id=last_id, page_size=page_size)
            return [order_of(row) for row in found]

    def events(
        self, client_id: str | None, order_id: str, *, after_id: int, page_size: int
    ) -> list[OrderEvent]:
        """What happened to an order, oldest first. Raises OrderNotFound."""
        with self._reading() as repository:
            found = repository.events(order_id, after_id, page_size)
            repository.check(order_id, client_id)
            return found
