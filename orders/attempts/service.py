"""What can be done with payment attempts. While one is open, its order's deadline passes without effect.

An attempt goes by the provider's reference of the payment that it may become, so that the payment
settles it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from orders.attempts.domain import Attempt, AttemptOutcome, DueAttempt
from orders.attempts.repository import AttemptRepository, Opened
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
from orders.order.ports import TaskScheduler
from orders.sql.errors import retried
from orders.sql.statements import Position
from orders.sql.transactions import Transactional

#: How soon the flow looks at a new attempt, whose order may have ended in the same instant.
FIRST_LOOK_MS = 2000


class OpenedAttempt(NamedTuple):
    """An attempt, and whether an earlier request opened it."""

    attempt: Attempt
    replayed: bool


class Attempts(Transactional[AttemptRepository]):
    """Raises StorageUnavailable from every method while the database does not answer."""

    _repository = AttemptRepository

    def __init__(
        self,
        engine: sa.Engine,
        checks: TaskScheduler,
        closings: TaskScheduler,
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
        names = {"provider": provider, "reference": reference}
        ms = round(1000 * seconds)
        with self._autocommit() as repository:
            opened = repository.open(client_id, order_id, **names, ms=ms, most_ms=self._most_ms)
            if opened is None:
                raise OrderNotFound
            known = opened.attempt or repository.named(client_id, **names)
            if known is None and not opened.is_unpaid and opened.ending is None:
                # The order has ended since the statement began.
                opened = repository.open(client_id, order_id, **names, ms=ms, most_ms=self._most_ms)
                if opened is None:
                    raise OrderNotFound
                known = opened.attempt
        if opened.attempt is not None:
            soon = min(opened.ends_in_ms, FIRST_LOOK_MS)
            self._closings.schedule(opened.attempt.id, delay_ms=soon)
            if opened.is_unpaid:
                return OpenedAttempt(opened.attempt, replayed=False)
        elif known is not None:
            if known.order_id != order_id:
                raise ReferenceReused
            return OpenedAttempt(known, replayed=True)
        raise _refusal(opened)

    def fail(self, client_id: str, order_id: str, *, provider: str, reference: str) -> bool:
        """Settle an attempt that has failed. Its order is cancelled at its deadline, or at once.

        One that is not known is noted, so that a report of it which comes later has no effect. Returns
        whether it was open. Raises OrderNotFound.
        """
        with self._writing() as repository:
            attempt_id = repository.lock_named(client_id, provider, reference)
            if attempt_id is None:
                if not repository.add_failed(client_id, order_id, provider, reference):
                    raise OrderNotFound
                return False
            repository.settle([attempt_id], outcome=AttemptOutcome.FAILED)
        self.settled([order_id])
        return True

    def of_order(
        self, order_id: str, *, page_size: int, after: Position | None = None
    ) -> list[Attempt]:
        """An order's attempts, oldest first."""
        with self._reading() as repository:
            return repository.of_order(order_id, page_size=page_size, after=after)

    # -- for the worker --------------------------------------------------------------------

    def open_ones(self, attempt_ids: Sequence[str]) -> list[DueAttempt]:
        """Those of these attempts that are not settled."""
        with self._reading() as repository:
            return repository.open_ones(attempt_ids, self._most_ms)

    @retried
    def end(self, attempt_id: str) -> None:
        """End an attempt of an order that has ended."""
        with self._autocommit() as repository:
            repository.end(attempt_id)

    def settle(
        self, connection: sa.Connection, attempt_ids: Sequence[str], closed: Sequence[str]
    ) -> None:
        """Settle attempts that have ended, in a transaction that has locked them.

        ``closed`` are those that their provider closed. `settled` is for after the commit.
        """
        self._opened(connection).settle(attempt_ids, closed)

    def settled(self, order_ids: Sequence[str]) -> None:
        """Have a worker look at these orders at once: one that is overdue may be cancelled now."""
        for order_id in order_ids:
            self._checks.schedule(order_id, delay_ms=0)


def _refusal(opened: Opened) -> OrderError:
    """Why no attempt was opened."""
    if not opened.is_known:
        return UnknownProvider()
    if opened.is_unpaid:
        return TooManyAttempts() if opened.is_full else AttemptTooLate()
    return AlreadyPaid() if opened.ending == EventType.PAID else OrderCancelled()
