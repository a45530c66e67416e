"""Who is logged in: a signed cookie, which holds the id of an API key and never the key.

What signs it is derived from the stored hash of the key's secret. So every process of the API can check a
cookie, no setting is needed for that, and a key that is revoked or has expired ends its sessions.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from itsdangerous import BadSignature, Signer

from orders.clients import Clients
from orders.domain import Client, ValidKey, is_order_id
from orders.errors import Forbidden

COOKIE = "ops_session"
#: A shift: then one logs in again, whatever was done meanwhile.
SECONDS = 8 * 3600
#: What the key of a session must be allowed.
SCOPE = "ops"
#: So that a signature for one purpose is none for another.
OF_COOKIES, OF_TOKENS = "orders.ops.cookie", "orders.ops.token"


@dataclass(frozen=True, slots=True)
class Session:
    """One login."""

    client: Client
    key_id: str
    expires_at: int
    #: Signed, for the browser to keep.
    cookie: str
    #: What a request that changes something must bring beside the cookie: another site cannot read it.
    token: str

    @classmethod
    def signed(cls, client: Client, secret_hash: str, payload: str) -> Self:
        key_id, expires_at, _ = payload.split(".")
        cookie = _signer(secret_hash, OF_COOKIES).sign(payload).decode()
        token = _signer(secret_hash, OF_TOKENS).get_signature(payload).decode()
        return cls(client, key_id, int(expires_at), cookie, token)


def log_in(clients: Clients, api_key: str, now_seconds: float) -> Session | None:
    """A session for whoever has this key; None if it is not valid. Raises Forbidden if it lacks the scope."""
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
    """The session of a cookie, unless it has ended. ``known_key`` looks a key up by its id."""
    payload, _, _ = cookie.rpartition(".")
    key_id, _, rest = payload.partition(".")
    expires_at = rest.partition(".")[0]
    if not (is_order_id(key_id) and expires_at.isascii() and expires_at.isdecimal()):
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
