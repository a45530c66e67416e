"""The SQL statements on clients and their API keys, each with a name and a sentence."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from orders.clients.domain import ApiKey
from orders.sql.expressions import later, ms_until, now, read_only
from orders.sql.statements import made_of, newest_ids
from orders.sql.steps import insertion
from orders.sql.tables import api_clients, api_keys

p = sa.bindparam


def scopes_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


API_KEY = made_of(ApiKey, scopes=scopes_of)

# Insert a client, unless there is one with its name.
ADD_CLIENT = insert(api_clients).values(created_at=now()).on_conflict_do_nothing()
# The client of a name.
GET_CLIENT_ID = sa.select(api_clients.c.id).where(api_clients.c.name == p("for_name"))
_key = {"id": "key_id", "secret_hash": "hash", "created_at": now()}
_first = {
    "client_id": api_clients.c.id,
    "scopes": "allowed",
    "expires_at": later(now(), "for_ms"),
    "lifetime_ms": "for_ms",
    "label": "for_label",
}
# Insert a key of the client of a name.
ADD_KEY = insertion(api_keys, _key | _first, api_clients.c.name == p("for_name"))
_expired = sa.func.coalesce(api_keys.c.expires_at <= now(), sa.false()).label("expired")
_is_valid = _expired.element.is_(sa.false())
_as_before = {name: api_keys.c[name] for name in ("client_id", "scopes", "lifetime_ms", "label")}
_until = later(now(), api_keys.c.lifetime_ms)
# Insert a key that succeeds another, if that one is valid.
ADD_SUCCESSOR = insertion(
    api_keys,
    _key | _as_before | {"expires_at": _until},
    *(api_keys.c.id == p("for_id"), _is_valid),
    lock=True,  # so that it is not revoked meanwhile
).returning(api_keys.c.id)
# The keys of all clients.
LIST_KEYS = (
    sa.select(api_keys, api_clients.c.name.label("client"), _expired)
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
# The keys that are valid.
LIST_VALID_IDS = newest_ids(api_keys.c.id, _is_valid)
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
