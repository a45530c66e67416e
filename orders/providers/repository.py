"""The SQL statements on providers' endpoints, their secrets and messages, each with a name and a sentence."""

from typing import Any

import sqlalchemy as sa

from orders.providers.domain import (
    MOST_WAITING,
    MessageStatus,
    ProviderEndpoint,
    ProviderMessage,
)
from orders.sql.expressions import (
    Instant,
    later,
    ms_until,
    now,
    one_of,
    text_literal,
    unindexed,
)
from orders.sql.secrets import Secrets
from orders.sql.statements import FIRST, made_of, newest_ids, oldest_first
from orders.sql.steps import Operation, Step, insertion
from orders.sql.tables import api_clients, orders, payments, provider_endpoints, provider_secrets
from orders.sql.tables import provider_messages as messages

p = sa.bindparam
SECRETS = Secrets(provider_secrets)
IS_WAITING = messages.c.status == text_literal(MessageStatus.WAITING)
ENDPOINT, MESSAGE = made_of(ProviderEndpoint), made_of(ProviderMessage, status=MessageStatus)
_IS_ONE = provider_endpoints.c.id == p("for_id", type_=provider_endpoints.c.id.type)
_IS_VALID = (_IS_ONE, unindexed(provider_endpoints.c.revoked_at.is_(None)))


_new = {
    "id": "new_id",
    "client_id": api_clients.c.id,
    "provider": "for_provider",
    "created_at": now(),
    "close_url": "for_url",
}
# Insert an endpoint of the client with this name, if there is one.
ADD_ENDPOINT = insertion(provider_endpoints, _new, api_clients.c.name == p("for_name")).returning(
    provider_endpoints.c.id
)
# Where the client's provider is asked to close an attempt: at its newest endpoint that has a URL.
_asked = (
    sa.select(provider_endpoints.c.id, provider_endpoints.c.close_url)
    .where(
        provider_endpoints.c.client_id == p("for_client", type_=provider_endpoints.c.id.type),
        provider_endpoints.c.provider == p("for_provider", type_=sa.String),
        provider_endpoints.c.revoked_at.is_(None),
        provider_endpoints.c.close_url.is_not(None),
    )
    .order_by(provider_endpoints.c.created_at.desc())
    .limit(1)
    .cte("asked")
)
GET_CLOSER = sa.select(
    sa.select(_asked.c.close_url).scalar_subquery().label("close_url"),
    provider_secrets.c.secret,
    now().label("at"),
).where(
    provider_secrets.c.endpoint_id == sa.select(_asked.c.id).scalar_subquery(), SECRETS.is_valid
)
# Set where an endpoint's provider is asked.
SET_URL = sa.update(provider_endpoints).where(*_IS_VALID).values(close_url=p("for_url"))
# Lock an endpoint that is not revoked.
LOCK_VALID = sa.select(provider_endpoints.c.id).where(*_IS_VALID).with_for_update()
# Revoke an endpoint, unless it was revoked before.
REVOKE = sa.update(provider_endpoints).where(*_IS_VALID).values(revoked_at=now())


@Operation
def keep(step: Step) -> sa.Select[Any]:
    """Insert a message, or note what became of one that waits; deletes two that settled long ago.

    It waits if it should, but of an unknown type only the first one does. Returns whether there was room:
    nothing is inserted that would wait beside too many of its endpoint.
    """
    settled, for_id = text_literal(MessageStatus.SETTLED), p("for_id", type_=messages.c.id.type)
    is_old = messages.c.created_at < later(now(), "old_ms")
    old = step(
        "old",
        sa.select(messages.c.id)
        .where(messages.c.status == settled, is_old, messages.c.id != for_id)
        .order_by(messages.c.created_at, messages.c.id)
        .limit(sa.literal_column("2"))
        .with_for_update(skip_locked=True),
    )
    step("pruned", sa.delete(messages).where(one_of(messages.c.id, sa.select(old.c.id))))
    seen = sa.select(messages.c.id).where(
        messages.c.endpoint_id == p("for_endpoint"),
        messages.c.unknown_type == p("for_type"),
        messages.c.id != for_id,
    )
    waits = p("waits", type_=sa.Boolean) & ~sa.exists(seen)
    last = (
        sa.select(messages.c.id)
        .where(messages.c.endpoint_id == p("for_endpoint"), IS_WAITING)
        .offset(sa.literal_column(str(MOST_WAITING - 1)))
    )
    is_known = sa.exists().where(messages.c.id == for_id)
    has_room = sa.case((~waits | is_known, sa.true()), else_=~sa.exists(last))
    room = step("room", sa.select(has_room.label("is_there"), waits.label("waits")))
    named = sa.select(orders.c.id).where(
        orders.c.id == p("for_order"), unindexed(orders.c.client_id == p("for_client"))
    )
    of_payment = sa.select(payments.c.order_id).where(
        payments.c.client_id == p("for_client"),
        payments.c.provider == p("for_provider"),
        payments.c.reference == p("for_reference"),
    )
    row = {
        "id": for_id,
        "endpoint_id": "for_endpoint",
        "webhook_id": "for_webhook_id",
        "body": "for_body",
        "created_at": now(),
        "status": sa.case((room.c.waits, text_literal(MessageStatus.WAITING)), else_=settled),
        "note": "for_note",
        "unknown_type": "for_type",
        "order_id": sa.func.coalesce(named.scalar_subquery(), of_payment.scalar_subquery()),
        "payment_reference": "for_reference",
    }
    new = insertion(messages, row, room.c.is_there, source=room)
    noted = ("status", "note", "unknown_type", "order_id")
    changed = {name: new.excluded[name] for name in noted}
    step(
        "message",
        new.on_conflict_do_update(
            index_elements=["id"],
            set_=changed,
            where=IS_WAITING & new.excluded.unknown_type.is_(None),
        ),
    )
    return sa.select(room.c.is_there)


