"""The SQL statements on providers' endpoints and their secrets, each with a name and a sentence."""

import math
from typing import Any, NamedTuple

import sqlalchemy as sa

from orders.providers.domain import ProviderEndpoint
from orders.sql.expressions import later, ms_until, now, one_of
from orders.sql.ids import new_id
from orders.sql.statements import Statements
from orders.sql.steps import Operation, Step
from orders.sql.tables import api_clients, provider_endpoints, provider_secrets

p = sa.bindparam
_IS_ONE = provider_endpoints.c.id == p("for_id", type_=provider_endpoints.c.id.type)
_IS_VALID = (_IS_ONE, provider_endpoints.c.revoked_at.is_(None))


class ValidEndpoint(NamedTuple):
    """What a message to an endpoint is verified with, and whose payments it reports."""

    client_id: str
    provider: str
    secrets: tuple[str, ...]
    #: Until the first of the secrets expires.
    valid_ms: float


def _add_secret(step: Step, endpoint: sa.FromClause) -> None:
    """Insert a secret that does not expire."""
    row = {
        "endpoint_id": endpoint.c.id,
        "id": p("new_secret_id", type_=provider_secrets.c.id.type),
        "secret": p("new_secret", type_=sa.String),
        "created_at": now(),
    }
    step("secret", sa.insert(provider_secrets).from_select([*row], sa.select(*row.values())))


@Operation
def add(step: Step) -> sa.Select[Any]:
    """Insert an endpoint, and its secret, of the client with this name; returns it if there is such
    a client.
    """
    row = {
        "id": p("new_id", type_=provider_endpoints.c.id.type),
        "client_id": api_clients.c.id,
        "provider": p("for_provider", type_=sa.String),
        "created_at": now(),
    }
    client = sa.select(*row.values()).where(api_clients.c.name == p("for_name"))
    endpoint = step(
        "endpoint",
        sa.insert(provider_endpoints)
        .from_select([*row], client)
        .returning(provider_endpoints.c.id),
    )
    _add_secret(step, endpoint)
    return sa.select(endpoint)


@Operation
def rotate(step: Step) -> sa.Select[Any]:
    """Insert a secret, make the others expire some time from now, and delete those that have
    expired.

    The endpoint's lock decides: it is returned unless it is revoked.
    """
    endpoint = step(
        "endpoint", sa.select(provider_endpoints.c.id).where(*_IS_VALID).with_for_update()
    )
    until = provider_secrets.c.expires_at
    of_endpoint = one_of(provider_secrets.c.endpoint_id, sa.select(endpoint.c.id))
    step("expired", sa.delete(provider_secrets).where(of_endpoint, until <= now()))
    step(
        "old",
        sa.update(provider_secrets)
        .where(of_endpoint, sa.func.coalesce(until > later(now(), "for_ms"), sa.true()))
        .values(expires_at=later(now(), "for_ms")),
    )
    _add_secret(step, endpoint)
    return sa.select(endpoint)


@Operation
def revoke(step: Step) -> sa.Select[Any]:
    """Revoke an endpoint and delete its secrets; returns it unless it was revoked before."""
    endpoint = step(
        "endpoint",
        sa.update(provider_endpoints)
        .where(*_IS_VALID)
        .values(revoked_at=now())
        .returning(provider_endpoints.c.id),
    )
    of_endpoint = one_of(provider_secrets.c.endpoint_id, sa.select(endpoint.c.id))
    step("secrets", sa.delete(provider_secrets).where(of_endpoint))
    return sa.select(endpoint)


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
        sa.func.coalesce(provider_secrets.c.expires_at > now(), sa.true()),
    )
)
_old_secret_until = (
    sa.select(sa.func.max(provider_secrets.c.expires_at))
    .where(
        provider_secrets.c.endpoint_id == provider_endpoints.c.id,
        provider_secrets.c.expires_at > now(),
    )
    .scalar_subquery()
)
# The endpoints of all clients, oldest first.
LIST_ENDPOINTS = (
    sa.select(
        provider_endpoints,
        api_clients.c.name,
        _old_secret_until.label("old_secret_until"),
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


class ProviderRepository(Statements):
    """Providers' endpoints."""

    def add(self, name: str, provider: str, secret: str) -> str | None:
        """Insert an endpoint of the client of this name; its id, or None without such a client."""
        rows = add(
            self._connection,
            new_id=new_id(),
            new_secret_id=new_id(),
            new_secret=secret,
            for_name=name,
            for_provider=provider,
        )
        return rows[0].id if rows else None

    def rotate(self, endpoint_id: str, secret: str, overlap_ms: int) -> bool:
        """Add a secret; the others expire after the overlap. Returns whether there is such an endpoint."""
        rows = rotate(
            self._connection,
            for_id=endpoint_id,
            new_secret_id=new_id(),
            new_secret=secret,
            for_ms=overlap_ms,
        )
        return bool(rows)

    def revoke(self, endpoint_id: str) -> None:
        """Revoke an endpoint and delete its secrets. Repeating it changes nothing."""
        revoke(self._connection, for_id=endpoint_id)

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


def _endpoint(row: sa.Row[Any]) -> ProviderEndpoint:
    return ProviderEndpoint(
        id=row.id,
        client=row.name,
        provider=row.provider,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        old_secret_until=row.old_secret_until,
    )
