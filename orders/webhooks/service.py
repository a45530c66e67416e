"""What can be done with webhooks: clients subscribe, and the worker delivers.

A delivery is a row, written by the statement that writes its event, so none is lost and none is
invented. It is sent under a lease, outside of any transaction: the process whose conditional UPDATE
moved its ``due_at`` forward sends it, and records the outcome only if ``due_at`` has not changed
since.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import sqlalchemy as sa

from orders.errors import DeliveryNotFound, TooManyWebhooks, WebhookNotFound
from orders.order.domain import OrderStatus
from orders.order.ports import Observer, TaskScheduler, nobody
from orders.sql.errors import retried
from orders.sql.statements import Position
from orders.sql.transactions import Transactional
from orders.webhooks.domain import (
    REMINDER,
    WEBHOOK_TYPES,
    Answer,
    Delivery,
    DeliveryStatus,
    Message,
    Subscription,
)
from orders.webhooks.repository import ClaimedDelivery, ReadOrder, Upcoming, WebhookRepository
from orders.webhooks.signatures import new_secret
from orders.webhooks.urls import parsed

#: How many subscriptions a client may have: each costs a delivery for each event.
MAX_SUBSCRIPTIONS = 10
#: How long the secret before a rotation signs too.
OVERLAP_MS = 24 * 3600 * 1000
#: How long to wait after each failed attempt. After the last one, about a day in all, the delivery
#: is dead.
RETRY_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800, 28_800)
#: When to look again at a delivery that waits for an earlier one of the same order.
IN_TURN_MS = 250
#: When to look again at one whose subscription is paused. Resuming does not wait for it.
PAUSED_MS = 3600 * 1000
#: How many deliveries one statement makes due when a subscription is resumed, or deletes when they
#: are old; and how many such statements run in one call.
SLICE, SLICES = 1000, 20
#: How long it may take to record the outcome after a request has ended.
GRACE_SECONDS = 10.0
MINUTE_MS = 60_000
DAY_MS = 86_400_000


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
        self, client_id: str, *, url: str, events: Sequence[str] | None
    ) -> tuple[Subscription, str]:
        """Send a client's events to a URL; None: all of them. Returns the secret that signs them,
        too.

        Raises WebhookUrlNotAllowed, TooManyWebhooks.
        """
        parsed(url, allow_private=self._policy.allow_private)
        types = WEBHOOK_TYPES if events is None else tuple(events)
        secret = new_secret()
        with self._writing() as repository:
            made = repository.subscribe(
                client_id, url=url, events=events, types=types, secret=secret
            )
            # After the insert, which waits for the client's other subscriptions and so sees them.
            if repository.count(client_id) > MAX_SUBSCRIPTIONS:
                raise TooManyWebhooks(f"The limit is {MAX_SUBSCRIPTIONS}.", limit=MAX_SUBSCRIPTIONS)
        return made, secret

    def subscriptions(
        self, client_id: str, *, page_size: int, after: Position | None = None
    ) -> list[Subscription]:
        """A client's subscriptions, oldest first."""
        with self._reading() as repository:
            return repository.subscriptions(client_id, page_size=page_size, after=after)

    def subscription(self, client_id: str, subscription_id: str) -> Subscription:
        """Raises WebhookNotFound, for another client's too."""
        with self._reading() as repository:
            found = repository.subscription(client_id, subscription_id)
        if found is None:
            raise WebhookNotFound
        return found

    def pause(self, client_id: str, subscription_id: str) -> Subscription:
        """Keep deliveries for later. Raises WebhookNotFound."""
        with self._autocommit() as repository:
            repository.pause(client_id, subscription_id)
        return self.subscription(client_id, subscription_id)

    def resume(self, client_id: str, subscription_id: str) -> Subscription:
        """Send what was kept. Raises WebhookNotFound."""
        with self._autocommit() as repository:
            repository.resume(client_id, subscription_id)
        found = self.subscription(client_id, subscription_id)
        for _ in range(SLICES):  # the rest is sent when it is due
            with self._autocommit() as repository:
                ids = repository.bring_forward(subscription_id, self._policy.lease_ms, SLICE)
            for delivery_id in ids:
                self._scheduler.schedule(delivery_id, delay_ms=0)
            if len(ids) < SLICE:
                break
        return found

    def rotate_secret(self, client_id: str, subscription_id: str) -> tuple[Subscription, str]:
        """Make a new secret; for a day the previous one signs too. Raises WebhookNotFound."""
        secret = new_secret()
        with self._autocommit() as repository:
            found = repository.rotate(client_id, subscription_id, secret, OVERLAP_MS)
        if found is None:
            raise WebhookNotFound
        return found, secret

    def unsubscribe(self, client_id: str, subscription_id: str) -> None:
        """Send nothing more, not even what is waiting. Raises WebhookNotFound."""
        with self._autocommit() as repository:
            if not repository.unsubscribe(client_id, subscription_id):
                raise WebhookNotFound

    def deliveries(
        self,
        client_id: str,
        subscription_id: str,
        *,
        status: str | None,
        page_size: int,
        after: Position | None = None,
    ) -> list[Delivery]:
        """A subscription's deliveries, oldest first. Raises WebhookNotFound."""
        self.subscription(client_id, subscription_id)
        with self._reading() as repository:
            return repository.deliveries(
                subscription_id, status=status, page_size=page_size, after=after
            )

    def redeliver(self, client_id: str | None, delivery_id: str) -> Delivery:
        """Send a delivery again, under the same id; None: any client's. Raises DeliveryNotFound.

        Even a delivery that was given up because it killed its workers is sent again.
        """
        with self._autocommit() as repository:
            found = repository.delivery(delivery_id)
            owner = None if found is None else repository.owner(found.subscription_id)
            if owner is None or client_id not in (None, owner):
                raise DeliveryNotFound
            again = repository.redeliver(delivery_id)
            if again is None:  # deleted meanwhile
                raise DeliveryNotFound
        self._scheduler.schedule(delivery_id, delay_ms=0, even_if_dead=True)
        return again

    # -- for the worker --------------------------------------------------------------------

    @retried
    def claim(self, delivery_id: str) -> Message | int | None:
        """Lease a delivery that may be sent now.

        Otherwise return in how many ms to look again, or None if there is nothing left to do.
        """
        with self._autocommit() as repository:  # each statement is guarded by the lease
            claimed = repository.claim(delivery_id, self._policy.lease_ms)
            if claimed is None:
                due = repository.due_in_ms(delivery_id)
                return due if due is None else max(1, due)
            wait = self._wait_ms(claimed)
            if wait == 0:
                return claimed.message()
            if wait is None:
                repository.drop(claimed.id, claimed.leased_until)
            else:
                repository.put_off(claimed.id, claimed.leased_until, wait)
            return wait

    def _wait_ms(self, claimed: ClaimedDelivery) -> int | None:
        """How long a delivery has to wait; None if it is not to be sent at all."""
        if claimed.deleted:
            return None
        if claimed.type == REMINDER:
            wait = self._reminder_wait_ms(claimed)
            if wait != 0:
                return wait
        if claimed.subscription.paused_at is not None:
            return PAUSED_MS
        return IN_TURN_MS if claimed.has_predecessor else 0

    def _reminder_wait_ms(self, claimed: ClaimedDelivery) -> int | None:
        reminder_ms = self._policy.reminder_ms
        order = claimed.order
        lifetime = order.expires_at - claimed.at
        if (
            reminder_ms == 0
            or order.status is not OrderStatus.UNPAID
            or claimed.superseded
            or lifetime.total_seconds() * 1000 <= reminder_ms
            or claimed.expires_in_ms <= 0
        ):
            return None
        return max(0, claimed.expires_in_ms - reminder_ms)

    @retried
    def put_off(self, message: Message, delay_ms: int) -> None:
        """Give up a lease without having sent the message."""
        with self._autocommit() as repository:
            repository.put_off(message.id, message.leased_until, delay_ms)

    @retried
    def record(self, message: Message, answer: Answer) -> int | None:
        """Record what came of sending a message; returns in how many ms to try again, or None.

        An endpoint that is gone (410) pauses its subscription. Whoever lost the lease records nothing.
        """
        gone = answer.status == HTTPStatus.GONE
        status, delay_ms = _next(message.attempts + 1, answer)
        with self._writing() as repository:
            if gone:
                repository.pause_gone(message.subscription_id)
            recorded = repository.record(message, answer, status, delay_ms)
        is_pending = status is DeliveryStatus.PENDING
        if recorded:
            self._observe("webhook.failed" if is_pending else f"webhook.{status}")
        return delay_ms if is_pending else None

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

    def upcoming(
        self, after_seconds: float | None, before_seconds: float, page_size: int
    ) -> Iterator[list[Upcoming]]:
        """Pages of pending deliveries that are due within these bounds from now, soonest first."""
        after_ms = None if after_seconds is None else round(after_seconds * 1000)
        before_ms = round(before_seconds * 1000)
        last: Upcoming | None = None
        while True:
            with self._reading() as repository:  # no connection is held while a page is used
                page = repository.upcoming(after_ms, before_ms, page_size, last)
            if page:
                yield page
            if len(page) < page_size:
                return
            last = page[-1]


def _next(attempts: int, answer: Answer) -> tuple[DeliveryStatus, int]:
    """A delivery's status after so many attempts, and in how many ms it is due again."""
    if answer.is_success:
        return DeliveryStatus.DELIVERED, 0
    if answer.status == HTTPStatus.GONE:
        return DeliveryStatus.PENDING, PAUSED_MS
    if attempts > len(RETRY_SECONDS):
        return DeliveryStatus.DEAD, 0
    return DeliveryStatus.PENDING, 1000 * RETRY_SECONDS[attempts - 1]
