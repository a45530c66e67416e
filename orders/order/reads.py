"""What is read of orders, of one client or of all."""

from dataclasses import replace
from typing import Any

from orders.errors import OrderNotFound
from orders.order.domain import EventType, Order, OrderEvent
from orders.order.repository import OrderRepository
from orders.sql.statements import Position
from orders.sql.transactions import Transactional


class Reads(Transactional[OrderRepository]):
    """Raises StorageUnavailable from every method while the database does not answer."""

    def order(self, client_id: str | None, order_id: str) -> Order:
        """An order of one client, or of any. Raises OrderNotFound, also for another client's order."""
        with self._reading() as repository:
            order = repository.order(order_id, client_id)
        if order is None:
            raise OrderNotFound
        return order

    def orders(self, client_id: str, *, page_size: int, **filters: Any) -> list[Order]:
        """A client's orders: newest first, or with ``expires_before`` latest deadline first.

        The filters, and ``after``, are those of `OrderRepository.orders`.
        """
        with self._reading() as repository:
            return repository.orders(client_id, page_size=page_size, **filters)

    def all_orders(self, *, page_size: int, after: Position | None = None) -> list[Order]:
        """All clients' orders, newest first."""
        with self._reading() as repository:
            return repository.all_orders(page_size=page_size, after=after)

    def events(
        self, client_id: str | None, order_id: str, *, after_id: int, page_size: int
    ) -> list[OrderEvent]:
        """What happened to an order, oldest first. Raises OrderNotFound."""
        with self._reading() as repository:
            placed = repository.order_as_placed(order_id, client_id)
            if placed is None:
                raise OrderNotFound
            return [
                replace(event, data=placed) if event.type is EventType.CREATED else event
                for event in repository.events(order_id, after_id, page_size)
            ]
