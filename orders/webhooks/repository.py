"""The SQL statements on webhook subscriptions and deliveries, each with a name and a sentence.

Deliveries are made by the statements that write events: see `orders.order.operations`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.dml import ReturningUpdate

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
from orders.sql.statements import FIRST, made_of, oldest_first
from orders.sql.steps import insertion
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
    Delivery,
    DeliveryStatus,
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
SUBSCRIPTION = made_of(Subscription, events=lambda text: tuple(text.split()))
DELIVERY = made_of(Delivery, status=DeliveryStatus)
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
#: What PostgreSQL changes with every change of a row.
ROW_VERSION = sa.cast(sa.literal_column("webhook_deliveries.xmin"), sa.Text)


class WaitingSubscription(NamedTuple):
    """A subscription with a delivery that waits, and the milliseconds until the first one is due."""

    #: The delivery's or the subscription's, by which it was asked for.
    id: str
    subscription_id: str
    client_id: str
    due_in_ms: int


# Lock a client, so that its subscriptions are made one after another.
LOCK_CLIENT = (
    sa.select(api_clients.c.id)
    .where(api_clients.c.id == p("for_client"))
    .with_for_update(key_share=True)
)
_new = {
    "id": "for_id",
    "client_id": "for_client",
    "url": "new_url",
    "events": "new_events",
    "created_at": now(),
    "asked": "for_asked",
}
_made = (subscriptions.c.created_at, subscriptions.c.asked)
# Insert a subscription, unless there is one of this id.
SUBSCRIBE = insertion(subscriptions, _new).on_conflict_do_nothing().returning(*_made)
# What a subscription was made of, even if it is deleted.
GET_MADE = sa.select(*_made).where(subscriptions.c.id == p("for_id"))
# Lock a client's own subscription.
LOCK_OWN = sa.select(subscriptions.c.id).where(*OWN).with_for_update()
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
LIST_SUBSCRIPTIONS = oldest_first(
    _shown.where(
        subscriptions.c.client_id == p("for_client"), subscriptions.c.deleted_at.is_(None)
    ),
    *(subscriptions.c.created_at, subscriptions.c.id),
)


#: Of a subscription that is paused, unless it was before; and of one that is resumed.
PAUSED = {
    "paused_at": sa.func.coalesce(subscriptions.c.paused_at, now()),
    "pause_reason": sa.func.coalesce(subscriptions.c.pause_reason, "requested"),
}
RESUMED = {"paused_at": None, "pause_reason": None}


def change(columns: Mapping[str, Any]) -> ReturningUpdate[Any]:
    """Change a client's own subscription; return the client."""
    changed = sa.update(subscriptions).where(*OWN).values(columns)
    return changed.returning(subscriptions.c.client_id)


# Mark a client's own subscription as deleted; it gets no more deliveries.
UNSUBSCRIBE = change({"deleted_at": now(), "paused_at": None})
DELETE_INTERESTS = sa.delete(interests).where(
    interests.c.client_id == p("for_client"), interests.c.subscription_id == p("for_id")
)
# Pause a subscription whose endpoint is gone, unless it has another one by now, or is deleted.
PAUSE_GONE = (
    sa.update(subscriptions)
    .where(
        subscriptions.c.id == p("for_id"),
        subscriptions.c.url == p("gone_url"),
        subscriptions.c.paused_at.is_(None),
        subscriptions.c.deleted_at.is_(None),
    )
    .values(paused_at=now(), pause_reason="gone")
)

_position = (deliveries.c.created_at, deliveries.c.id)


