"""How much a client may reserve without paying: unpaid orders, and the pieces in them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic
from typing import NamedTuple, TypeVar

from orders.db.database import Bind
from orders.db.files import Room
from orders.db.statements import Service, made_of
from orders.errors import TooMuch
from orders.features.limits.errors import TooManyHeldPieces, TooManyUnpaidOrders
from orders.order.domain import NewOrder

T = TypeVar("T")
SQL = Room("orders.features.limits")
#: How long a count may be used to admit orders. An order is refused only after a fresh count.
COUNT_SECONDS = 1.0
#: How long an order waits for others that are being placed and would take the last of the room.
PATIENCE_SECONDS = 1.0


class Unpaid(NamedTuple):
    """Unpaid orders, and the pieces in them."""

    orders: int
    pieces: int

    def plus(self, more: "Unpaid") -> "Unpaid":
        return Unpaid(self.orders + more.orders, self.pieces + more.pieces)

    def minus(self, less: "Unpaid") -> "Unpaid":
        return Unpaid(self.orders - less.orders, self.pieces - less.pieces)


NOTHING, UNPAID = Unpaid(0, 0), made_of(Unpaid)


@dataclass(slots=True)
class _Account:
    """What one client has reserved, as far as this process knows."""

    #: By the last count; None before the first.
    counted: Unpaid | None = None
    #: When to count again, on the monotonic clock.
    count_at: float = -math.inf
    #: All that this process began to place, and all of it that has ended, placed or not.
    begun: Unpaid = NOTHING
    ended: Unpaid = NOTHING
    #: What had ended when the last count began, and is therefore included in it.
    ended_before_count: Unpaid = NOTHING
    changed: Condition = field(default_factory=Condition)

    def with_begun(self, more: Unpaid) -> Unpaid:
        """What the client would reserve with ``more``, as far as this process knows.

        Never too low: orders that were in flight during the last count may be counted twice.
        """
        uncounted = self.begun.minus(self.ended_before_count)
        return (self.counted or NOTHING).plus(uncounted).plus(more)


class UnpaidLimits(Service):
    """Keeps clients within their limits, at the cost of one count per client per second. 0 means no limit.

    Within a process it is exact: no order is admitted beyond a limit, and none is refused for which
    there is room. Other processes' orders are seen at the next count, so several processes may
    together exceed a limit by what the others place within `COUNT_SECONDS`.
    """

    def __init__(self, bind: Bind, max_orders: int = 0, max_pieces: int = 0) -> None:
        super().__init__(bind)
        self._max_orders = max_orders
        self._max_pieces = max_pieces
        #: How many orders need to be looked at to know that a limit is reached; 0: none. Each has a
        #: piece, so as many orders as pieces are allowed will do.
        self._most = min((limit for limit in (max_orders, max_pieces) if limit), default=0)
        self._accounts: dict[str, _Account] = {}

    def placing(self, new: NewOrder, place: Callable[[], T]) -> T:
        """Reserve room for an order while it is placed. Raises TooMuch if there is none."""
        if not self._most:
            return place()
        client_id = new.client_id
        account = self._accounts.setdefault(client_id, _Account())
        order = Unpaid(1, sum(new.quantities.values()))
        if refusal := self._begin(client_id, account, order):
            raise refusal
        try:
            return place()
        finally:
            with account.changed:
                account.ended = account.ended.plus(order)
                account.changed.notify_all()

    def _begin(self, client_id: str, account: _Account, order: Unpaid) -> TooMuch | None:
        with account.changed:
            now = monotonic()
            if account.counted is not None and now < account.count_at:
                refusal = self._admit(account, order)
                if refusal is None:
                    return None
            account.count_at = now + COUNT_SECONDS  # other threads use the old count meanwhile
        while True:
            counted = self._count_afresh(client_id, account)
            with account.changed:
                refusal = self._admit(account, order)
                if refusal is None or self._excess(counted.plus(order)):
                    return refusal
                # Orders in flight may be counted twice, or may fail: wait for their outcome.
                if account.begun != account.ended and not account.changed.wait(PATIENCE_SECONDS):
                    return refusal

    def _admit(self, account: _Account, order: Unpaid) -> TooMuch | None:
        refusal = self._excess(account.with_begun(order))
        if refusal is None:
            account.begun = account.begun.plus(order)
        return refusal

    def _count_afresh(self, client_id: str, account: _Account) -> Unpaid:
        with account.changed:
            ended = account.ended
        counted = self.count(client_id, self._most)
        with account.changed:
            # Unless another thread's count began later.
            if ended.orders >= account.ended_before_count.orders:
                account.counted, account.ended_before_count = counted, ended
        return counted

    def count(self, client_id: str, most: int) -> Unpaid:
        """What a client has reserved; counts ``most`` orders at most."""
        [unpaid] = self._all(UNPAID, SQL.count_unpaid, client_id=client_id, most=most)
        return unpaid

    def _excess(self, unpaid: Unpaid) -> TooMuch | None:
        """The error for that much; None if it is within the limits."""
        if self._max_orders and unpaid.orders > self._max_orders:
            return TooManyUnpaidOrders(f"The limit is {self._max_orders}.", limit=self._max_orders)
        if self._max_pieces and unpaid.pieces > self._max_pieces:
            return TooManyHeldPieces(f"The limit is {self._max_pieces}.", limit=self._max_pieces)
        return None
