"""What can be done with payment attempts. While one is open, its order's deadline passes without effect.

An attempt goes by the provider's reference of the payment that it may become, so that the payment
settles it.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.db.errors import retried, translated
from orders.db.files import Room
from orders.db.ids import array_of, new_id
from orders.db.statements import Position, Service, as_it_is, made_of
from orders.errors import (
    AlreadyPaid,
    OrderCancelled,
    OrderError,
    OrderNotFound,
    ReferenceReused,
    StorageUnavailable,
)
from orders.features.parts import Cause
from orders.features.providers.attempts.domain import (
    ATTEMPT_QUEUE,
    MOST_OPEN,
    AttemptOutcome,
    DueAttempt,
)
from orders.features.providers.errors import AttemptTooLate, TooManyAttempts
from orders.hooks import CheckScheduler
from orders.log import log
from orders.order.domain import EventType

SQL = Room("orders.features.providers.attempts")
DUE = made_of(DueAttempt)


class OpenedAttempt(NamedTuple):
    """An attempt, as `AttemptOut` shows it, and whether an earlier request opened it."""

    attempt: sa.Row[Any]
    replayed: bool


class Attempts(Service):
    def __init__(
        self,
        engine: sa.Engine,
        checks: CheckScheduler,
        closings: CheckScheduler,
        at_most_seconds: float,
        before_payment: Callable[[str, str], OrderError | None] = lambda *_: None,
    ) -> None:
        """``checks`` schedules those of orders, ``closings`` those of attempts.

        All attempts together keep an order for ``at_most_seconds`` beyond its deadline.
        """
        super().__init__(engine)
        self._checks = checks
        self._closings = closings
        self._most_ms = round(1000 * at_most_seconds)
        self._before_payment = before_payment

    @retried
    def open(
        self, client_id: str, order_id: str, *, provider: str, reference: str, seconds: float
    ) -> OpenedAttempt:
        """Note that somebody is paying, once for each provider and reference.

        Raises what ``before_payment`` returned; OrderNotFound, AlreadyPaid, OrderCancelled, AttemptTooLate,
        ReferenceReused, TooManyAttempts. Of an order that has ended, the attempt is noted all the same if its provider
        can be asked to close it.
        """
        if refusal := self._before_payment(client_id, provider):
            raise refusal
        names = {"client_id": client_id, "provider": provider, "reference": reference}
        values = {"for_ms": round(1000 * seconds), "most_ms": self._most_ms, "most_open": MOST_OPEN}
        with self._autocommit() as sql:
            # Twice, if the order has ended since the first statement began.
            for _ in range(2):
                rows = SQL.open(sql, id=new_id(), order_id=order_id, **names, **values).all()
                if not rows:
                    raise OrderNotFound
                [opened] = rows
                is_new = opened.id is not None
                known = opened if is_new else SQL.get_named(sql, **names).one_or_none()
                if known is not None or opened.is_unpaid or opened.ending is not None:
                    break
        if opened.is_elsewhere or (known is not None and known.order_id != order_id):
            raise ReferenceReused
        if known is None:
            raise _refusal(opened)
        if not is_new:
            return OpenedAttempt(known, replayed=True)
        self._closings.schedule(known.id, delay_ms=opened.ms)
        if not opened.is_unpaid:
            raise _refusal(opened)
        return OpenedAttempt(known, replayed=False)

    @retried
    def fail(self, client_id: str, order_id: str, *, provider: str, reference: str) -> bool:
        """Settle an attempt that has failed. Its order is cancelled at its deadline, or at once.

        One that is not known is noted, so that a report of it which comes later has no effect. Returns
        whether it was open. Raises OrderNotFound, and ReferenceReused if it is another order's.
        """
        of_order = {"order_id": order_id}
        names = {"client_id": client_id, "provider": provider, "reference": reference}
        with self._writing() as sql:
            # Twice, if it was opened after the first look.
            for _ in range(2):
                locked = SQL.lock_named(sql, **names).one_or_none()
                if locked or SQL.add_failed(sql, id=new_id(), **of_order, **names).first():
                    break
            if locked is None:
                if not SQL.has_order(sql, client_id=client_id, **of_order).scalar_one():
                    raise OrderNotFound
                return False
            if locked.order_id != order_id:
                raise ReferenceReused
            if locked.settled_at is not None:
                return False
            _settle(sql, [locked.id], outcome=AttemptOutcome.FAILED)
        self.settled([order_id])
        return True

    def of_order(
        self, order_id: str, *, page_size: int, after: Position | None = None
    ) -> list[sa.Row[Any]]:
        """An order's attempts, oldest first."""
        return self._page(as_it_is, SQL.list_of_order, page_size, after, order_id=order_id)

    # -- for the worker --------------------------------------------------------------------

    def open_ones(
        self, attempt_ids: Sequence[str], not_after: datetime | None = None
    ) -> list[DueAttempt]:
        """Those of these attempts that are not settled. None that ends after ``not_after`` has ended, whatever the
        database's clock says.
        """
        values = {"ids": array_of(attempt_ids), "most_ms": self._most_ms, "not_after": not_after}
        return self._all(DUE, SQL.get_open, **values)

    def end(self, connection: sa.Connection, order_id: str) -> None:
        """Have no attempt outlast its order, or what keeps it: after the order ended, or its deadline moved.

        Best effort, and raises nothing: one that this misses ends at its time, and is closed then.
        """
        try:
            with translated():
                SQL.end(connection, order_id=order_id, most_ms=self._most_ms)
        except (StorageUnavailable, sa.exc.SQLAlchemyError) as error:
            log.warning("attempts not ended", order=order_id, error=str(error))

    def settle(
        self, connection: sa.Connection, attempt_ids: Sequence[str], closed: Sequence[str]
    ) -> None:
        """Settle attempts that have ended, in a transaction that has locked them.

        ``closed`` are those that their provider closed. `settled` is for after the commit.
        """
        _settle(connection, attempt_ids, closed)

    def settled(self, order_ids: Sequence[str]) -> None:
        """Have a worker look at these orders at once: one that is overdue may be cancelled now."""
        for order_id in order_ids:
            self._checks.schedule(order_id, delay_ms=0)


def _settle(
    sql: sa.Connection,
    attempt_ids: Sequence[str],
    closed: Sequence[str] = (),
    outcome: AttemptOutcome | None = None,
) -> None:
    """Settle attempts that this transaction has locked.

    In two statements: what another transaction did to an order's attempts while this one waited for
    the order is seen by the second.
    """
    ids = array_of(attempt_ids)
    SQL.lock_orders(sql, ids=ids)
    SQL.settle(sql, ids=ids, closed=array_of(closed), outcome=outcome)


def _refusal(opened: sa.Row[Any]) -> OrderError:
    """Why no attempt was opened."""
    if opened.is_unpaid:
        return TooManyAttempts() if opened.is_full else AttemptTooLate()
    return AlreadyPaid() if opened.ending == EventType.PAID else OrderCancelled()


def causes(connection: sa.Connection, order: sa.Row[Any]) -> Iterator[Cause]:
    """The attempts that keep an order: see `orders.feature`."""
    open_ = SQL.list_open(connection, order_id=order.id).all() if order.kept_until else ()
    if open_:
        said = ", ".join(f"{each.reference} at {each.provider}" for each in open_)
        ids = [each.id for each in open_]
        yield Cause(f"kept by payment attempt {said}", ATTEMPT_QUEUE, "closing its attempt", ids)
