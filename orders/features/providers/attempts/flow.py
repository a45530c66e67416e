"""The flow that settles payment attempts which have ended, and asks their providers before it does.

While a provider does not answer, orders with an attempt at it wait, up to their bound.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile

import sqlalchemy as sa

from orders.db.tables import queue_pauses
from orders.errors import OrderError, StorageUnavailable
from orders.features.providers.attempts.domain import ATTEMPT_QUEUE, DueAttempt
from orders.features.providers.attempts.gateway import Gateway, check, close
from orders.features.providers.attempts.service import Attempts
from orders.features.providers.errors import GatewayUnavailable
from orders.features.providers.schemas import PaidReply
from orders.features.providers.service import Providers
from orders.features.providers.tables import payment_attempts
from orders.features.signing.sender import HttpSender
from orders.features.signing.settings import SendingSettings
from orders.log import log
from orders.wiring import Services
from worker import Backoff, DelayQueue, Flow, NotDue, Outcome, Retry, Task
from worker.records import Records

#: How many attempts a worker closes at a time: one at each provider. Those that are slow share half of the threads.
THREADS = 4
#: A provider is slow if its last answer took longer, or did not come.
SLOW_SECONDS = 1.0
#: How soon to come back when it is not one's turn: there may be thousands who wait.
MY_TURN = Backoff(0.1, 5.0)
#: How soon to ask again what the provider could not tell.
AGAIN = Backoff(2.0, 60.0)

#: The gateway of a client's provider; None if it has none any more.
Gateways = Callable[[str, str], Gateway | None]


def attempt_flow(services: Services, gateways: Gateways | None = None) -> Flow:
    """Settle payment attempts at their end, one at a time, and let their orders be cancelled.

    ``gateways`` may be your own; by default they ask over HTTP, for providers with a URL. No attempt ends
    by a clock that jumped: see `orders.hooks.Hooks.not_after`.
    """
    settings = services.settings
    closing = Closing(services, gateways or http_gateways(services))

    flow = Records(
        services.engine,
        id=payment_attempts.c.id,
        due=payment_attempts.c.ends_at,
        pending=payment_attempts.c.settled_at.is_(None),
        handle=closing.settle,
        queue=DelayQueue(services.redis, ATTEMPT_QUEUE),
        timeout_seconds=settings.statement_timeout_seconds,
        pauses=queue_pauses,
    ).flow(probe=services.check_ready, threads=THREADS, batch_size=1, **settings.of_each_flow)
    settle = flow.handler

    def ask_and_settle(tasks: Sequence[Task]) -> Mapping[str, Outcome]:
        """No connection is held while a provider is asked."""
        try:
            waiting, orders = closing.ask(tasks)
            outcomes = settle([task for task in tasks if task.id not in waiting])
        finally:
            closing.forget(tasks)
        services[Attempts].settled(orders)
        return {**waiting, **(outcomes or {})}

    return replace(flow, handler=ask_and_settle)


def http_gateways(services: Services) -> Gateways:
    """The gateways of providers that have a URL, as ``providers add --close-url`` sets it."""
    settings = services.settings[SendingSettings]
    sender = HttpSender(
        settings.webhook_timeout_seconds, allow_private=settings.webhook_allow_private
    )

    def find(client_id: str, provider: str) -> Gateway | None:
        found = services[Providers].closer(client_id, provider)
        return None if found is None else partial(close, sender, found)

    return find


class _Place:
    """What a worker knows of one client's provider."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore()
        #: How long the last request took.
        self.seconds = 0.0


class Closing:
    """Asks providers, each for itself: one that hangs holds up nobody else's attempts."""

    def __init__(self, services: Services, gateways: Gateways) -> None:
        self._services = services
        self._gateways = gateways
        self._places: dict[tuple[str, str], _Place] = {}
        self._slow = threading.Semaphore(THREADS // 2)
        self._closed: set[str] = set()

    def settle(self, connection: sa.Connection, attempt_ids: Sequence[str]) -> None:
        """Settle attempts that need not be asked about, or were."""
        closed = [each for each in attempt_ids if each in self._closed]
        self._services[Attempts].settle(connection, attempt_ids, closed)

    def forget(self, tasks: Sequence[Task]) -> None:
        """Forget what providers said of these. One that could not be settled is asked about again."""
        self._closed.difference_update(task.id for task in tasks)

    def ask(self, tasks: Sequence[Task]) -> tuple[dict[str, Outcome], list[str]]:
        """Ask about attempts that have ended; return those that are not to be settled yet, and the
        orders of the others.
        """
        waiting: dict[str, Outcome] = {}
        orders: list[str] = []
        attempt_of = {task.id: task.attempt for task in tasks}
        not_after = self._services.hooks.not_after()
        for each in self._services[Attempts].open_ones([*attempt_of], not_after):
            if each.ends_in_ms > 0:
                waiting[each.id] = NotDue(each.ends_in_ms)
                continue
            outcome = self._asked(each, attempt_of[each.id]) if each.asks else None
            if outcome is None:
                orders.append(each.order_id)
            else:
                waiting[each.id] = outcome
        return waiting, orders

    def _asked(self, attempt: DueAttempt, number: int) -> Outcome | None:
        """Ask one provider; None: settle the attempt."""
        gateway = self._gateways(attempt.client_id, attempt.provider)
        if gateway is None:
            return None
        place = self._places.setdefault((attempt.client_id, attempt.provider), _Place())
        turns = [place.turn, self._slow] if place.seconds >= SLOW_SECONDS else [place.turn]
        taken = [*takewhile(lambda turn: turn.acquire(blocking=False), turns)]
        try:
            if taken != turns:
                return Retry(1000 * MY_TURN(number))
            return self._asked_now(attempt, number, gateway, place)
        finally:
            for turn in taken:
                turn.release()

    def _asked_now(
        self, attempt: DueAttempt, number: int, gateway: Gateway, place: _Place
    ) -> Outcome | None:
        facts = {"attempt": attempt.id, "order": attempt.order_id, "provider": attempt.provider}
        began = time.monotonic()
        try:
            reply = gateway(attempt)
            check(reply, attempt)
        except Exception as error:
            if not isinstance(error, GatewayUnavailable):
                log.exception("provider not asked", **facts)
            log.warning("attempt not closed", **facts, error=str(error))
            return self._later(attempt, number, error)
        finally:
            place.seconds = time.monotonic() - began
        log.info("provider asked", **facts, reply=reply.outcome)
        if isinstance(reply, PaidReply):
            return self._paid(attempt, reply, number)
        if reply.outcome == "unknown":
            return self._later(attempt, number)
        self._closed.add(attempt.id)
        return None

    def _paid(self, attempt: DueAttempt, reply: PaidReply, number: int) -> Outcome | None:
        """Record the money, as if the provider had reported it."""
        try:
            self._services.orders.pay(attempt.client_id, **reply.model_dump(exclude={"outcome"}))
        except StorageUnavailable:
            raise
        except OrderError as error:
            log.error("payment not recorded", attempt=attempt.id, error=str(error))
            return self._later(attempt, number, error)
        return None

    def _later(
        self, attempt: DueAttempt, number: int, error: Exception | None = None
    ) -> Outcome | None:
        """Ask again, unless the order has waited for as long as it may."""
        if attempt.is_over:
            log.warning("provider not heard", attempt=attempt.id, order=attempt.order_id)
            return None
        again = Retry(1000 * AGAIN(number))
        again.__cause__ = error
        return again
