"""The SQL statements on webhook subscriptions and deliveries, each with a name and a sentence.

Deliveries are made by the statements that write events: see `orders.order.operations`.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from orders.order.domain import Order
from orders.order.origin import Origin
from orders.sql.expressions import (
    Id,
    Instant,
    ids,
    later,
    ms_until,
    now,
    one_of,
    text_literal,
    unindexed,
)
from orders.sql.secrets import Secrets
from orders.sql.statements import FIRST, Position, Statements, after_last
from orders.sql.tables import (
    PENDING,
    api_clients,
    order_events,
    orders,
    unpaid_orders,
    webhook_deliveries,
    webhook_interests,
    webhook_secrets,
    webhook_subscriptions,
)
from orders.webhooks.domain import (
    PING,
    REMINDER,
    SET_A_DEADLINE,
    Answer,
    Delivery,
    DeliveryStatus,
    Message,
    Subscription,
)
from orders.webhooks.signatures import MAX_SIGNATURES

p = sa.bindparam
subscriptions, secrets, deliveries, interests = (
    webhook_subscriptions,
    webhook_secrets,
    webhook_deliveries,
    webhook_interests,
)
SECRETS = Secrets(secrets)
#: A subscription of a client; of any client, if none is given.
OWN = (
    subscriptions.c.id == p("for_id"),
    subscriptions.c.client_id
    == sa.func.coalesce(p("for_client", type_=Id), subscriptions.c.client_id),
    subscriptions.c.deleted_at.is_(None),
)
#: Pending, for statements that name their delivery.
NOT_DONE = unindexed(deliveries.c.status == PENDING)
#: A delivery that nobody has claimed, put off or recorded since this process read or claimed it.
AS_READ = (
    deliveries.c.id == p("for_id"),
    NOT_DONE,
    deliveries.c.due_at == p("token", type_=Instant),
)

#: Reads an order of a client, on a connection.
ReadOrder = Callable[[sa.Connection, str, str], Order | None]


class Line(NamedTuple):
    """A subscription with a delivery that waits, and the milliseconds until the first one is due."""

    #: The delivery's or the subscription's, by which it was asked for.
    id: str
    subscription_id: str
    client_id: str
    due_in_ms: int


class Candidate(NamedTuple):
    """A delivery that is due, with what decides whether it is sent."""

    message: Message
    #: Whether its subscription is deleted, or paused.
    deleted: bool
    paused: bool
    #: A later event set the deadline anew.
    superseded: bool
    expires_in_ms: int | None


# Lock a client, so that its subscriptions are made one after another.
LOCK_CLIENT = (
    sa.select(api_clients.c.id)
    .where(api_clients.c.id == p("for_client"))
    .with_for_update(key_share=True)
)
# Lock a client's own subscription.
LOCK_OWN = sa.select(subscriptions.c.id).where(*OWN).with_for_update()
# Mark a client's own subscription as deleted; it gets no more deliveries.
UNSUBSCRIBE = sa.update(subscriptions).where(*OWN).values(deleted_at=now(), paused_at=None)
# How many subscriptions a client has.
COUNT_SUBSCRIPTIONS = sa.select(sa.func.count()).where(
    subscriptions.c.client_id == p("for_client"), subscriptions.c.deleted_at.is_(None)
)
_shown = sa.select(
    subscriptions,
    SECRETS.old_until(subscriptions.c.id).label("previous_secret_expires_at"),
)
# One subscription of one client.
GET_SUBSCRIPTION = _shown.where(*OWN)
# A client's subscriptions, oldest first, from a page's end on.
LIST_SUBSCRIPTIONS = (
    _shown.where(
        subscriptions.c.client_id == p("for_client"),
        subscriptions.c.deleted_at.is_(None),
        after_last(subscriptions.c.created_at, subscriptions.c.id),
    )
    .order_by(subscriptions.c.created_at, subscriptions.c.id)
    .limit(p("page_size"))
)
# Send a client's own subscription's events elsewhere, or other ones.
CHANGE = (
    sa.update(subscriptions)
    .where(*OWN)
    .values(
        url=sa.func.coalesce(p("new_url", type_=sa.String), subscriptions.c.url),
        events=sa.case((p("other_events"), p("new_events")), else_=subscriptions.c.events),
    )
)
DELETE_INTERESTS = sa.delete(interests).where(
    interests.c.client_id == p("for_client"), interests.c.subscription_id == p("for_id")
)
# Pause a client's own subscription, unless it is paused.
PAUSE = (
    sa.update(subscriptions)
    .where(*OWN, subscriptions.c.paused_at.is_(None))
    .values(paused_at=now(), pause_reason=p("for_reason"))
)
# Resume a client's own subscription.
RESUME = sa.update(subscriptions).where(*OWN).values(paused_at=None, pause_reason=None)
# Pause a subscription whose endpoint is gone, unless it has another one by now.
PAUSE_GONE = (
    sa.update(subscriptions)
    .where(
        subscriptions.c.id == p("for_id"),
        subscriptions.c.url == p("gone_url"),
        subscriptions.c.paused_at.is_(None),
    )
    .values(paused_at=now(), pause_reason="gone")
)

_by_due = (deliveries.c.due_at, deliveries.c.id)
_earlier = deliveries.alias("earlier")
# The first deliveries of a subscription that are due: two, which tells whether there are more. One whose
# order has an earlier event that was not tried yet is passed over: whoever tries that one looks again.
# A reminder comes after the event that set the deadline.
LOOK = (
    sa.select(deliveries)
    .where(
        deliveries.c.subscription_id == p("for_subscription"),
        deliveries.c.status == PENDING,
        deliveries.c.due_at <= now(),
        # Asked of each row in turn: as a join it would be asked of all of them first.
        unindexed(
            ~sa.exists().where(
                _earlier.c.order_id == deliveries.c.order_id,
                _earlier.c.subscription_id == p("for_subscription"),
                _earlier.c.event_id
                < deliveries.c.event_id + sa.case((deliveries.c.type == REMINDER, 1), else_=0),
                unindexed(_earlier.c.status == PENDING),
                _earlier.c.last_attempt_at.is_(None),
                _earlier.c.type != REMINDER,
            )
        ),
    )
    .order_by(*_by_due)
    .limit(2)
)
# Lease a delivery that is as it was read: nobody else sends it meanwhile. Its body is kept for later attempts.
CLAIM = (
    sa.update(deliveries)
    .where(*AS_READ)
    .values(
        due_at=later(now(), "lease_ms"),
        attempts=deliveries.c.attempts + 1,
        body=p("new_body", type_=deliveries.c.body.type),
    )
    .returning(deliveries.c.due_at)
)
_newer = order_events.alias("newer")
_of_order = p("for_order", type_=deliveries.c.order_id.type)
# The secrets that sign for a subscription, newest first.
LIST_SECRETS = (
    sa.select(secrets.c.secret)
    .where(secrets.c.subscription_id == p("for_subscription"), SECRETS.is_valid)
    .order_by(secrets.c.created_at.desc(), secrets.c.id.desc())
    .limit(sa.literal_column(str(MAX_SIGNATURES)))
)
_secrets = LIST_SECRETS.scalar_subquery()
# A subscription with the event to send to it, and what decides about a reminder.
GET_TARGET = (
    sa.select(
        subscriptions,
        sa.func.array(_secrets, type_=ARRAY(sa.String)).label("secrets"),
        order_events.c.at.label("event_at"),
        order_events.c.data,
        sa.select(ms_until(unpaid_orders.c.expires_at))
        .where(unpaid_orders.c.order_id == _of_order)
        .scalar_subquery()
        .label("expires_in_ms"),
        orders.c.origin,
        sa.exists()
        .where(
            _newer.c.order_id == _of_order,
            _newer.c.id > p("for_event"),
            _newer.c.type.in_(SET_A_DEADLINE),
        )
        .label("superseded"),
    )
    .select_from(
        subscriptions.outerjoin(
            order_events,
            sa.and_(order_events.c.order_id == _of_order, order_events.c.id == p("for_event")),
        ).outerjoin(orders, orders.c.id == _of_order)
    )
    .where(subscriptions.c.id == p("for_subscription"))
)
# Put off a delivery that is as it was read.
PUT_OFF = sa.update(deliveries).where(*AS_READ).values(due_at=later(now(), "delay_ms"))
# Delete a delivery that is as it was read, and is no longer to be sent.
DROP = sa.delete(deliveries).where(*AS_READ)
# Delete a page of a subscription's deliveries, those that are pending last.
DROP_PAGE = sa.delete(deliveries).where(
    one_of(
        deliveries.c.id,
        sa.select(deliveries.c.id)
        .where(deliveries.c.subscription_id == p("for_subscription"))
        .order_by(*(deliveries.c[name] for name in ("status", "created_at", "id")))
        .limit(p("page_size")),
    )
)
_next = deliveries.alias("next")
# Record what came of a delivery that is as it was read. Returns whether a later event of its order waits
# for the same subscription.
RECORD = (
    sa.update(deliveries)
    .where(*AS_READ)
    .values(
        status=p("new_status"),
        due_at=later(now(), "delay_ms"),
        body=sa.case((p("new_status") != "delivered", deliveries.c.body)),
        delivered_at=sa.case((p("new_status") == "delivered", now())),
        last_attempt_at=now(),
        last_status=p("answer_status"),
        last_error=p("answer_error"),
        last_body=p("answer_body"),
    )
    .returning(
        sa.exists()
        .where(
            _next.c.order_id == deliveries.c.order_id,
            _next.c.subscription_id == deliveries.c.subscription_id,
            _next.c.event_id >= deliveries.c.event_id,
            _next.c.id != deliveries.c.id,
            unindexed(_next.c.status == PENDING),
            _next.c.due_at <= now(),
        )
        .label("has_successor")
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
_head = (
    sa.select(deliveries.c.subscription_id, *_by_due)
    .where(deliveries.c.status == PENDING)
    .order_by(deliveries.c.subscription_id, *_by_due)
    .limit(1)
)


def heads_of_lines() -> sa.CTE:
    """The subscriptions with pending deliveries, and when the first one's is due.

    It reads one index entry for each, however many deliveries those have.
    """
    first = _head.where(deliveries.c.subscription_id > FIRST.id).subquery("first")
    heads = sa.select(first).cte("heads", recursive=True)
    after = _head.where(deliveries.c.subscription_id > heads.c.subscription_id).lateral("after")
    return heads.union_all(sa.select(after).select_from(heads.join(after, sa.true())))


def _unpaused(subscription_id: sa.ColumnElement[str]) -> sa.Label[Any]:
    """The client of a subscription that is not paused."""
    found = sa.select(subscriptions.c.client_id).where(
        subscriptions.c.id == subscription_id, subscriptions.c.paused_at.is_(None)
    )
    return found.scalar_subquery().label("client_id")


def _lines() -> sa.Select[Any]:
    """The subscriptions that are not paused and have a delivery that is due between two times from
    now, with the first one's.
    """
    heads = heads_of_lines()
    found = (
        sa.select(
            heads.c.subscription_id.label("id"),
            heads.c.due_at,
            ms_until(heads.c.due_at).label("due_in_ms"),
            _unpaused(heads.c.subscription_id),
        )
        .where(
            heads.c.due_at <= later(now(), "before_ms"), heads.c.due_at > later(now(), "after_ms")
        )
        .subquery("found")
    )
    due_first = (found.c.due_at, found.c.id)
    return sa.select(found).where(found.c.client_id.is_not(None)).order_by(*due_first)


LIST_LINES = _lines()
_first_due = (
    _head.with_only_columns(ms_until(deliveries.c.due_at), maintain_column_froms=True)
    .where(deliveries.c.subscription_id == subscriptions.c.id)
    .scalar_subquery()
)
# Of these ids of deliveries and subscriptions, those of pending deliveries and of subscriptions, with a
# null where a subscription is paused or has none.
FIND_LINES = sa.union_all(
    sa.select(
        deliveries.c.id,
        deliveries.c.subscription_id,
        _unpaused(deliveries.c.subscription_id),
        ms_until(deliveries.c.due_at),
    ).where(one_of(deliveries.c.id, ids("for_ids")), NOT_DONE),
    sa.select(subscriptions.c.id, subscriptions.c.id, subscriptions.c.client_id, _first_due).where(
        one_of(subscriptions.c.id, ids("for_ids")), subscriptions.c.paused_at.is_(None)
    ),
)
_ping = {
    "subscription_id": subscriptions.c.id,
    "type": text_literal(PING),
    "created_at": now(),
    "due_at": now(),
}
# A delivery that is about nothing.
ADD_PING = (
    sa.insert(deliveries)
    .from_select([*_ping], sa.select(*_ping.values()).where(*OWN))
    .returning(deliveries)
)
# The client of a delivery's subscription, unless that is deleted.
_owner = (
    sa.select(subscriptions.c.client_id)
    .where(subscriptions.c.id == deliveries.c.subscription_id, subscriptions.c.deleted_at.is_(None))
    .correlate(deliveries)
    .scalar_subquery()
)
#: A delivery of a client; of any client, if none is given.
OWN_DELIVERY = (
    deliveries.c.id == p("for_id"),
    unindexed(_owner == sa.func.coalesce(p("for_client", type_=Id), _owner)),
)
# One delivery of a client.
GET_DELIVERY = sa.select(deliveries).where(*OWN_DELIVERY)
# Have a client's delivery sent again, as if for the first time.
REDELIVER = (
    sa.update(deliveries)
    .where(*OWN_DELIVERY)
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
        subscription_id: str,
        client_id: str,
        *,
        url: str,
        events: Sequence[str] | None,
        types: Sequence[str],
        secret: str,
    ) -> bool:
        """Insert a subscription to ``types``, unless there is one of this id; ``events`` are those that
        were named, or None for all.
        """
        self.run(LOCK_CLIENT, for_client=client_id)
        row = {
            "id": subscription_id,
            "client_id": client_id,
            "url": url,
            "events": None if events is None else " ".join(events),
            "created_at": now(),
        }
        new = insert(subscriptions).values(row).on_conflict_do_nothing()
        made = self.run(new.returning(subscriptions.c.id)).first()
        if made:
            SECRETS.add(self, subscription_id, secret)
            self._add_interests(client_id, subscription_id, types)
        return bool(made)

    def first_secret(self, subscription_id: str) -> str:
        """The oldest secret that signs; "" of a deleted subscription."""
        found = self.run(LIST_SECRETS, for_subscription=subscription_id).scalars().all()
        return found[-1] if found else ""

    def _add_interests(self, client_id: str, subscription_id: str, types: Sequence[str]) -> None:
        """Insert what events find a subscription by: the type of an event and that of its delivery."""
        pairs = [(each, each) for each in types if each != REMINDER]
        pairs += [(each, REMINDER) for each in SET_A_DEADLINE if REMINDER in types]
        of_one = {"client_id": client_id, "subscription_id": subscription_id}
        rows = [of_one | {"event_type": event, "type": kind} for event, kind in pairs]
        self._connection.execute(sa.insert(interests), rows)

    def change(
        self,
        client_id: str,
        subscription_id: str,
        *,
        url: str | None,
        events: Sequence[str] | None,
        types: Sequence[str],
    ) -> None:
        """Change a subscription's URL, unless it is None, and its events, if there are types."""
        own = {"for_client": client_id, "for_id": subscription_id}
        named = None if events is None else " ".join(events)
        changed = self.run(CHANGE, **own, new_url=url, other_events=bool(types), new_events=named)
        if changed.rowcount and types:
            self.run(DELETE_INTERESTS, **own)
            self._add_interests(client_id, subscription_id, types)

    def count(self, client_id: str) -> int:
        count: int = self.run(COUNT_SUBSCRIPTIONS, for_client=client_id).scalar_one()
        return count

    def unsubscribe(self, client_id: str, subscription_id: str) -> bool:
        """Delete a subscription; return whether there was one."""
        own = {"for_client": client_id, "for_id": subscription_id}
        # So that something waits for it: whoever looks at its line deletes all of its deliveries.
        self.run(ADD_PING, **own)
        deleted = bool(self.run(UNSUBSCRIBE, **own).rowcount)
        if deleted:
            SECRETS.delete(self, subscription_id)
            self.run(DELETE_INTERESTS, **own)
        return deleted

    def subscription(self, client_id: str | None, subscription_id: str) -> Subscription | None:
        values = {"for_client": client_id, "for_id": subscription_id}
        row = self.run(GET_SUBSCRIPTION, **values).one_or_none()
        return None if row is None else _subscription(row)

    def subscriptions(
        self, client_id: str, *, page_size: int, after: Position | None
    ) -> list[Subscription]:
        """A client's subscriptions, oldest first."""
        at, last_id = after or FIRST
        values = {"last_at": at, "last_id": last_id, "page_size": page_size}
        rows = self.run(LIST_SUBSCRIPTIONS, for_client=client_id, **values)
        return [_subscription(row) for row in rows]

    def pause(self, client_id: str | None, subscription_id: str) -> None:
        """Pause a subscription on request, unless it is paused."""
        values = {"for_client": client_id, "for_id": subscription_id}
        self.run(PAUSE, **values, for_reason="requested")

    def resume(self, client_id: str | None, subscription_id: str) -> None:
        self.run(RESUME, for_client=client_id, for_id=subscription_id)

    def rotate(self, client_id: str, subscription_id: str, secret: str, overlap_ms: int) -> None:
        """Give a subscription a new secret, if it exists; the others sign too for ``overlap_ms``."""
        if self.run(LOCK_OWN, for_client=client_id, for_id=subscription_id).first():
            SECRETS.replace(self, subscription_id, secret, overlap_ms)

    # -- deliveries --

    def deliveries(
        self,
        subscription_id: str,
        *,
        status: str | None,
        page_size: int,
        after: datetime,
        before: Position,
    ) -> list[Delivery]:
        """A subscription's deliveries between two times, newest first. Each status is read from the
        index in this order.
        """
        position = (deliveries.c.created_at, deliveries.c.id)
        pages = [
            sa.select(deliveries)
            .where(
                deliveries.c.subscription_id == p("for_subscription"),
                deliveries.c.status == one,
                deliveries.c.created_at > p("after_at", type_=Instant),
                sa.tuple_(*position)
                < sa.tuple_(p("before_at", type_=Instant), p("before_id", type_=Id)),
            )
            .order_by(*(column.desc() for column in position))
            .limit(p("page_size"))
            .subquery()
            for one in ([status] if status else DeliveryStatus)
        ]
        found = sa.union_all(*map(sa.select, pages)).subquery()
        newest = (found.c.created_at.desc(), found.c.id.desc())
        rows = self.run(
            sa.select(found).order_by(*newest).limit(p("page_size")),
            for_subscription=subscription_id,
            after_at=after,
            before_at=before.at,
            before_id=before.id,
            page_size=page_size,
        )
        return [delivery_of(row) for row in rows]

    def ping(self, client_id: str, subscription_id: str) -> Delivery | None:
        """Insert a delivery that is about nothing, if there is such a subscription."""
        values = {"for_client": client_id, "for_id": subscription_id}
        row = self.run(ADD_PING, **values).one_or_none()
        return None if row is None else delivery_of(row)

    def delivery(self, client_id: str | None, delivery_id: str) -> Delivery | None:
        row = self.run(GET_DELIVERY, for_client=client_id, for_id=delivery_id).one_or_none()
        return None if row is None else delivery_of(row)

    def redeliver(self, client_id: str | None, delivery_id: str) -> Delivery | None:
        """Have a delivery sent again, with all of its attempts ahead; None if there is none."""
        row = self.run(REDELIVER, for_client=client_id, for_id=delivery_id).one_or_none()
        return None if row is None else delivery_of(row)

    def lines(self, after_ms: int, before_ms: int) -> list[Line]:
        """The subscriptions whose first delivery is due within bounds from now, soonest first."""
        rows = self.run(LIST_LINES, after_ms=after_ms, before_ms=before_ms)
        return [Line(row.id, row.id, row.client_id, row.due_in_ms) for row in rows]

    def find_lines(self, given: Sequence[str]) -> list[Line]:
        """Those of these ids of deliveries and subscriptions that something waits for."""
        rows = self.run(FIND_LINES, for_ids=given)
        return [Line._make(row) for row in rows if None not in row]

    def look(self, subscription_id: str) -> tuple[Candidate | None, bool]:
        """The first delivery of a subscription that may be sent, and whether there are more."""
        rows = self.run(LOOK, for_subscription=subscription_id).all()
        return self._candidate(rows[0]) if rows else None, len(rows) > 1

    def _candidate(self, row: sa.Row[Any]) -> Candidate:
        target = self.run(
            GET_TARGET,
            for_subscription=row.subscription_id,
            for_order=row.order_id,
            for_event=row.event_id,
        ).one()
        order = None
        if row.order_id is not None:
            order = self._read_order(self._connection, row.order_id, target.client_id)
        message = Message(
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
            origin=Origin.parse(target.origin or ""),
            body=row.body,
        )
        return Candidate(
            message,
            deleted=target.deleted_at is not None,
            paused=target.paused_at is not None,
            superseded=bool(target.superseded),
            expires_in_ms=target.expires_in_ms,
        )

    def claim(self, message: Message, body: str | None, lease_ms: int) -> datetime | None:
        """Lease a delivery with the body of all of its attempts; return the lease, or None if
        somebody else was faster.
        """
        values = {"for_id": message.id, "token": message.token, "new_body": body}
        lease: datetime | None = self.run(CLAIM, **values, lease_ms=lease_ms).scalar_one_or_none()
        return lease

    def put_off(self, message: Message, delay_ms: int) -> None:
        """Postpone a delivery that is as it was read."""
        self.run(PUT_OFF, for_id=message.id, token=message.token, delay_ms=delay_ms)

    def drop(self, message: Message) -> None:
        """Delete a delivery that is as it was read."""
        self.run(DROP, for_id=message.id, token=message.token)

    def drop_page(self, subscription_id: str, page_size: int) -> None:
        """Delete a page of a subscription's deliveries, those that are pending last."""
        self.run(DROP_PAGE, for_subscription=subscription_id, page_size=page_size)

    def record(
        self, message: Message, answer: Answer, status: DeliveryStatus, delay_ms: int
    ) -> bool | None:
        """Record an attempt under its lease; return whether another delivery waited for it, or None
        if the lease was lost.
        """
        has_successor: bool | None = self.run(
            RECORD,
            for_id=message.id,
            token=message.token,
            new_status=str(status),
            delay_ms=delay_ms,
            answer_status=answer.status,
            answer_error=answer.error,
            answer_body=answer.body,
        ).scalar_one_or_none()
        return has_successor

    def prune(
        self, subscription_id: str, status: DeliveryStatus, kept_ms: int, page_size: int
    ) -> int:
        """Delete a page of a subscription's deliveries with a status that are older than
        ``kept_ms``; return how many.
        """
        values = {"for_subscription": subscription_id, "old_status": str(status)}
        result = self.run(PRUNE, **values, before_ms=-kept_ms, page_size=page_size)
        return result.rowcount

    def pause_gone(self, message: Message) -> None:
        """Pause a subscription whose endpoint answered that it is gone."""
        self.run(PAUSE_GONE, for_id=message.subscription_id, gone_url=message.url)


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