# The endpoints that are not revoked.
LIST_VALID_IDS = newest_ids(
    provider_endpoints.c.id, unindexed(provider_endpoints.c.revoked_at.is_(None))
)
# The secrets of one endpoint that are valid, with the milliseconds until each expires.
GET_VALID_ENDPOINT = (
    sa.select(
        provider_endpoints.c.client_id,
        provider_endpoints.c.provider,
        provider_secrets.c.secret,
        ms_until(provider_secrets.c.expires_at).label("valid_ms"),
    )
    .join_from(provider_endpoints, provider_secrets)
    .where(
        *_IS_VALID,
        provider_secrets.c.endpoint_id == p("for_id", type_=provider_endpoints.c.id.type),
        SECRETS.is_valid,
    )
)
# The endpoints of all clients, oldest first.
LIST_ENDPOINTS = (
    sa.select(
        provider_endpoints,
        api_clients.c.name.label("client"),
        SECRETS.old_until(provider_endpoints.c.id).label("old_secret_until"),
    )
    .join_from(provider_endpoints, api_clients)
    .order_by(provider_endpoints.c.created_at, provider_endpoints.c.id)
)
# The endpoints of one client.
LIST_ENDPOINTS_OF_CLIENT = LIST_ENDPOINTS.where(
    one_of(
        provider_endpoints.c.client_id,
        sa.select(api_clients.c.id).where(api_clients.c.name == p("for_name")),
    )
)
# One endpoint.
GET_ENDPOINT = LIST_ENDPOINTS.where(_IS_ONE)


def _of_endpoint(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    """A column of the endpoint that a message came to."""
    found = sa.select(column).where(provider_endpoints.c.id == messages.c.endpoint_id)
    return found.correlate(messages).scalar_subquery()


_client_id = _of_endpoint(provider_endpoints.c.client_id)
_messages = sa.select(
    messages,
    _client_id.label("client_id"),
    _of_endpoint(provider_endpoints.c.provider).label("provider"),
    sa.select(api_clients.c.name)
    .where(api_clients.c.id == _client_id)
    .correlate(messages)
    .scalar_subquery()
    .label("client"),
)
# One message.
GET_MESSAGE = _messages.where(messages.c.id == p("for_id"))
# All clients' messages of one status, oldest first, from a page's end on.
LIST_MESSAGES = oldest_first(
    _messages.where(messages.c.status == p("for_status")), messages.c.created_at, messages.c.id
)
_waiting = (
    sa.select(messages.c.created_at)
    .where(IS_WAITING, messages.c.created_at > sa.literal(FIRST.at, Instant))
    .order_by(messages.c.created_at)
    .limit(sa.literal_column(str(MOST_WAITING)))
    .subquery()
)
# How many messages wait, up to a number, and the oldest.
COUNT_WAITING = sa.select(
    sa.func.count().label("messages"), ms_until(sa.func.min(_waiting.c.created_at)).label("ms")
)
# Settle a message by hand.
DISMISS_MESSAGE = (
    sa.update(messages)
    .where(messages.c.id == p("for_id"), IS_WAITING)
    .values(status=MessageStatus.SETTLED, note="dismissed")
)
