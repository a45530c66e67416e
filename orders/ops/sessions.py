"""Who is logged in: a cookie with a session's id and a random token, of which only a hash is stored.

So nobody makes a session from what the database or a backup contains. Logging out deletes its row, and
a key that is revoked or expires ends its sessions.
"""

import secrets
import time
from dataclasses import dataclass

import sqlalchemy as sa

from orders.caches import Credentials
from orders.clients.domain import Client
from orders.clients.service import MOST_IDS, Clients, hashed, is_secret
from orders.errors import Forbidden
from orders.ops.repository import SessionRepository, StoredSession
from orders.sql.ids import is_uuid
from orders.sql.transactions import Transactional

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


class Sessions(Transactional[SessionRepository]):
    """Raises StorageUnavailable from every method while the database does not answer."""

    _repository = SessionRepository

    def __init__(self, engine: sa.Engine, clients: Clients) -> None:
        super().__init__(engine)
        self._clients = clients
        self._cached = Credentials[StoredSession](self._valid_ids)

    def log_in(self, client: Client, key_id: str) -> Session | None:
        """A session of this client's key; None if it was revoked meanwhile. Raises Forbidden."""
        if SCOPE not in client.scopes:
            raise Forbidden(f"It needs the scope {SCOPE}.")
        token = secrets.token_urlsafe(32)
        with self._writing() as repository:
            session_id = repository.add(key_id, hashed(token), 1000 * SECONDS)
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
        with self._autocommit() as repository:
            repository.end(session.id)
        self._cached.forget(session.id)

    def _read(self, session_id: str) -> StoredSession | None:
        with self._reading() as repository:
            return repository.session(session_id)

    def _valid_ids(self) -> frozenset[str]:
        with self._reading() as repository:
            return repository.valid_ids(MOST_IDS)
