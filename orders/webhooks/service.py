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
from sqlalchemy.dialects.postgresql import insert

from orders.errors import DeliveryNotFound, KeyReused, TooManyWebhooks, WebhookNotFound
from orders.order.domain import Order, OrderStatus
from orders.order.origin import Origin
from orders.order.ports import CheckScheduler, Observer, nobody
from orders.sql.errors import retried
from orders.sql.ids import named_id, new_id
from orders.sql.statements import FIRST, LAST, Position, Statements
from orders.sql.tables import EVERY
from orders.sql.transactions import Service
from orders.webhooks import repository
from orders.webhooks.domain import (
    REMINDER,
    SET_A_DEADLINE,
    Answer,
    Delivery,
    DeliveryStatus,
    Message,
    Subscription,
)
from orders.webhooks.repository import SECRETS, WaitingSubscription
from orders.webhooks.signatures import new_secret
from orders.webhooks.urls import parsed

#: How many subscriptions a client may have: each costs a delivery for each event.
MAX_SUBSCRIPTIONS = 10
#: How long the secrets before a rotation sign too.
OVERLAP_MS = 24 * 3600 * 1000
#: How long to wait after each failed attempt, or longer if the endpoint asks for it, up to all of it. After
#: the last one, three days in all, the delivery is dead.
RETRY_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, *8 * [28_800])
#: A delivery that is due and was not sent for so long was forgotten by Redis, or by a worker that died.
LATE_MS = 1000
#: Longer than any delivery waits.
MAX_LATE_MS = 100 * 366 * 86_400_000
#: How much of an answer is kept.
KEPT_CHARACTERS = 1000
#: How many deliveries one statement deletes.
SLICE = 1000
#: How long it may take to record the outcome after a request has ended.
GRACE_SECONDS = 10.0
MINUTE_MS = 60_000
DAY_MS = 86_400_000


#: Of a delivery whose last attempt began, and whose worker died with it.
NO_OUTCOME = Answer(None, "the worker stopped", None)


#: Reads an order of a client, on a connection.
ReadOrder = Callable[[sa.Connection, str, str], Order | None]


class ClaimedMessage(NamedTuple):
    """What a look at a subscription brought: a message to send, and whether to look again."""

    message: Message | None
    more: bool


NOTHING, SOMETHING_ELSE = ClaimedMessage(None, more=False), ClaimedMessage(None, more=True)


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