@cache
def list_deliveries(status: str | None) -> sa.Select[Any]:
    """A subscription's deliveries between two times, newest first. Each status is read from the
    index in this order.

    The bounds are row comparisons, which only that index is for: with plain equalities a planner would
    also consider the index of those that are pending, and sort all of them.
    """
    place = (deliveries.c.subscription_id, deliveries.c.status, *_position)
    after_at, before_at = (p(f"{name}_at", type_=Instant) for name in ("after", "before"))

    def page(one: str) -> sa.Select[Any]:
        of = (p("for_subscription", type_=Id), text_literal(one))
        return (
            sa.select(deliveries)
            .where(
                sa.tuple_(*place[:-1]) > sa.tuple_(*of, after_at),
                sa.tuple_(*place) < sa.tuple_(*of, before_at, p("before_id", type_=Id)),
            )
            .order_by(*(column.desc() for column in place))
            .limit(p("page_size"))
        )

    pages = [page(one).subquery() for one in ([status] if status else DeliveryStatus)]
    found = sa.union_all(*map(sa.select, pages)).subquery()
    newest = (found.c.created_at.desc(), found.c.id.desc())
    return sa.select(found).order_by(*newest).limit(p("page_size"))


_by_due = (deliveries.c.due_at, deliveries.c.id)
_earlier = deliveries.alias("earlier")
# The first deliveries of a subscription that are due: two, which tells whether there are more. One whose
# order has an earlier event that was not tried yet is passed over: whoever tries that one looks again.
# A reminder comes after the event that set the deadline.
LOOK = (
    sa.select(deliveries, ROW_VERSION.label("row_version"))
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
# Lease a delivery that is as it was read: nobody else sends it meanwhile. Its body is kept for later attempts,
# unless the row was changed since: the order that it was written of may have been erased.
CLAIM = (
    sa.update(deliveries)
    .where(*AS_READ, p("as_read", type_=sa.Text) == ROW_VERSION)
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
# Record what came of a delivery that is as it was read. An answer may repeat what was sent, and is kept only
# if that is. Returns whether a later event of its order waits for the same subscription.
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
        last_body=sa.case((deliveries.c.body.is_not(None), p("answer_body"))),
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
_head = (
    sa.select(deliveries.c.subscription_id, *_by_due)
    .where(deliveries.c.status == PENDING)
    .order_by(deliveries.c.subscription_id, *_by_due)
    .limit(1)
)


def _first_of_each(head: sa.Select[Any], name: str) -> sa.CTE:
    """The first row of ``head`` of each subscription in turn: one index entry for each is read."""
    first = head.where(deliveries.c.subscription_id > FIRST.id).subquery("first")
    heads = sa.select(first).cte(name, recursive=True)
    after = head.where(deliveries.c.subscription_id > heads.c.subscription_id).lateral("after")
    return heads.union_all(sa.select(after).select_from(heads.join(after, sa.true())))


def heads_of_lines() -> sa.CTE:
    """The subscriptions with pending deliveries, and when the first one's is due."""
    return _first_of_each(_head, "heads")


def _prune() -> sa.Delete:
    """Delete a page of old deliveries with a status, also of subscriptions that are idle or deleted,
    unless they were just sent again.
    """
    owner = sa.select(deliveries.c.subscription_id).order_by(deliveries.c.subscription_id).limit(1)
    owners = _first_of_each(owner, "owners")
    old = (
        sa.select(deliveries.c.id)
        .where(
            deliveries.c.subscription_id == owners.c.subscription_id,
            deliveries.c.status == p("old_status"),
            deliveries.c.created_at < later(now(), "before_ms"),  # for the index
            deliveries.c.due_at < later(now(), "before_ms"),  # when it was delivered, or given up
        )
        .order_by(deliveries.c.created_at, deliveries.c.id)
        .limit(p("page_size"))
        .lateral("old")
    )
    page = sa.select(old.c.id).select_from(owners.join(old, sa.true())).limit(p("page_size"))
    return sa.delete(deliveries).where(
        one_of(deliveries.c.id, page), deliveries.c.status == p("old_status")
    )


PRUNE = _prune()


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
ADD_PING = insertion(deliveries, _ping, *OWN).returning(deliveries)
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
