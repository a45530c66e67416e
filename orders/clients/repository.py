"""The SQL statements on clients and their API keys, each with a name and a sentence."""

import math
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.clients.domain import ApiKey, Client, ValidKey
from orders.sql.expressions import later, ms_until, now, read_only
from orders.sql.ids import new_id
from orders.sql.statements import Statements
from orders.sql.tables import api_clients, api_keys

p = sa.bindparam


# Insert a client, unless there is one with its name.
ADD_CLIENT = insert(api_clients).values(created_at=now()).on_conflict_do_nothing()
# The client of a name.
GET_CLIENT_ID = sa.select(api_clients.c.id).where(api_clients.c.name == p("for_name"))
_KEY_COLUMNS = (
    *("id", "client_id", "secret_hash", "scopes"),
    *("created_at", "expires_at", "lifetime_ms", "label"),
)
# Insert a key of the client of a name.
ADD_KEY = sa.insert(api_keys).from_select(
    _KEY_COLUMNS,
    sa.select(
        p("key_id", type_=api_keys.c.id.type),
        api_clients.c.id,
        p("hash", type_=sa.String),
        p("allowed", type_=sa.String),
        now(),
        later(now(), "for_ms"),
        p("for_ms", type_=sa.BigInteger),
        p("for_label", type_=sa.String),
    ).where(api_clients.c.name == p("for_name")),
)
_expired = sa.func.coalesce(api_keys.c.expires_at <= now(), sa.false()).label("expired")
_is_valid = _expired.element.is_(sa.false())
# Insert a key that succeeds another, if that one is valid.
ADD_SUCCESSOR = (
    sa.insert(api_keys)
    .from_select(
        _KEY_COLUMNS,
        sa.select(
            p("key_id", type_=api_keys.c.id.type),
            api_keys.c.client_id,
            p("hash", type_=sa.String),
            api_keys.c.scopes,
            now(),
            later(now(), api_keys.c.lifetime_ms),
            api_keys.c.lifetime_ms,
            api_keys.c.label,
        )
        .where(api_keys.c.id == p("for_id"), _is_valid)
        .with_for_update(),  # so that it is not revoked meanwhile
    )
    .returning(api_keys.c.id)
)
# The keys of all clients.
LIST_KEYS = (
    sa.select(api_keys, api_clients.c.name, _expired)
    .join_from(api_keys, api_clients)
    .order_by(api_keys.c.created_at, api_keys.c.id)
)
# The keys of one client.
LIST_KEYS_OF_CLIENT = LIST_KEYS.where(api_clients.c.name == p("for_name"))
# One key.
GET_KEY = LIST_KEYS.where(api_keys.c.id == p("for_id"))
# One key, if it is valid, with the milliseconds until its expiry and, negative, its last use.
GET_VALID_KEY = (
    sa.select(
        api_keys,
        api_clients.c.name,
        ms_until(api_keys.c.expires_at).label("valid_ms"),
        ms_until(api_keys.c.last_used_at).label("used_ms"),
        read_only().label("read_only"),
    )
    .join_from(api_keys, api_clients)
    .where(api_keys.c.id == p("for_id"), _is_valid)
)
# The ids of valid keys, newest first, up to a number.
LIST_VALID_IDS = (
    sa.select(api_keys.c.id).where(_is_valid).order_by(api_keys.c.id.desc()).limit(p("most"))
)
# Make a key expire some time from now, unless it expires sooner.
EXPIRE_KEY = (
    sa.update(api_keys)
    .where(
        api_keys.c.id == p("for_id"),
        sa.func.coalesce(api_keys.c.expires_at > later(now(), "for_ms"), sa.true()),
    )
    .values(expires_at=later(now(), "for_ms"))
)
# Record that a key is used now, unless that was recorded recently.
NOTE_USE = (
    sa.update(api_keys)
    .where(
        api_keys.c.id == p("for_id"),
        sa.func.coalesce(later(api_keys.c.last_used_at, "for_ms") < now(), sa.true()),
    )
    .values(last_used_at=now())
)


class ClientRepository(Statements):
    """Clients and keys."""

    def add_key(
        self,
        name: str,
        secret_hash: str,
        scopes: Sequence[str],
        expires_in_ms: int | None,
        label: str | None,
    ) -> str:
        """Insert a key for the client of this name, and the client if it is new; the key's id."""
        self._run(ADD_CLIENT, id=new_id(), name=name)
        key_id = new_id()
        self._run(
            ADD_KEY,
            key_id=key_id,
            for_name=name,
            hash=secret_hash,
            allowed=" ".join(scopes),
            for_ms=expires_in_ms,
            for_label=label,
        )
        return key_id

    def client_id(self, name: str) -> str | None:
        client_id: str | None = self._run(GET_CLIENT_ID, for_name=name).scalar_one_or_none()
        return client_id

    def keys(self, name: str | None) -> list[ApiKey]:
        """The keys of one client, or of all, oldest first."""
        if name is None:
            rows = self._run(LIST_KEYS)
        else:
            rows = self._run(LIST_KEYS_OF_CLIENT, for_name=name)
        return [_api_key(row) for row in rows]

    def valid_key(self, key_id: str) -> ValidKey | None:
        """Whose a key is and what it may do; None if it is not valid."""
        row = self._run(GET_VALID_KEY, for_id=key_id).one_or_none()
        if row is None:
            return None
        return ValidKey(
            Client(row.client_id, row.name, frozenset(row.scopes.split())),
            row.secret_hash,
            math.inf if row.valid_ms is None else row.valid_ms,
            math.inf if row.used_ms is None else -row.used_ms,
            bool(row.read_only),
        )

    def key(self, key_id: str) -> ApiKey | None:
        row = self._run(GET_KEY, for_id=key_id).one_or_none()
        return None if row is None else _api_key(row)

    def valid_ids(self, most: int) -> frozenset[str]:
        """The ids of the newest valid keys."""
        return frozenset(self._run(LIST_VALID_IDS, most=most).scalars())

    def add_successor(self, key_id: str, secret_hash: str) -> str | None:
        """Insert a key like this one, with its lifetime; its id, or None if this one has expired."""
        values = {"key_id": new_id(), "hash": secret_hash, "for_id": key_id}
        return self._run(ADD_SUCCESSOR, **values).scalar_one_or_none()

    def expire_key(self, key_id: str, after_ms: int) -> ApiKey:
        """Make a key expire in ``after_ms``, unless it expires sooner."""
        self._run(EXPIRE_KEY, for_id=key_id, for_ms=after_ms)
        return _api_key(self._run(GET_KEY, for_id=key_id).one())

    def note_use(self, key_id: str, every_ms: int) -> None:
        """Record that a key is used now, unless that was recorded recently."""
        self._run(NOTE_USE, for_id=key_id, for_ms=every_ms)


def _api_key(row: sa.Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        client=row.name,
        scopes=frozenset(row.scopes.split()),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        expired=bool(row.expired),
        label=row.label,
    )
