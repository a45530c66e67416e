"""Orders and payments as the page shows them: bounded reads, on a connection of their own."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from orders.db.files import Room
from orders.db.ids import is_uuid
from orders.db.statements import Service
from orders.errors import OrderNotFound, PaymentNotFound, StorageUnavailable
from orders.feature import features
from orders.features.ops.timeline import timeline
from orders.features.parts import Step
from orders.hooks import Hooks
from orders.order.domain import Order
from orders.order.reads import Reads

SQL = Room("orders.features.ops")
T = TypeVar("T")
Rows = Sequence[sa.Row[Any]]

#: Counts stop here.
MOST_UNPAID, MOST_OVERDUE, MOST_REFUNDS = 10_000, 1000, 1000
#: The maximum lengths of the lists.
NEXT, LATEST, FOUND, LISTED = 12, 12, 20, 100


class ShownOrders(NamedTuple):
    """Counts and lists. What takes too long to read is None."""

    upcoming: Rows
    latest: Rows
    unpaid: int | None
    #: Which orders are overdue, the oldest first, and for how many ms.
    overdue: Rows | None
    #: Who may hold up cancellations: looked for only if orders are overdue.
    locked: Sequence[str]
    #: What is due back, by currency.
    refunds: Rows | None


class ShownRecords(Service):
    """Raises StorageUnavailable from every method but ``state`` while the database does not answer."""

    def __init__(self, engine: sa.Engine, hooks: Hooks) -> None:
        super().__init__(engine)
        self._hooks = hooks

    def state(self) -> ShownOrders | None:
        """None if the database does not answer, or has no schema yet."""
        lists = self._in_time(
            lambda sql: (
                SQL.list_next(sql, most=NEXT).all(),
                SQL.list_latest(sql, most=LATEST).all(),
            )
        )
        if lists is None:
            return None
        late = self._in_time(lambda sql: SQL.list_overdue(sql, most=MOST_OVERDUE).all())
        is_late = late is None or late
        return ShownOrders(
            *lists,
            unpaid=self._in_time(lambda sql: SQL.count_unpaid(sql, most=MOST_UNPAID).scalar_one()),
            overdue=None if late is None else sorted(late, key=lambda row: -row.ms),
            locked=(self._in_time(self._find_locked) if is_late else None) or (),
            refunds=self._in_time(lambda sql: Reads(sql).refunds_due(MOST_REFUNDS)),
        )

    def _find_locked(self, sql: sa.Connection) -> list[str]:
        return [str(each) for hook in self._hooks.locked for each in hook(sql)]

    def _in_time(self, read: Callable[[sa.Connection], T]) -> T | None:
        """What ``read`` returns; None if the database does not answer, or this takes too long while others succeed."""
        with suppress(StorageUnavailable, sa.exc.DBAPIError), self._reading() as sql:
            return read(sql)
        return None

    def list_refunds_due(self) -> Rows:
        """The oldest of all clients' payments that have to be refunded."""
        with self._reading() as sql:
            return SQL.list_refunds_due(sql, most=LISTED).all()

    def payer(self, payment_id: str) -> str:
        """The id of the client that a payment belongs to. Raises PaymentNotFound."""
        payer: str | None = self._value(SQL.get_payer, id=payment_id)
        if payer is None:
            raise PaymentNotFound
        return payer

    def find(self, text: str) -> Sequence[Any]:
        """Orders with this id or reference, newest first."""
        order_id = text.lower()
        with self._reading() as sql:
            if is_uuid(order_id):
                with suppress(OrderNotFound):
                    return [Reads(sql).order(None, order_id)]
            return SQL.find_by_reference(sql, reference=text, most=FOUND).all()

    def story(self, order_id: str) -> tuple[Order, list[Step]]:
        """An order, and everything that happened to it, in the order of time. Raises OrderNotFound."""
        with self._reading() as sql:
            reads = Reads(sql)
            events = reads.events(None, order_id, after_id=0, page_size=LISTED)
            payments = reads.payments_of_order(None, order_id, page_size=LISTED)
            others = [step for feature in features() for step in feature.steps(sql, order_id)]
            order = reads.order(None, order_id)  # last, as in `Reads`
        return order, timeline(order, events, payments, others)
