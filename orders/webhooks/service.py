"""What can be done with webhooks: clients subscribe, and the worker delivers.

A delivery is a row, written by the statement that writes its event, so none is lost and none is
invented. It is sent under a lease, outside of any transaction: the process whose conditional UPDATE
moved its ``due_at`` forward sends it, and records the outcome only if ``due_at`` has not changed
since.

A subscription's pending deliveries are its line, in the order in which they are due. Redis and the
sweep only tell whose line to look at, so however long it is, it is one thing to look at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.errors import DeliveryNotFound, KeyReused, TooManyWebhooks, WebhookNotFound
from orders.order.domain import OrderStatus
from orders.order.ports import Observer, TaskScheduler, nobody
from orders.sql.errors import retried
from orders.sql.ids import named_id, new_id
from orders.sql.statements import FIRST, LAST, Position
from orders.sql.tables import EVERY
from orders.sql.transactions import Transactional
from orders.webhooks.domain import (
    REMINDER,
    Answer,
    Delivery,
    DeliveryStatus,
    Message,
    Subscription,
)
from orders.webhooks.repository import Candidate, Line, ReadOrder, WebhookRepository
from orders.webhooks.signatures import new_secret
from orders.webhooks.urls import parsed

#: How many subscriptions a client may have: each costs a delivery for each event.
MAX_SUBSCRIPTIONS = 10
#: How long the secrets before a rotation sign too.
OVERLAP_MS = 24 * 3600 * 1000
#: How long to wait after each failed attempt. After the last one, three days in all, the delivery is
#: dead.
RETRY_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, *8 * [28_800])
#: A delivery that is due and was not sent for so long was forgotten by Redis, or by a worker that died.
LATE_MS = 1000
#: Longer than any delivery waits.
MAX_LATE_MS = 100 * 366 * 86_400_000
#: How many deliveries one statement deletes, and how many such statements run in one call.
SLICE, SLICES = 1000, 20
#: How long it may take to record the outcome after a request has ended.
GRACE_SECONDS = 10.0
MINUTE_MS = 60_000
DAY_MS = 86_400_000


#: Of a delivery whose last attempt began, and whose worker died with it.
NO_OUTCOME = Answer(None, "the worker stopped", None)


class Claimed(NamedTuple):
    """What a look at a subscription brought: a message to send, and whether to look again."""

    message: Message | None
    more: bool


NOTHING, SOMETHING_ELSE = Claimed(None, more=False), Claimed(None, more=True)


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """The settings for webhooks."""

    timeout_seconds: float
    allow_private: bool
    #: How long before an order's deadline its client is reminded; 0: never.
    reminder_minutes: float
    #: How long delivered and dead deliveries are kept; 0: forever.
    keep_days: int = 0

    @property
    def lease_ms(self) -> int:
        return round(1000 * (self.timeout_seconds + GRACE_SECONDS))

    @property
    def reminder_ms(self) -> int:
        return round(MINUTE_MS * self.reminder_minutes)


class Webhooks(Transactional[WebhookRepository]):
    """Raises StorageUnavailable from every method while the database does not answer."""

    def __init__(
        self,
        engine: sa.Engine,
        scheduler: TaskScheduler,
        policy: WebhookPolicy,
        read_order: ReadOrder,
        observe: Observer = nobody,
    ) -> None:
        super().__init__(engine)
        self._scheduler = scheduler
        self._policy = policy
        self._observe = observe
        self._read_order = read_order

    def _opened(self, connection: sa.Connection) -> WebhookRepository:
        return WebhookRepository(connection, self._read_order)

    # -- for clients -----------------------------------------------------------------------

    def subscribe(
        self, client_id: str, *, url: str, events: Sequence[str] | None, key: str | None = None
    ) -> tuple[Subscription, str, bool]:
        """Send a client's events to a URL; None: all of them. Once for each idempotency key, if there is one.

        Returns also the secret that signs them, and whether the key was used before. Raises
        WebhookUrlNotAllowed, TooManyWebhooks, KeyReused.
        """
        parsed(url, allow_private=self._policy.allow_private)
        secret = new_secret()
        made_id = new_id() if key is None else named_id(client_id, key)
        with self._writing() as repository:
            is_new = repository.subscribe(
                made_id, client_id, url=url, events=events, types=_types(events), secret=secret
            )
            # After the insert, which waits for the client's other subscriptions and so sees them.
            if is_new and repository.count(client_id) > MAX_SUBSCRIPTIONS:
                raise TooManyWebhooks(f"The limit is {MAX_SUBSCRIPTIONS}.", limit=MAX_SUBSCRIPTIONS)
            if not is_new:
                secret = repository.first_secret(made_id)
            found = repository.subscription(client_id, made_id)
        if found is None or (found.url, found.events) != (url, events and tuple(events)):
            raise KeyReused
        return found, secret, not is_new

    def subscriptions(
        self, client_id: str, *, page_size: int, after: Position | None = None
    ) -> list[Subscription]:
        """A client's subscriptions, oldest first."""
        with self._reading() as repository:
            return repository.subscriptions(client_id, page_size=page_size, after=after)

    def subscription(self, client_id: str | None, subscription_id: str) -> Subscription:
        """None is any client's. Raises WebhookNotFound, for another client's too."""
        with self._reading() as repository:
            found = repository.subscription(client_id, subscription_id)
        if found is None:
            raise WebhookNotFound
        return found

    def pause(self, client_id: str | None, subscription_id: str) -> Subscription:
        """Keep deliveries for later. None is any client's. Raises WebhookNotFound."""
        with self._autocommit() as repository:
            repository.pause(client_id, subscription_id)
        return self.subscription(client_id, subscription_id)

    def resume(self, client_id: str | None, subscription_id: str) -> Subscription:
        """Send what was kept, however much. None is any client's. Raises WebhookNotFound."""
        with self._autocommit() as repository:
            repository.resume(client_id, subscription_id)
        found = self.subscription(client_id, subscription_id)
        self._scheduler.schedule(subscription_id, delay_ms=0)
        return found

    def change(self, client_id: str, subscription_id: str, changes: Mapping[str, Any]) -> None:
        """Change a subscription's ``url``, or its ``events`` from now on; None: all of them.

        Raises WebhookNotFound, WebhookUrlNotAllowed.
        """
        url, events = changes.get("url"), changes.get("events")
        if url is not None:
            parsed(url, allow_private=self._policy.allow_private)
        types = _types(events) if "events" in changes else ()
        with self._writing() as repository:
            repository.change(client_id, subscription_id, url=url, events=events, types=types)

    def ping(self, client_id: str, subscription_id: str) -> Delivery:
        """Send a message about nothing. Raises WebhookNotFound."""
        with self._autocommit() as repository:
            made = repository.ping(client_id, subscription_id)
        if made is None:
            raise WebhookNotFound
        self._scheduler.schedule(made.id, delay_ms=0)
        return made

    def rotate_secret(self, client_id: str, subscription_id: str) -> tuple[Subscription, str]:
        """Make a new secret; for a day those before it sign too. Raises WebhookNotFound."""
        secret = new_secret()
        with self._writing() as repository:
            repository.rotate(client_id, subscription_id, secret, OVERLAP_MS)
        return self.subscription(client_id, subscription_id), secret

    def unsubscribe(self, client_id: str, subscription_id: str) -> None:
        """Send nothing more, not even what is waiting. Raises WebhookNotFound."""
        with self._writing() as repository:
            if not repository.unsubscribe(client_id, subscription_id):
                raise WebhookNotFound

    def deliveries(
        self,
        client_id: str | None,
        subscription_id: str,
        *,
        status: str | None,
        page_size: int,
        after: datetime | None = None,
        before: Position | None = None,
    ) -> list[Delivery]:
        """A subscription's deliveries between two times, newest first. None is any client's.

        Raises WebhookNotFound.
        """
        self.subscription(client_id, subscription_id)
        with self._reading() as repository:
            return repository.deliveries(
                subscription_id,
                status=status,
                page_size=page_size,
                after=after or FIRST.at,
                before=before or LAST,
            )

    def delivery(self, client_id: str | None, delivery_id: str) -> Delivery:
        """None is any client's. Raises DeliveryNotFound."""
        with self._reading() as repository:
            found = repository.delivery(client_id, delivery_id)
        if found is None:
            raise DeliveryNotFound
        return found

    def redeliver(self, client_id: str | None, delivery_id: str) -> Delivery:
        """Send a delivery again, under the same id; None: any client's. Raises DeliveryNotFound."""
        with self._autocommit() as repository:
            again = repository.redeliver(client_id, delivery_id)
        if again is None:
            raise DeliveryNotFound
        self._scheduler.schedule(delivery_id, delay_ms=0, even_if_dead=True)
        return again

    # -- for the worker --------------------------------------------------------------------

    def find_lines(self, ids: Sequence[str]) -> list[Line]:
        """Those of these ids of deliveries and subscriptions that something waits for."""
        with self._reading() as repository:
            return repository.find_lines(ids)

    def lines(self, after_seconds: float | None, before_seconds: float) -> list[Line]:
        """The subscriptions that something waits for, soonest first, within bounds from now.

        The first delivery counts, and is due `LATE_MS` later than it is: until then it is about to
        be sent.
        """
        after_ms = -MAX_LATE_MS if after_seconds is None else round(after_seconds * 1000)
        with self._reading() as repository:
            found = repository.lines(after_ms - LATE_MS, round(before_seconds * 1000) - LATE_MS)
        return [line._replace(due_in_ms=line.due_in_ms + LATE_MS) for line in found]

    @retried
    def claim(self, subscription_id: str, write: Callable[[Message], str | None]) -> Claimed:
        """Lease the first delivery of a subscription that may be sent now; ``write`` makes its body."""
        with self._autocommit() as repository:  # each write is guarded by what was read
            found, more = repository.look(subscription_id)
            if found is None or found.paused:
                return NOTHING
            message = found.message
            if found.deleted:
                repository.drop_page(subscription_id, SLICE)
                return SOMETHING_ELSE
            wait = self._wait_ms(found)
            if wait is None:
                repository.drop(message)
            elif wait:
                repository.put_off(message, wait)
                self._scheduler.schedule(message.id, delay_ms=wait)
            elif message.attempts > len(RETRY_SECONDS):
                if repository.record(message, NO_OUTCOME, DeliveryStatus.DEAD, 0) is not None:
                    self._observe("webhook.dead")
            else:
                body = message.body or write(message)
                token = repository.claim(message, body, self._policy.lease_ms)
                if token is not None:
                    began = token - timedelta(milliseconds=self._policy.lease_ms)
                    return Claimed(replace(message, token=token, body=body, claimed_at=began), more)
        return SOMETHING_ELSE

    def _wait_ms(self, found: Candidate) -> int | None:
        """How long a delivery has to wait; None if it is not to be sent at all."""
        message, reminder_ms = found.message, self._policy.reminder_ms
        if message.order is None or message.type != REMINDER:
            return 0
        lifetime = message.order.expires_at - message.at
        if (
            reminder_ms == 0
            or message.order.status is not OrderStatus.UNPAID
            or found.superseded
            or lifetime.total_seconds() * 1000 <= reminder_ms
            or found.expires_in_ms is None
            or found.expires_in_ms <= 0
        ):
            return None
        return max(0, found.expires_in_ms - reminder_ms)

    @retried
    def record(self, message: Message, answer: Answer) -> bool:
        """Record what came of sending a message; return whether another one waited for it.

        An endpoint that is gone (410) pauses its subscription. Whoever lost the lease records nothing.
        """
        status, delay_ms = _next(message.attempts + 1, answer)
        with self._writing() as repository:
            has_successor = repository.record(message, answer, status, delay_ms)
            if answer.status == HTTPStatus.GONE and has_successor is not None:
                repository.pause_gone(message)
        is_pending = status is DeliveryStatus.PENDING
        if has_successor is None:
            return False
        self._observe("webhook.failed" if is_pending else f"webhook.{status}")
        if delay_ms:
            self._scheduler.schedule(message.id, delay_ms=delay_ms)
        return has_successor

    @retried
    def prune(self, subscription_id: str) -> None:
        """Delete a subscription's delivered and dead deliveries that have been kept long enough,
        oldest first.
        """
        kept_ms = DAY_MS * self._policy.keep_days
        for status in (DeliveryStatus.DELIVERED, DeliveryStatus.DEAD) if kept_ms else ():
            for _ in range(SLICES):
                with self._autocommit() as repository:
                    count = repository.prune(subscription_id, status, kept_ms, SLICE)
                if count < SLICE:
                    break


def _types(events: Sequence[str] | None) -> tuple[str, ...]:
    """What to send for these events; None: all, also those of types that come later."""
    return (EVERY, REMINDER) if events is None else tuple(events)


def _next(attempts: int, answer: Answer) -> tuple[DeliveryStatus, int]:
    """A delivery's status after so many attempts, and in how many ms it is due again."""
    if answer.is_success:
        return DeliveryStatus.DELIVERED, 0
    if answer.status == HTTPStatus.GONE:
        return DeliveryStatus.PENDING, 0
    if attempts > len(RETRY_SECONDS):
        return DeliveryStatus.DEAD, 0
    return DeliveryStatus.PENDING, 1000 * RETRY_SECONDS[attempts - 1]
