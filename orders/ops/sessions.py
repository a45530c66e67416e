"""Who is logged in: a cookie with a session's id and a random token, of which only a hash is stored.

So nobody makes a session from what the database or a backup contains. Logging out deletes its row, and
a key that is revoked or expires ends its sessions.
"""

import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa

from orders.caches import Credentials
from orders.clients.domain import Client
from orders.clients.service import Clients, hashed, is_secret
from orders.errors import Forbidden
from orders.ops.repository import (
    ADD_SESSION,
    END_SESSION,
    GET_SESSION,
    LIST_SESSION_IDS,
    PRUNE_SESSIONS,
)
from orders.sql.ids import is_uuid, new_id
from orders.sql.transactions import Service

COOKIE = "ops_session"
#: One shift. Using the page does not prolong it.
SECONDS = 8 * 3600
#: The scope that the key must have.
SCOPE = "ops"


@dataclass(frozen=True, slots=True)
class Session:
    """One login."""

    id: str
    client: Client
    key_id: str
    #: By this process's clock, in seconds since the epoch.
    expires_at: float
    #: The cookie's value.
    cookie: str

    @property
    def token(self) -> str:
        """Requests that change something must send this too: another site cannot read it."""
        return hashed(f"token of {self.cookie}")


class StoredSession(NamedTuple):
    """A login that has not ended, without its token."""

    key_id: str
    secret_hash: str
    valid_ms: float
    #: By this process's clock, in seconds since the epoch.
    expires_at: float


class Sessions(Service):
    """Raises StorageUnavailable from every method while the database does not answer."""

    def __init__(self, engine: sa.Engine, clients: Clients) -> None:
        super().__init__(engine)
        self._clients = clients
        self._cached = Credentials[StoredSession](partial(self._ids, LIST_SESSION_IDS))

    def log_in(self, client: Client, key_id: str) -> Session | None:
        """A session of this client's key; None if it was revoked meanwhile. Raises Forbidden."""
        if SCOPE not in client.scopes:
            raise Forbidden(f"It needs the scope {SCOPE}.")
        token = secrets.token_urlsafe(32)
        values = {"session_id": new_id(), "for_key": key_id, "hash": hashed(token)}
        with self._writing() as sql:
            sql.run(PRUNE_SESSIONS)
            added = sql.run(ADD_SESSION, **values, for_ms=1000 * SECONDS)
            session_id = added.scalar_one_or_none()
        return None if session_id is None else self.resume(f"{session_id}.{token}")

    def knows(self, cookie: str) -> bool:
        """Whether the session that a cookie names exists, whoever sent it."""
        return self._cached.knows(cookie.partition(".")[0])

    def resume(self, cookie: str, *, stale: bool = False) -> Session | None:
        """The session of a cookie; None if there is none.

        With ``stale``, an expired cache entry is good enough while the database does not answer.
        """
        session_id, _, token = cookie.partition(".")
        if not is_uuid(session_id):
            return None
        found = self._cached.find(session_id, self._read, stale=stale)
        if found is None or not is_secret(token, found.secret_hash):
            return None
        key = self._clients.known_key(found.key_id, stale=stale)
        if key is None or SCOPE not in key.client.scopes or time.time() >= found.expires_at:
            return None
        return Session(session_id, key.client, found.key_id, found.expires_at, cookie)

    def log_out(self, session: Session) -> None:
        """End a session: here at once, elsewhere within `CACHE_SECONDS`."""
        with self._autocommit() as sql:
            sql.run(END_SESSION, for_id=session.id)
        self._cached.forget(session.id)

    def _read(self, session_id: str) -> StoredSession | None:
        with self._reading() as sql:
            row = sql.run(GET_SESSION, for_id=session_id).one_or_none()
        if row is None:
            return None
        ends = time.time() + row.valid_ms / 1000
        return StoredSession(row.key_id, row.secret_hash, row.valid_ms, ends)