class Webhooks(Service):
    def __init__(
        self,
        engine: sa.Engine,
        scheduler: CheckScheduler,
        policy: WebhookPolicy,
        read_order: ReadOrder,
        observe: Observer = nobody,
    ) -> None:
        super().__init__(engine)
        self._scheduler = scheduler
        self._policy = policy
        self._observe = observe
        self._read_order = read_order

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
        own = {"for_client": client_id, "for_id": made_id}
        named = {"new_url": url, "new_events": _named(events)}
        asked = f"{url} {named['new_events']}"
        with self._writing() as sql:
            sql.run(repository.LOCK_CLIENT, for_client=client_id)
            new = sql.run(repository.SUBSCRIBE, **own, **named, for_asked=asked).one_or_none()
            if new is not None:
                SECRETS.add(sql, made_id, secret)
                _add_interests(sql, client_id, made_id, _types(events))
                count = sql.run(repository.COUNT_SUBSCRIPTIONS, for_client=client_id).scalar_one()
                if count > MAX_SUBSCRIPTIONS:
                    limit = MAX_SUBSCRIPTIONS
                    raise TooManyWebhooks(f"The limit is {limit}.", limit=limit)
            else:
                secret = sql.run(repository.LIST_SECRETS, for_subscription=made_id).all()[-1].secret
            made = new or sql.run(repository.GET_MADE, for_id=made_id).one()
        if made.asked != asked:
            raise KeyReused
        # As it was made, whatever was changed since.
        wanted = None if events is None else tuple(events)
        first = Subscription(made_id, url, wanted, made.created_at, None, None, None)
        return first, secret, new is None

    def subscriptions(
        self, client_id: str, *, page_size: int, after: Position | None = None
    ) -> list[Subscription]:
        """A client's subscriptions, oldest first."""
        find = (repository.SUBSCRIPTION, repository.LIST_SUBSCRIPTIONS)
        return self._page(*find, page_size, after, for_client=client_id)

    def subscription(self, client_id: str | None, subscription_id: str) -> Subscription:
        """None is any client's. Raises WebhookNotFound, for another client's too."""
        find = (repository.SUBSCRIPTION, WebhookNotFound, repository.GET_SUBSCRIPTION)
        return self._one(*find, for_client=client_id, for_id=subscription_id)

    def change(
        self, client_id: str | None, subscription_id: str, changes: Mapping[str, Any]
    ) -> Subscription:
        """Change a subscription's ``url``, its ``events`` from now on (None: all), or whether it is ``paused``.

        While it is paused its deliveries are kept, and then sent, however many. Without a client, it is any
        client's. Raises WebhookNotFound, WebhookUrlNotAllowed.
        """
        url, paused = changes.get("url"), changes.get("paused")
        columns: dict[str, Any] = {}
        if url is not None:
            parsed(url, allow_private=self._policy.allow_private)
            columns["url"] = url
        if paused is not None:
            columns |= repository.PAUSED if paused else repository.RESUMED
        if "events" in changes:
            columns["events"] = _named(changes["events"])
        own = {"for_client": client_id, "for_id": subscription_id}
        with self._writing() as sql:
            owner = sql.run(repository.change(columns), **own).scalar() if columns else None
            if owner and "events" in changes:
                sql.run(repository.DELETE_INTERESTS, for_client=owner, for_id=subscription_id)
                _add_interests(sql, owner, subscription_id, _types(changes["events"]))
            found = sql.one(repository.SUBSCRIPTION, repository.GET_SUBSCRIPTION, **own)
        if found is None:
            raise WebhookNotFound
        if paused is False:
            self._scheduler.schedule(subscription_id, delay_ms=0)
        return found

    def ping(self, client_id: str, subscription_id: str) -> Delivery:
        """Send a message about nothing. Raises WebhookNotFound."""
        values = {"for_client": client_id, "for_id": subscription_id}
        with self._autocommit() as sql:
            made = sql.one(repository.DELIVERY, repository.ADD_PING, **values)
        if made is None:
            raise WebhookNotFound
        self._scheduler.schedule(made.id, delay_ms=0)
        return made

    def rotate_secret(self, client_id: str, subscription_id: str) -> tuple[Subscription, str]:
        """Make a new secret; for a day those before it sign too. Raises WebhookNotFound."""
        secret = new_secret()
        values = {"for_client": client_id, "for_id": subscription_id}
        with self._writing() as sql:
            if sql.run(repository.LOCK_OWN, **values).first():
                SECRETS.replace(sql, subscription_id, secret, OVERLAP_MS)
        return self.subscription(client_id, subscription_id), secret

    def unsubscribe(self, client_id: str, subscription_id: str) -> None:
        """Send nothing more, not even what is waiting. Raises WebhookNotFound.

        Its secret stays, for who repeats the request that made it.
        """
        own = {"for_client": client_id, "for_id": subscription_id}
        with self._writing() as sql:
            # So that something waits for it: whoever looks at its line deletes all of its deliveries.
            sql.run(repository.ADD_PING, **own)
            if not sql.run(repository.UNSUBSCRIBE, **own).rowcount:
                raise WebhookNotFound
            sql.run(repository.DELETE_INTERESTS, **own)

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
        before_at, before_id = before or LAST
        return self._all(
            repository.DELIVERY,
            repository.list_deliveries(status),
            for_subscription=subscription_id,
            after_at=after or FIRST.at,
            before_at=before_at,
            before_id=before_id,
            page_size=page_size,
        )

    def delivery(self, client_id: str | None, delivery_id: str) -> Delivery:
        """None is any client's. Raises DeliveryNotFound."""
        find = (repository.DELIVERY, DeliveryNotFound, repository.GET_DELIVERY)
        return self._one(*find, for_client=client_id, for_id=delivery_id)

    def redeliver(self, client_id: str | None, delivery_id: str) -> Delivery:
        """Send a delivery again, under the same id, with all of its attempts ahead; None: any client's.

        Raises DeliveryNotFound.
        """
        values = {"for_client": client_id, "for_id": delivery_id}
        with self._autocommit() as sql:
            again = sql.one(repository.DELIVERY, repository.REDELIVER, **values)
        if again is None:
            raise DeliveryNotFound
        self._scheduler.schedule(delivery_id, delay_ms=0, even_if_dead=True)
        return again

    # -- for the worker --------------------------------------------------------------------

    def find_lines(self, ids: Sequence[str]) -> list[WaitingSubscription]:
        """Those of these ids of deliveries and subscriptions that something waits for."""
        found = self._all(WaitingSubscription._make, repository.FIND_LINES, for_ids=ids)
        return [line for line in found if None not in line]

    def lines(
        self, after_seconds: float | None, before_seconds: float
    ) -> list[WaitingSubscription]:
        """The subscriptions that something waits for, soonest first, within bounds from now.

        The first delivery counts, and is due `LATE_MS` later than it is: until then it is about to
        be sent.
        """
        after_ms = -MAX_LATE_MS if after_seconds is None else round(after_seconds * 1000)
        before_ms = round(before_seconds * 1000) - LATE_MS
        values = {"after_ms": after_ms - LATE_MS, "before_ms": before_ms}
        with self._reading() as sql:
            rows = sql.run(repository.LIST_LINES, **values).all()
        return [
            WaitingSubscription(row.id, row.id, row.client_id, row.due_in_ms + LATE_MS)
            for row in rows
        ]

    @retried
    def claim(self, subscription_id: str, write: Callable[[Message], str | None]) -> ClaimedMessage:
        """Lease the first delivery of a subscription that may be sent now; ``write`` makes its body."""
        with self._autocommit() as sql:  # each write is guarded by what was read
            found = sql.run(repository.LOOK, for_subscription=subscription_id).all()
            if not found:
                return NOTHING
            row, more = found[0], len(found) > 1
            of = {"for_order": row.order_id, "for_event": row.event_id}
            target = sql.run(repository.GET_TARGET, for_subscription=subscription_id, **of).one()
            if target.paused_at is not None:
                return NOTHING
            if target.deleted_at is not None:
                page = {"for_subscription": subscription_id, "page_size": SLICE}
                sql.run(repository.DROP_PAGE, **page)
                return SOMETHING_ELSE
            order = None
            if row.order_id is not None:
                order = self._read_order(sql.connection, row.order_id, target.client_id)
            message, as_read = _message(row, target, order), {"for_id": row.id, "token": row.due_at}
            wait = self._wait_ms(message, target)
            if wait is None:
                sql.run(repository.DROP, **as_read)
            elif wait:
                sql.run(repository.PUT_OFF, **as_read, delay_ms=wait)
                self._scheduler.schedule(message.id, delay_ms=wait)
            elif message.attempts > len(RETRY_SECONDS):
                if _recorded(sql, message, NO_OUTCOME, DeliveryStatus.DEAD, 0) is not None:
                    self._observe("webhook.dead")
            else:
                body, lease_ms = message.body or write(message), self._policy.lease_ms
                lease = {"as_read": row.row_version, "new_body": body, "lease_ms": lease_ms}
                leased = sql.run(repository.CLAIM, **as_read, **lease)
                token = leased.scalar_one_or_none()
                if token is not None:
                    began = token - timedelta(milliseconds=lease_ms)
                    return ClaimedMessage(
                        replace(message, token=token, body=body, claimed_at=began), more
                    )
        return SOMETHING_ELSE

    def _wait_ms(self, message: Message, target: sa.Row[Any]) -> int | None:
        """How long a delivery has to wait; None if it is not to be sent at all."""
        reminder_ms = self._policy.reminder_ms
        left_ms: int | None = target.expires_in_ms
        if message.order is None or message.type != REMINDER:
            return 0
        lifetime = message.order.expires_at - message.at
        if (
            reminder_ms == 0
            or message.order.status is not OrderStatus.UNPAID
            or target.superseded
            or lifetime.total_seconds() * 1000 <= reminder_ms
            or left_ms is None
            or left_ms <= 0
        ):
            return None
        return max(0, left_ms - reminder_ms)

    @retried
    def record(self, message: Message, answer: Answer) -> bool:
        """Record what came of sending a message; return whether to look at its line again at once.

        An endpoint that is gone (410) pauses its subscription. Whoever lost the lease records nothing.
        """
        status, delay_ms = _next(message, answer)
        with self._writing() as sql:
            more = _recorded(sql, message, answer, status, delay_ms)
            if answer.status == HTTPStatus.GONE and more is not None:
                gone = {"for_id": message.subscription_id, "gone_url": message.url}
                # If it is not paused, it has another URL by now, or is to be cleared.
                more = not sql.run(repository.PAUSE_GONE, **gone).rowcount
        is_pending = status is DeliveryStatus.PENDING
        if more is None:
            return False
        self._observe("webhook.failed" if is_pending else f"webhook.{status}")
        if delay_ms:
            self._scheduler.schedule(message.id, delay_ms=delay_ms)
        return more

    @retried
    def prune(self) -> bool:
        """Delete delivered and dead deliveries that have been kept long enough; whether there may be more."""
        kept_ms = DAY_MS * self._policy.keep_days
        if not kept_ms:
            return False
        values = {"before_ms": -kept_ms, "page_size": SLICE}
        done = (DeliveryStatus.DELIVERED, DeliveryStatus.DEAD)
        with self._autocommit() as sql:
            pruned = [
                sql.run(repository.PRUNE, **values, old_status=each).rowcount for each in done
            ]
        return SLICE in pruned


