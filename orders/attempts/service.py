"""What can be done with payment attempts. While one is open, its order's deadline passes without effect.

An attempt goes by the provider's reference of the payment that it may become, so that the payment
settles it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.attempts import repository
from orders.attempts.domain import Attempt, AttemptOutcome, DueAttempt
from orders.errors import (
    AlreadyPaid,
    AttemptTooLate,
    OrderCancelled,
    OrderError,
    OrderNotFound,
    ReferenceReused,
    TooManyAttempts,
    UnknownProvider,
)
from orders.order.domain import EventType
from orders.order.ports import CheckScheduler
from orders.sql.errors import retried
from orders.sql.ids import new_id
from orders.sql.statements import Position, Statements
from orders.sql.transactions import Service

#: How soon the flow looks at a new attempt, whose order may have ended in the same instant.
FIRST_LOOK_MS = 2000


class OpenedAttempt(NamedTuple):
    """An attempt, and whether an earlier request opened it."""

    attempt: Attempt
    replayed: bool


class Attempts(Service):
    def __init__(
        self,
        engine: sa.Engine,
        checks: CheckScheduler,
        closings: CheckScheduler,
        at_most_seconds: float,
    ) -> None:
        """``checks`` schedules those of orders, ``closings`` those of attempts.

        All attempts together keep an order for ``at_most_seconds`` beyond its deadline.
        """
        super().__init__(engine)
        self._checks = checks
        self._closings = closings
        self._most_ms = round(1000 * at_most_seconds)

    @retried
    def open(
        self, client_id: str, order_id: str, *, provider: str, reference: str, seconds: float
    ) -> OpenedAttempt:
        """Note that somebody is paying, once for each provider and reference.

        Raises OrderNotFound, AlreadyPaid, OrderCancelled, AttemptTooLate, ReferenceReused,
        TooManyAttempts, UnknownProvider. Of an order that has ended, the attempt is noted all the same if its provider
        can be asked to close it.
        """
        names = _names(client_id, provider, reference)
        values = {"for_ms": round(1000 * seconds), "for_most_ms": self._most_ms}
        with self._autocommit() as sql:
            # Twice, if the order has ended since the first statement began.
            for _ in range(2):
                rows = sql.do(
                    repository.open_, for_order=order_id, attempt_id=new_id(), **names, **values
                )
                if not rows:
                    raise OrderNotFound
                [opened] = rows
                is_new = opened.id is not None
                known = (
                    repository.ATTEMPT(opened)
                    if is_new
                    else sql.one(repository.ATTEMPT, repository.GET_NAMED, **names)
                )
                if known is not None or opened.is_unpaid or opened.ending is not None:
                    break
        if known is None:
            raise _refusal(opened)
        if not is_new:
            if known.order_id != order_id:
                raise ReferenceReused
            return OpenedAttempt(known, replayed=True)
        self._closings.schedule(known.id, delay_ms=min(opened.ms, FIRST_LOOK_MS))
        if not opened.is_unpaid:
            raise _refusal(opened)
        return OpenedAttempt(known, replayed=False)

    @retried
    def fail(self, client_id: str, order_id: str, *, provider: str, reference: str) -> bool:
        """Settle an attempt that has failed. Its order is cancelled at its deadline, or at once.

        One that is not known is noted, so that a report of it which comes later has no effect. Returns
        whether it was open. Raises OrderNotFound, and ReferenceReused if it is another order's.
        """
        names = {"for_order": order_id, **_names(client_id, provider, reference)}
        with self._writing() as sql:
            # Twice, if it was opened after the first look.
            for _ in range(2):
                locked = sql.run(repository.LOCK_NAMED, **names).one_or_none()
                if locked or sql.run(repository.ADD_FAILED, attempt_id=new_id(), **names).first():
                    break
            if locked is not None:
                if locked.order_id != order_id:
                    raise ReferenceReused
                _settle(sql, [locked.id], outcome=AttemptOutcome.FAILED)
            elif not sql.run(repository.HAS_ORDER, **names).scalar_one():
                raise OrderNotFound
        if locked is None:
            return False
        self.settled([order_id])
        return True

    def of_order(
        self, order_id: str, *, page_size: int, after: Position | None = None
    ) -> list[Attempt]:
        """An order's attempts, oldest first."""
        return self._page(
            repository.ATTEMPT, repository.LIST_OF_ORDER, page_size, after, for_order=order_id
        )

    # -- for the worker --------------------------------------------------------------------

    def open_ones(self, attempt_ids: Sequence[str]) -> list[DueAttempt]:
        """Those of these attempts that are not settled."""
        return self._all(
            repository.DUE, repository.GET_OPEN, ids=attempt_ids, for_most_ms=self._most_ms
        )

    @retried
    def end(self, attempt_id: str) -> None:
        """End an attempt of an order that has ended."""
        with self._autocommit() as sql:
            sql.run(repository.END, ids=[attempt_id])

    def settle(
        self, connection: sa.Connection, attempt_ids: Sequence[str], closed: Sequence[str]
    ) -> None:
        """Settle attempts that have ended, in a transaction that has locked them.

        ``closed`` are those that their provider closed. `settled` is for after the commit.
        """
        _settle(self._opened(connection), attempt_ids, closed)

    def settled(self, order_ids: Sequence[str]) -> None:
        """Have a worker look at these orders at once: one that is overdue may be cancelled now."""
        for order_id in order_ids:
            self._checks.schedule(order_id, delay_ms=0)


def _settle(
    sql: Statements,
    attempt_ids: Sequence[str],
    closed: Sequence[str] = (),
    outcome: AttemptOutcome | None = None,
) -> None:
    """Settle attempts that this transaction has locked.

    In two statements: what another transaction did to an order's attempts while this one waited for
    the order is seen by the second.
    """
    sql.run(repository.LOCK_ORDERS, ids=attempt_ids)
    sql.do(repository.settle, ids=attempt_ids, closed=closed, for_outcome=outcome)


def _names(client_id: str, provider: str, reference: str) -> dict[str, str]:
    return {"for_client": client_id, "for_provider": provider, "for_reference": reference}


def _refusal(opened: sa.Row[Any]) -> OrderError:
    """Why no attempt was opened."""
    if not opened.is_known:
        return UnknownProvider()
    if opened.is_unpaid:
        return TooManyAttempts() if opened.is_full else AttemptTooLate()
    return AlreadyPaid() if opened.ending == EventType.PAID else OrderCancelled()
