"""The SQL statements on webhook subscriptions and deliveries, each with a name and a sentence.

Deliveries are made by the statements that write events: see `orders.order.operations`.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.order.domain import Order
from orders.order.origin import Origin
from orders.sql.expressions import Id, Instant, later, ms_until, now, one_of, unindexed
from orders.sql.ids import new_id
from orders.sql.statements import FIRST, Position, Statements, after_last
from orders.sql.steps import Operation, Step
from orders.sql.tables import (
    PENDING,
    api_clients,
    order_events,
    orders,
    unpaid_orders,
    webhook_deliveries,
    webhook_interests,
    webhook_subscriptions,
)
from orders.webhooks.domain import (
    REMINDER,
    SET_A_DEADLINE,
    Answer,
    Delivery,
    DeliveryStatus,
    Message,
    Subscription,
)

p = sa.bindparam
subscriptions, deliveries, interests = (
    webhook_subscriptions,
    webhook_deliveries,
    webhook_interests,
)
OWN = (
    subscriptions.c.id == p("for_id"),
    subscriptions.c.client_id == p("for_client"),
    subscriptions.c.deleted_at.is_(None),
)
#: Pending, for statements that name their delivery.
NOT_DONE = unindexed(deliveries.c.status == PENDING)
#: A delivery whose lease this process has.
LEASED = (
    deliveries.c.id == p("for_id"),
    NOT_DONE,
    deliveries.c.due_at == p("token", type_=Instant),
)


#: A delivery that has been overdue for longer is not tried any more, because its task is a dead
#: letter. Later deliveries do not wait for it.
STALLED_MS = 86_400_000


#: Reads an order of a client, on a connection.
ReadOrder = Callable[[sa.Connection, str, str], Order | None]


class Upcoming(NamedTuple):
    """A delivery that waits, and the milliseconds until it is due; negative when it is overdue."""

    id: str
    due_at: datetime
    due_in_ms: int


class ClaimedDelivery(NamedTuple):
    """A delivery under a lease, with what decides whether it is sent."""

    id: str
    leased_until: datetime
    type: str
    attempts: int
    sequence: int
    subscription: Subscription
    secrets: tuple[str, ...]
    deleted: bool
    #: An earlier event of the same order was not tried yet, or is being sent for the first time.
    has_predecessor: bool
    #: A later event set the deadline anew.
    superseded: bool
    at: datetime
    facts: dict[str, Any]
    order: Order
    expires_in_ms: int
    origin: Origin

    def message(self) -> Message:
        return Message(
            id=self.id,
            leased_until=self.leased_until,
            subscription_id=self.subscription.id,
            url=self.subscription.url,
            secrets=self.secrets,
            attempts=self.attempts,
            type=self.type,
            at=self.at,
            sequence=self.sequence,
            facts=self.facts,
            order=self.order,
            origin=self.origin,
        )


@Operation
def subscribe(step: Step) -> sa.Select[Any]:
    """Insert a subscription, and the interests by which events find it.

    It locks the client's row, so that a client's subscriptions are made one after another.
    """
    columns = ("id", "client_id", "url", "events", "secret", "created_at")
    client = step(
        "client",
        sa.select(api_clients.c.id)
        .where(api_clients.c.id == p("new_client_id", type_=Id))
        .with_for_update(key_share=True),
    )
    values = (
        *(p(f"new_{name}", type_=subscriptions.c[name].type) for name in columns[:-1]),
        now(),
    )
    row = sa.select(*values).select_from(client)
    made = step("made", sa.insert(subscriptions).from_select(columns, row).returning(subscriptions))
    # Each pair is an event's type and the type of its delivery.
    for name in ("plain", "reminding"):
        pairs = sa.func.json_each_text(p(name, type_=sa.JSON))
        pair = pairs.table_valued(sa.column("key", sa.String), "value", name=f"{name}_pair")
        rows = sa.select(made.c.client_id, pair.c.key, made.c.id, pair.c.value)
        names = ("client_id", "event_type", "subscription_id", "type")
        step(name, sa.insert(interests).from_select(names, rows.join_from(made, pair, sa.true())))
    return sa.select(made)


@Operation
def unsubscribe(step: Step) -> sa.Select[Any]:
    """Mark a client's own subscription as deleted; it gets no more deliveries. Returns its id, if
    it existed.
    """
    deleted = step(
        "deleted",
        sa.update(subscriptions)
        .where(*OWN)
        .values(deleted_at=now(), secret="", previous_secret=None)
        .returning(subscriptions.c.id, subscriptions.c.client_id),
    )
    step(
        "interests",
        sa.delete(interests).where(
            one_of(interests.c.client_id, sa.select(deleted.c.client_id)),
            one_of(interests.c.subscription_id, sa.select(deleted.c.id)),
        ),
    )
    return sa.select(deleted.c.id)


# How many subscriptions a client has.
COUNT_SUBSCRIPTIONS = sa.select(sa.func.count()).where(
    subscriptions.c.client_id == p("for_client"), subscriptions.c.deleted_at.is_(None)
)
# One subscription of one client.
GET_SUBSCRIPTION = sa.select(subscriptions).where(*OWN)
# A client's subscriptions, oldest first, from a page's end on.
LIST_SUBSCRIPTIONS = (
    sa.select(subscriptions)
    .where(
        subscriptions.c.client_id == p("for_client"),
        subscriptions.c.deleted_at.is_(None),
        after_last(subscriptions.c.created_at, subscriptions.c.id),
    )
    .order_by(subscriptions.c.created_at, subscriptions.c.id)
    .limit(p("page_size"))
)
# Pause a client's own subscription, unless it is paused.
PAUSE = (
    sa.update(subscriptions)
    .where(*OWN, subscriptions.c.paused_at.is_(None))
    .values(paused_at=now(), pause_reason=p("for_reason"))
)
# Resume a client's own subscription.
RESUME = sa.update(subscriptions).where(*OWN).values(paused_at=None, pause_reason=None)
# Give a client's own subscription a new secret; for some time the previous one signs too.
ROTATE = (
    sa.update(subscriptions)
    .where(*OWN)
    .values(
        secret=p("new_secret"),
        previous_secret=subscriptions.c.secret,
        previous_secret_expires_at=later(now(), "overlap_ms"),
    )
    .returning(subscriptions)
)
# Pause a subscription whose endpoint is gone.
PAUSE_GONE = (
    sa.update(subscriptions)
    .where(subscriptions.c.id == p("for_id"), subscriptions.c.paused_at.is_(None))
    .values(paused_at=now(), pause_reason="gone")
)

_of_one = sa.select(deliveries.c.id).where(
    deliveries.c.subscription_id == p("for_subscription"),
    deliveries.c.status == "pending",
    deliveries.c.due_at > later(now(), "lease_ms"),
)
# Make a page of a subscription's deliveries due now, of those that are due later than any lease
# ends.
BRING_FORWARD = (
    sa.update(deliveries)
    .where(
        one_of(
            deliveries.c.id,
            _of_one.order_by(deliveries.c.created_at, deliveries.c.id).limit(p("page_size")),
        ),
        NOT_DONE,
    )
    .values(due_at=now())
    .returning(deliveries.c.id)
)

# Lease a delivery that is due: nobody else sends it meanwhile.
CLAIM = (
    sa.update(deliveries)
    .where(deliveries.c.id == p("for_id"), NOT_DONE, deliveries.c.due_at <= now())
    .values(due_at=later(now(), "lease_ms"))
    .returning(deliveries)
)
# In how many ms a pending delivery is due.
GET_DUE = sa.select(ms_until(deliveries.c.due_at)).where(deliveries.c.id == p("for_id"), NOT_DONE)
_earlier = deliveries.alias("earlier")
_newer = order_events.alias("newer")
_of_order = p("for_order", type_=deliveries.c.order_id.type)
# A subscription with the event to send to it, and whether another delivery comes first.
GET_TARGET = (
    sa.select(
        subscriptions,
        (subscriptions.c.previous_secret_expires_at > now()).label("previous_is_valid"),
        order_events.c.at.label("event_at"),
        order_events.c.data,
        sa.select(ms_until(unpaid_orders.c.expires_at))
        .where(unpaid_orders.c.order_id == _of_order)
        .scalar_subquery()
        .label("expires_in_ms"),
        orders.c.origin,
        sa.exists()
        .where(
            _earlier.c.order_id == _of_order,
            _earlier.c.subscription_id == p("for_subscription"),
            _earlier.c.event_id < p("before_event"),
            _earlier.c.status == "pending",
            _earlier.c.attempts == 0,
            _earlier.c.due_at > later(now(), "stalled_ms"),
            _earlier.c.type != REMINDER,
        )
        .label("has_predecessor"),
        sa.exists()
        .where(
            _newer.c.order_id == _of_order,
            _newer.c.id > p("for_event"),
            _newer.c.type.in_(SET_A_DEADLINE),
        )
        .label("superseded"),
    )
    .select_from(
        subscriptions.join(order_events, sa.true()).join(orders, sa.true()),
    )
    .where(
        subscriptions.c.id == p("for_subscription"),
        order_events.c.order_id == _of_order,
        order_events.c.id == p("for_event"),
        orders.c.id == _of_order,
    )
)
# Put off a delivery that is leased.
PUT_OFF = sa.update(deliveries).where(*LEASED).values(due_at=later(now(), "delay_ms"))
# Delete a delivery that is leased, and is no longer to be sent.
DROP = sa.delete(deliveries).where(*LEASED)
# Record what came of sending a delivery that is leased.
RECORD = (
    sa.update(deliveries)
    .where(*LEASED)
    .values(
        status=p("new_status"),
        due_at=later(now(), "delay_ms"),
        attempts=deliveries.c.attempts + 1,
        delivered_at=sa.case((p("new_status") == "delivered", now())),
        last_attempt_at=now(),
        last_status=p("answer_status"),
        last_error=p("answer_error"),
        last_body=p("answer_body"),
    )
)
_old = sa.select(deliveries.c.id).where(
    deliveries.c.subscription_id == p("for_subscription"),
    deliveries.c.status == p("old_status"),
    deliveries.c.created_at < later(now(), "before_ms"),  # for the index
    deliveries.c.due_at < later(now(), "before_ms"),  # when it was delivered, or given up
)
# Delete a page of a subscription's old deliveries with a status, oldest first, unless they were
# just sent again.
PRUNE = sa.delete(deliveries).where(
    one_of(
        deliveries.c.id,
        _old.order_by(deliveries.c.created_at, deliveries.c.id).limit(p("page_size")),
    ),
    deliveries.c.status == p("old_status"),
)
_by_due = (deliveries.c.due_at, deliveries.c.id)
# A page of pending deliveries by due time, up to a time from now, and after another one. Two statements,
# because with a null bound the index would not be used.
LIST_DUE = (
    sa.select(*_by_due, ms_until(deliveries.c.due_at).label("ms"))
    .where(
        deliveries.c.status == PENDING,
        deliveries.c.due_at <= later(now(), "before_ms"),
        after_last(*_by_due),
    )
    .order_by(*_by_due)
    .limit(p("page_size"))
)
LIST_DUE_AFTER = LIST_DUE.where(deliveries.c.due_at > later(now(), "after_ms"))
# One delivery.
GET_DELIVERY = sa.select(deliveries).where(deliveries.c.id == p("for_id"))
# The client of a subscription that is not deleted.
GET_OWNER = sa.select(subscriptions.c.client_id).where(
    subscriptions.c.id == p("for_id"), subscriptions.c.deleted_at.is_(None)
)
# Have a delivery sent again, as if for the first time.
REDELIVER = (
    sa.update(deliveries)
    .where(deliveries.c.id == p("for_id"))
    .values(status="pending", due_at=now(), attempts=0, delivered_at=None)
    .returning(deliveries)
)


class WebhookRepository(Statements):
    """Webhook subscriptions and deliveries, on one connection."""

    def __init__(self, connection: sa.Connection, read_order: ReadOrder) -> None:
        super().__init__(connection)
        self._read_order = read_order

    # -- subscriptions --

    def subscribe(
        self,
        client_id: str,
        *,
        url: str,
        events: Sequence[str] | None,
        types: Sequence[str],
        secret: str,
    ) -> Subscription:
        """Insert a subscription to ``types``; ``events`` are those that were named, or None for all."""
        [row] = subscribe(
            self._connection,
            new_id=new_id(),
            new_client_id=client_id,
            new_url=url,
            new_events=None if events is None else " ".join(events),
            new_secret=secret,
            plain={each: each for each in types if each != REMINDER},
            reminding=dict.fromkeys(SET_A_DEADLINE if REMINDER in types else (), REMINDER),
        )
        return _subscription(row)

    def count(self, client_id: str) -> int:
        count: int = self._run(COUNT_SUBSCRIPTIONS, for_client=client_id).scalar_one()
        return count

    def unsubscribe(self, client_id: str, subscription_id: str) -> bool:
        """Delete a subscription; return whether there was one."""
        values = {"for_client": client_id, "for_id": subscription_id}
        return bool(unsubscribe(self._connection, **values))

    def subscription(self, client_id: str, subscription_id: str) -> Subscription | None:
        values = {"for_client": client_id, "for_id": subscription_id}
        row = self._run(GET_SUBSCRIPTION, **values).one_or_none()
        return None if row is None else _subscription(row)

    def subscriptions(
        self, client_id: str, *, page_size: int, after: Position | None
    ) -> list[Subscription]:
        """A client's subscriptions, oldest first."""
        at, last_id = after or FIRST
        values = {"last_at": at, "last_id": last_id, "page_size": page_size}
        rows = self._run(LIST_SUBSCRIPTIONS, for_client=client_id, **values)
        return [_subscription(row) for row in rows]

    def pause(self, client_id: str, subscription_id: str) -> None:
        """Pause a subscription on request, unless it is paused."""
        values = {"for_client": client_id, "for_id": subscription_id}
        self._run(PAUSE, **values, for_reason="requested")

    def resume(self, client_id: str, subscription_id: str) -> None:
        self._run(RESUME, for_client=client_id, for_id=subscription_id)

    def rotate(
        self, client_id: str, subscription_id: str, secret: str, overlap_ms: int
    ) -> Subscription | None:
        """Give a subscription a new secret; the previous one signs too for ``overlap_ms``."""
        values = {"for_client": client_id, "for_id": subscription_id, "overlap_ms": overlap_ms}
        row = self._run(ROTATE, **values, new_secret=secret).one_or_none()
        return None if row is None else _subscription(row)

    def bring_forward(self, subscription_id: str, lease_ms: int, page_size: int) -> list[str]:
        """Make a page of the deliveries that wait for later due now; return their ids."""
        values = {"for_subscription": subscription_id, "lease_ms": lease_ms}
        return [*self._run(BRING_FORWARD, **values, page_size=page_size).scalars()]

    # -- deliveries --

    def deliveries(
        self, subscription_id: str, *, status: str | None, page_size: int, after: Position | None
    ) -> list[Delivery]:
        """A subscription's deliveries, oldest first. Each status is read from the index in this order."""
        at, last_id = after or FIRST
        pages = [
            sa.select(deliveries)
            .where(
                deliveries.c.subscription_id == p("for_subscription"),
                deliveries.c.status == one,
                after_last(deliveries.c.created_at, deliveries.c.id),
            )
            .order_by(deliveries.c.created_at, deliveries.c.id)
            .limit(p("page_size"))
            .subquery()
            for one in ([status] if status else DeliveryStatus)
        ]
        found = sa.union_all(*map(sa.select, pages)).subquery()
        query = sa.select(found).order_by(found.c.created_at, found.c.id).limit(p("page_size"))
        values = {"last_at": at, "last_id": last_id, "page_size": page_size}
        rows = self._run(query, for_subscription=subscription_id, **values)
        return [delivery_of(row) for row in rows]

    def delivery(self, delivery_id: str) -> Delivery | None:
        row = self._run(GET_DELIVERY, for_id=delivery_id).one_or_none()
        return None if row is None else delivery_of(row)

    def owner(self, subscription_id: str) -> str | None:
        """Whose subscription it is; None once it is deleted."""
        owner: str | None = self._run(GET_OWNER, for_id=subscription_id).scalar_one_or_none()
        return owner

    def redeliver(self, delivery_id: str) -> Delivery | None:
        """Have a delivery sent again, with all of its attempts ahead; None if it no longer exists."""
        row = self._run(REDELIVER, for_id=delivery_id).one_or_none()
        return None if row is None else delivery_of(row)

    def upcoming(
        self, after_ms: int | None, before_ms: int, page_size: int, last: Upcoming | None
    ) -> list[Upcoming]:
        """A page of pending deliveries that are due within bounds from now, soonest first."""
        at, last_id = FIRST if last is None else (last.due_at, last.id)
        values = {"before_ms": before_ms, "page_size": page_size, "last_at": at, "last_id": last_id}
        if after_ms is None:
            rows = self._run(LIST_DUE, **values)
        else:
            rows = self._run(LIST_DUE_AFTER, **values, after_ms=after_ms)
        return [Upcoming(row.id, row.due_at, row.ms) for row in rows]

    def claim(self, delivery_id: str, lease_ms: int) -> ClaimedDelivery | None:
        """Lease a delivery that is due, and read what is needed to send it; None if it is not due."""
        row = self._run(CLAIM, for_id=delivery_id, lease_ms=lease_ms).one_or_none()
        if row is None:
            return None
        target = self._run(
            GET_TARGET,
            for_subscription=row.subscription_id,
            for_order=row.order_id,
            for_event=row.event_id,
            # A reminder comes after the event that set the deadline.
            before_event=row.event_id + (row.type == REMINDER),
            stalled_ms=-STALLED_MS,
        ).one()
        order = self._read_order(self._connection, row.order_id, target.client_id)
        assert order is not None  # none is ever deleted
        previous = [target.previous_secret] if target.previous_is_valid else []
        return ClaimedDelivery(
            id=row.id,
            leased_until=row.due_at,
            type=row.type,
            attempts=row.attempts,
            sequence=row.event_id,
            subscription=_subscription(target),
            secrets=(target.secret, *previous),
            deleted=target.deleted_at is not None,
            has_predecessor=bool(target.has_predecessor),
            superseded=bool(target.superseded),
            at=target.event_at,
            facts=target.data,
            order=order,
            expires_in_ms=target.expires_in_ms,
            origin=Origin.parse(target.origin),
        )

    def due_in_ms(self, delivery_id: str) -> int | None:
        """In how many ms a pending delivery is due; None if it is not pending."""
        due: int | None = self._run(GET_DUE, for_id=delivery_id).scalar_one_or_none()
        return due

    def put_off(self, delivery_id: str, token: datetime, delay_ms: int) -> None:
        """Postpone a leased delivery."""
        self._run(PUT_OFF, for_id=delivery_id, token=token, delay_ms=delay_ms)

    def drop(self, delivery_id: str, token: datetime) -> None:
        """Delete a leased delivery."""
        self._run(DROP, for_id=delivery_id, token=token)

    def record(
        self, message: Message, answer: Answer, status: DeliveryStatus, delay_ms: int
    ) -> bool:
        """Record an attempt under its lease; return whether the lease still held."""
        result = self._run(
            RECORD,
            for_id=message.id,
            token=message.leased_until,
            new_status=str(status),
            delay_ms=delay_ms,
            answer_status=answer.status,
            answer_error=answer.error,
            answer_body=answer.body,
        )
        return bool(result.rowcount)

    def prune(
        self, subscription_id: str, status: DeliveryStatus, kept_ms: int, page_size: int
    ) -> int:
        """Delete a page of a subscription's deliveries with a status that are older than
        ``kept_ms``; return how many.
        """
        values = {"for_subscription": subscription_id, "old_status": str(status)}
        result = self._run(PRUNE, **values, before_ms=-kept_ms, page_size=page_size)
        return result.rowcount

    def pause_gone(self, subscription_id: str) -> None:
        """Pause a subscription whose endpoint answered that it is gone."""
        self._run(PAUSE_GONE, for_id=subscription_id)


def _subscription(row: sa.Row[Any]) -> Subscription:
    return Subscription(
        id=row.id,
        url=row.url,
        events=None if row.events is None else tuple(row.events.split()),
        created_at=row.created_at,
        paused_at=row.paused_at,
        pause_reason=row.pause_reason,
        previous_secret_expires_at=row.previous_secret_expires_at,
    )


def delivery_of(row: sa.Row[Any]) -> Delivery:
    status = DeliveryStatus(row.status)
    return Delivery(
        id=row.id,
        subscription_id=row.subscription_id,
        order_id=row.order_id,
        type=row.type,
        status=status,
        attempts=row.attempts,
        created_at=row.created_at,
        next_attempt_at=row.due_at if status is DeliveryStatus.PENDING else None,
        delivered_at=row.delivered_at,
        last_attempt_at=row.last_attempt_at,
        last_status=row.last_status,
        last_error=row.last_error,
        last_body=row.last_body,
    )