def _message(row: sa.Row[Any], target: sa.Row[Any], order: Order | None) -> Message:
    return Message(
        id=row.id,
        token=row.due_at,
        subscription_id=row.subscription_id,
        url=target.url,
        secrets=tuple(target.secrets),
        attempts=row.attempts,
        type=row.type,
        at=target.event_at or row.created_at,
        sequence=row.event_id,
        facts=target.data or {},
        order=order,
        origin=Origin.parse(target.origin),
        body=row.body,
    )


def _recorded(
    sql: Statements, message: Message, answer: Answer, status: DeliveryStatus, delay_ms: int
) -> bool | None:
    """Record an attempt under its lease; return whether another delivery waited for it, or None if
    the lease was lost.
    """
    found = sql.run(
        repository.RECORD,
        for_id=message.id,
        token=message.token,
        new_status=status,
        delay_ms=delay_ms,
        answer_status=answer.status,
        answer_error=answer.error,
        answer_body=answer.body and answer.body[:KEPT_CHARACTERS],
    )
    has_successor: bool | None = found.scalar_one_or_none()
    return has_successor


def _add_interests(
    sql: Statements, client_id: str, subscription_id: str, types: Sequence[str]
) -> None:
    """Insert what events find a subscription by: the type of an event and that of its delivery."""
    pairs = [(each, each) for each in types if each != REMINDER]
    pairs += [(each, REMINDER) for each in SET_A_DEADLINE if REMINDER in types]
    of_one = {"client_id": client_id, "subscription_id": subscription_id}
    rows = [of_one | {"event_type": event, "type": kind} for event, kind in pairs]
    sql.run(insert(repository.interests).values(rows))


def _named(events: Sequence[str] | None) -> str | None:
    """As they are stored; None: all."""
    return None if events is None else " ".join(events)


def _types(events: Sequence[str] | None) -> tuple[str, ...]:
    """What to send for these events; None: all, also those of types that come later."""
    return (EVERY, REMINDER) if events is None else tuple(events)


def _next(message: Message, answer: Answer) -> tuple[DeliveryStatus, int]:
    """A delivery's status after an attempt, and in how many ms it is due again."""
    if answer.is_success:
        return DeliveryStatus.DELIVERED, 0
    if answer.status == HTTPStatus.GONE:
        return DeliveryStatus.PENDING, 0
    if message.attempts >= len(RETRY_SECONDS):
        return DeliveryStatus.DEAD, 0
    asked = answer.asked_seconds(message.claimed_at or message.token)
    seconds = max(RETRY_SECONDS[message.attempts], min(asked, sum(RETRY_SECONDS)))
    return DeliveryStatus.PENDING, round(1000 * seconds)
