"""How much a client may reserve without paying: unpaid orders, and the pieces in them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
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
    """What one client has reserved, as far as this process knows: ``counted`` and ``begun``."""

    #: What the last count found, less what had ended before it began.
    counted: Unpaid = NOTHING
    #: When to count again, on the monotonic clock.
    count_at: float = -math.inf
    #: All that this process began to place, and all of it that has ended, placed or not.
    begun: Unpaid = NOTHING
    ended: Unpaid = NOTHING


class UnpaidLimits(Service):
    """Keeps clients within their limits, at the cost of one count per client per second. 0 means no limit.

    A process admits nothing beyond a limit. What it places while it counts may be counted twice, so the last of the
    room may be refused then. Other processes' orders are seen at the next count, so several processes may together
    exceed a limit by what the others place within `COUNT_SECONDS`.
    """

    def __init__(self, bind: Bind, max_orders: int = 0, max_pieces: int = 0) -> None:
        super().__init__(bind)
        self._max_orders = max_orders
        self._max_pieces = max_pieces
        #: How many orders need to be looked at to know that a limit is reached; 0: none. Each has a
        #: piece, so as many orders as pieces are allowed will do.
        self._most = min((limit for limit in (max_orders, max_pieces) if limit), default=0)
        self._accounts: dict[str, _Account] = {}
        self._lock = Lock()

    def placing(self, new: NewOrder, place: Callable[[], T]) -> T:
        """Reserve room for an order while it is placed. Raises TooMuch if there is none."""
        if not self._most:
            return place()
        account = self._accounts.setdefault(new.client_id, _Account())
        order = Unpaid(1, sum(new.quantities.values()))
        if monotonic() >= account.count_at or self._begin(account, order):
            ended = account.ended
            counted = self.count(new.client_id, self._most)
            if refusal := self._begin(account, order, counted.minus(ended)):
                raise refusal
        try:
            return place()
        finally:
            with self._lock:
                account.ended = account.ended.plus(order)

    def _begin(
        self, account: _Account, order: Unpaid, counted: Unpaid | None = None
    ) -> TooMuch | None:
        """Take room for an order, by this count or by the last one; or say why there is none."""
        with self._lock:
            if counted is not None:
                account.counted, account.count_at = counted, monotonic() + COUNT_SECONDS
            begun = account.begun.plus(order)
            if refusal := self._excess(account.counted.plus(begun)):
                return refusal
            account.begun = begun
        return None

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
