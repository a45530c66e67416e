"""Who is logged in: a signed cookie, which holds the id of an API key, never the key.

The signing key is derived from the stored hash of the API key's secret. So every API process accepts the
cookie without extra configuration, and a key that is revoked or expires ends its sessions.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from itsdangerous import BadSignature, Signer

from orders.clients.domain import Client, ValidKey
from orders.clients.service import Clients
from orders.errors import Forbidden
from orders.sql.ids import is_uuid

COOKIE = "ops_session"
#: One shift. Using the page does not prolong it.
SECONDS = 8 * 3600
#: The scope that the key must have.
SCOPE = "ops"
#: So that a signature made for one purpose is invalid for the other.
OF_COOKIES, OF_TOKENS = "orders.ops.cookie", "orders.ops.token"


@dataclass(frozen=True, slots=True)
class Session:
    """One login."""

    client: Client
    key_id: str
    expires_at: int
    #: The cookie's value, signed.
    cookie: str
    #: Requests that change something must send this too: another site cannot read it.
    token: str

    @classmethod
    def signed(cls, client: Client, secret_hash: str, payload: str) -> Self:
        key_id, expires_at, _ = payload.split(".")
        cookie = _signer(secret_hash, OF_COOKIES).sign(payload).decode()
        token = _signer(secret_hash, OF_TOKENS).get_signature(payload).decode()
        return cls(client, key_id, int(expires_at), cookie, token)


def log_in(clients: Clients, api_key: str, now_seconds: float) -> Session | None:
    """A session of this key; None if the key is not valid. Raises Forbidden if it lacks the scope."""
    client = clients.authenticate(api_key)
    key_id = api_key.partition(".")[0]
    known = clients.known_key(key_id) if client else None
    if known is None:
        return None
    if SCOPE not in known.client.scopes:
        raise Forbidden(f"It needs the scope {SCOPE}.")
    payload = f"{key_id}.{int(now_seconds) + SECONDS}.{secrets.token_hex(16)}"
    return Session.signed(known.client, known.secret_hash, payload)


def resume(
    known_key: Callable[[str], ValidKey | None], cookie: str, now_seconds: float
) -> Session | None:
    """The session of a cookie; None if it is invalid or has ended. ``known_key`` finds a key by its id."""
    payload, _, _ = cookie.rpartition(".")
    key_id, _, rest = payload.partition(".")
    expires_at = rest.partition(".")[0]
    if not (is_uuid(key_id) and expires_at.isascii() and expires_at.isdecimal()):
        return None
    known = known_key(key_id)
    if known is None or SCOPE not in known.client.scopes:
        return None
    try:
        _signer(known.secret_hash, OF_COOKIES).unsign(cookie)
    except BadSignature:
        return None
    if now_seconds >= int(expires_at):
        return None
    return Session.signed(known.client, known.secret_hash, payload)


def _signer(secret_hash: str, purpose: str) -> Signer:
    return Signer(secret_hash, purpose, key_derivation="hmac", digest_method=hashlib.sha256)
