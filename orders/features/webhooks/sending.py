"""What the worker does with deliveries: finds those that are due, sends each under a lease, and prunes.

A delivery is a row, written with its event by a trigger (``outbox.sql``), so none is lost and none is
invented. It is sent under a lease, outside of any transaction: the process whose conditional UPDATE
moved its ``due_at`` forward sends it, and records the outcome only if ``due_at`` has not changed
since.

A subscription's pending deliveries are its line, in the order in which they are due. While there are
any, Redis has one task, of the subscription: however long its line is, it is one thing to look at.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.config import Settings
from orders.db.errors import retried
from orders.db.ids import array_of
from orders.db.statements import Service, made_of, one
from orders.features.signing.sender import Answer
from orders.features.signing.settings import SendingSettings
from orders.features.webhooks.domain import REMINDER, DeliveryStatus, Message, WaitingSubscription
from orders.features.webhooks.service import SQL
from orders.features.webhooks.settings import WebhookSettings
from orders.hooks import CheckScheduler, Hooks
from orders.order.domain import Order, OrderStatus
from orders.order.rows import ORDER
from orders.order.rows import SQL as ORDERS

#: How long to wait after each failed attempt, or longer if the endpoint asks for it, up to all of it. After
#: the last one, three days in all, the delivery is dead.
RETRY_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, *8 * [28_800])
#: How long it may take to record the outcome after a request has ended.
GRACE_SECONDS = 10.0
#: How much of an answer is kept.
KEPT_CHARACTERS = 1000
#: How many deliveries one statement deletes.
SLICE = 1000
DAY_MS = 86_400_000


#: Of a delivery whose last attempt began, and whose worker died with it.
NO_OUTCOME = Answer(None, "the worker stopped", None)


class ClaimedMessage(NamedTuple):
    """What a look at a subscription brought: a message to send, and whether to look again."""

    message: Message | None
    more: bool


_waiting = made_of(WaitingSubscription)
NOTHING, SOMETHING_ELSE = ClaimedMessage(None, more=False), ClaimedMessage(None, more=True)


class Sending(Service):
    def __init__(
        self,
        engine: sa.Engine,
        scheduler: CheckScheduler,
        settings: Settings,
        observe: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(engine)
        self._scheduler = scheduler
        self._settings = settings[WebhookSettings]
        timeout_seconds = settings[SendingSettings].webhook_timeout_seconds
        self._lease_ms = round(1000 * (timeout_seconds + GRACE_SECONDS))
        self._observe = observe or Hooks().observe

    def offer_reminders(self) -> None:
        """Have subscriptions get reminders if there are any now, whenever they were made."""
        with self._autocommit() as sql:
            SQL.set_reminders(sql, reminds=self._settings.reminder_ms > 0)

    def lines(
        self,
        ids: Sequence[str] | None = None,
        *,
        after_ms: int | None = None,
        before_ms: int | None = None,
    ) -> list[WaitingSubscription]:
        """Those of these subscriptions that something waits for, soonest first, within bounds from now; None: of all."""
        values = {"ids": None if ids is None else array_of(ids), "after_ms": after_ms}
        return self._all(_waiting, SQL.find_lines, **values, before_ms=before_ms)

    @retried
    def claim(self, subscription_id: str, write: Callable[[Message], str | None]) -> ClaimedMessage:
        """Lease the first delivery of a subscription that may be sent now; ``write`` makes its body."""
        with self._autocommit() as sql:  # each write is guarded by what was read
            found = SQL.look(sql, subscription_id=subscription_id).all()
            if not found:
                return NOTHING
            row, more = found[0], len(found) > 1
            of = {"order_id": row.order_id, "event_id": row.event_id}
            target = SQL.get_target(sql, subscription_id=subscription_id, **of).one()
            if target.paused_at is not None:
                return NOTHING
            order = None
            if row.order_id is not None:
                named = {"id": row.order_id, "client_id": target.client_id}
                order = one(ORDER, ORDERS.get_order(sql, **named))
            message, as_read = _message(row, target, order), {"id": row.id, "token": row.due_at}
            wait = self._wait_ms(message, target)
            if wait is None:
                SQL.drop(sql, **as_read)
            elif wait:
                SQL.put_off(sql, **as_read, delay_ms=wait)
            elif message.attempts > len(RETRY_SECONDS):
                if _recorded(sql, message, NO_OUTCOME, DeliveryStatus.DEAD, 0) is not None:
                    self._observe("webhook.dead")
            else:
                body, lease_ms = message.body or write(message), self._lease_ms
                lease = {"as_read": row.row_version, "body": body, "lease_ms": lease_ms}
                leased = SQL.claim(sql, **as_read, **lease)
                token = leased.scalar_one_or_none()
                if token is not None:
                    began = token - timedelta(milliseconds=lease_ms)
                    return ClaimedMessage(
                        replace(message, token=token, body=body, claimed_at=began), more
                    )
        return SOMETHING_ELSE

    def _wait_ms(self, message: Message, target: sa.Row[Any]) -> int | None:
        """How long a delivery has to wait; None if it is not to be sent at all."""
        reminder_ms = self._settings.reminder_ms
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
                gone = {"id": message.subscription_id, "url": message.url}
                # If it does not pause it, it has another URL by now.
                more = not SQL.pause_gone(sql, **gone).rowcount
        is_pending = status is DeliveryStatus.PENDING
        if more is None:
            return False
        self._observe("webhook.failed" if is_pending else f"webhook.{status}")
        if delay_ms:
            self._scheduler.schedule(message.subscription_id, delay_ms=0)
        return more

    @retried
    def prune(self) -> bool:
        """Delete deliveries that have been kept long enough, and those of deleted subscriptions; whether there may be more."""
        values = {"kept_ms": DAY_MS * self._settings.webhook_keep_days, "page_size": SLICE}
        with self._autocommit() as sql:
            return SQL.prune(sql, **values).rowcount == SLICE


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
        origin=target.origin,
        body=row.body,
    )


def _recorded(
    sql: sa.Connection, message: Message, answer: Answer, status: DeliveryStatus, delay_ms: int
) -> bool | None:
    """Record an attempt under its lease; return whether another delivery waited for it, or None if
    the lease was lost.
    """
    found = SQL.record(
        sql,
        id=message.id,
        token=message.token,
        status=status,
        delay_ms=delay_ms,
        answer_status=answer.status,
        answer_error=answer.error,
        answer_body=answer.body and answer.body[:KEPT_CHARACTERS],
    )
    has_successor: bool | None = found.scalar_one_or_none()
    return has_successor


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
