"""The SQL statements on providers' endpoints, their secrets and messages, each with a name and a sentence."""

import math
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.providers.domain import Closer, MessageStatus, ProviderEndpoint, ProviderMessage, Sender
from orders.sql.expressions import later, ms_until, now, one_of, text_literal, unindexed
from orders.sql.ids import new_id
from orders.sql.secrets import Secrets
from orders.sql.statements import FIRST, Position, Statements, after_last
from orders.sql.steps import Operation, Step
from orders.sql.tables import api_clients, provider_endpoints, provider_secrets
from orders.sql.tables import provider_messages as messages

p = sa.bindparam
SECRETS = Secrets(provider_secrets)
_IS_ONE = provider_endpoints.c.id == p("for_id", type_=provider_endpoints.c.id.type)
_IS_VALID = (_IS_ONE, unindexed(provider_endpoints.c.revoked_at.is_(None)))


class ValidEndpoint(NamedTuple):
    """What a message to an endpoint is verified with, and whose payments it reports."""

    client_id: str
    provider: str
    secrets: tuple[str, ...]
    #: Until the first of the secrets expires.
    valid_ms: float


# Insert an endpoint of the client with this name, if there is one.
ADD_ENDPOINT = (
    sa.insert(provider_endpoints)
    .from_select(
        ["id", "client_id", "provider", "created_at", "close_url"],
        sa.select(
            p("new_id", type_=provider_endpoints.c.id.type),
            api_clients.c.id,
            p("for_provider", type_=sa.String),
            now(),
            p("for_url", type_=provider_endpoints.c.close_url.type),
        ).where(api_clients.c.name == p("for_name")),
    )
    .returning(provider_endpoints.c.id)
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
    sa.select(_asked.c.close_url).scalar_subquery().label("close_url"), provider_secrets.c.secret
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

    It waits if it should, but of an unknown type only the first one does. Returns how many it deleted.
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
    endpoint, kind = p("for_endpoint", type_=messages.c.id.type), p("for_type", type_=sa.String)
    seen = sa.select(messages.c.id).where(
        messages.c.endpoint_id == endpoint, messages.c.unknown_type == kind, messages.c.id != for_id
    )
    waits = p("waits", type_=sa.Boolean) & ~sa.exists(seen)
    row = {
        "id": for_id,
        "endpoint_id": endpoint,
        "webhook_id": p("for_webhook_id", type_=sa.String),
        "body": p("for_body", type_=sa.LargeBinary),
        "created_at": now(),
        "status": sa.case((waits, text_literal(MessageStatus.WAITING)), else_=settled),
        "note": p("for_note", type_=sa.String),
        "unknown_type": kind,
    }
    new = insert(messages).from_select([*row], sa.select(*row.values()))
    changed = {name: new.excluded[name] for name in ("status", "note", "unknown_type")}
    step(
        "message",
        new.on_conflict_do_update(
            index_elements=["id"],
            set_=changed,
            where=(messages.c.status == text_literal(MessageStatus.WAITING))
            & new.excluded.unknown_type.is_(None),
        ),
    )
    return sa.select(sa.func.count()).select_from(old)


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
        api_clients.c.name,
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
_oldest_first = (messages.c.created_at, messages.c.id)
# All clients' messages of one status, oldest first, from a page's end on.
LIST_MESSAGES = (
    _messages.where(messages.c.status == p("for_status"), after_last(*_oldest_first))
    .order_by(*_oldest_first)
    .limit(p("page_size"))
)
# Settle a message by hand.
DISMISS_MESSAGE = (
    sa.update(messages)
    .where(messages.c.id == p("for_id"), messages.c.status == text_literal(MessageStatus.WAITING))
    .values(status=MessageStatus.SETTLED, note="dismissed")
)


class ProviderRepository(Statements):
    """Providers' endpoints and messages."""

    def add(self, name: str, provider: str, secret: str, close_url: str | None) -> str | None:
        """Insert an endpoint of the client of this name; its id, or None without such a client."""
        values = {"new_id": new_id(), "for_name": name, "for_provider": provider}
        url = {"for_url": close_url}
        made: str | None = self._run(ADD_ENDPOINT, **values, **url).scalar_one_or_none()
        if made is not None:
            SECRETS.add(self._connection, made, secret)
        return made

    def rotate(self, endpoint_id: str, secret: str, overlap_ms: int) -> bool:
        """Add a secret; the others expire after the overlap. Returns whether there is such an endpoint."""
        found = self._run(LOCK_VALID, for_id=endpoint_id).first()
        if found:
            SECRETS.replace(self._connection, endpoint_id, secret, overlap_ms)
        return bool(found)

    def set_url(self, endpoint_id: str, close_url: str | None) -> bool:
        """Set where the provider is asked; whether there is such an endpoint."""
        return bool(self._run(SET_URL, for_id=endpoint_id, for_url=close_url).rowcount)

    def closer(self, client_id: str, provider: str) -> Closer | None:
        """Where a client's provider is asked to close an attempt; None if it cannot be."""
        rows = self._run(GET_CLOSER, for_client=client_id, for_provider=provider).all()
        return Closer(rows[0].close_url, tuple(row.secret for row in rows)) if rows else None

    def revoke(self, endpoint_id: str) -> None:
        """Revoke an endpoint and delete its secrets. Repeating it changes nothing."""
        if self._run(REVOKE, for_id=endpoint_id).rowcount:
            SECRETS.delete(self._connection, endpoint_id)

    def valid_endpoint(self, endpoint_id: str) -> ValidEndpoint | None:
        """What messages are verified with; None if there is no such endpoint, or if it is revoked."""
        rows = self._run(GET_VALID_ENDPOINT, for_id=endpoint_id).all()
        if not rows:
            return None
        return ValidEndpoint(
            rows[0].client_id,
            rows[0].provider,
            tuple(row.secret for row in rows),
            min(math.inf if row.valid_ms is None else row.valid_ms for row in rows),
        )

    def endpoints(self, name: str | None) -> list[ProviderEndpoint]:
        """The endpoints of one client, or of all, oldest first."""
        if name is None:
            rows = self._run(LIST_ENDPOINTS)
        else:
            rows = self._run(LIST_ENDPOINTS_OF_CLIENT, for_name=name)
        return [_endpoint(row) for row in rows]

    def endpoint(self, endpoint_id: str) -> ProviderEndpoint | None:
        row = self._run(GET_ENDPOINT, for_id=endpoint_id).one_or_none()
        return None if row is None else _endpoint(row)

    def keep(self, **values: Any) -> None:
        """Insert a message, or note what became of it."""
        keep(self._connection, **values)

    def dismiss(self, message_id: str) -> None:
        """Settle a message by hand."""
        self._run(DISMISS_MESSAGE, for_id=message_id)

    def message(self, message_id: str) -> ProviderMessage | None:
        row = self._run(GET_MESSAGE, for_id=message_id).one_or_none()
        return None if row is None else _message(row)

    def messages(
        self, status: str, page_size: int, after: Position | None
    ) -> list[ProviderMessage]:
        """All clients' messages of one status, oldest first."""
        at, last_id = after or FIRST
        values = {"for_status": status, "page_size": page_size}
        rows = self._run(LIST_MESSAGES, **values, last_at=at, last_id=last_id)
        return [_message(row) for row in rows]


def _message(row: sa.Row[Any]) -> ProviderMessage:
    return ProviderMessage(
        id=row.id,
        sender=Sender(row.endpoint_id, row.client_id, row.provider),
        client=row.client,
        webhook_id=row.webhook_id,
        body=bytes(row.body),
        created_at=row.created_at,
        status=MessageStatus(row.status),
        note=row.note,
    )


def _endpoint(row: sa.Row[Any]) -> ProviderEndpoint:
    return ProviderEndpoint(
        id=row.id,
        client=row.name,
        provider=row.provider,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        old_secret_until=row.old_secret_until,
        close_url=row.close_url,
    )
