"""Clients and their API keys: who calls, and what each key may do."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import sqlalchemy as sa

from orders.caches import Credentials
from orders.clients.domain import KEY_PREFIX, ApiKey, Client, ValidKey, parted
from orders.clients.repository import ClientRepository
from orders.errors import ClientNotFound, KeyNotFound, StorageUnavailable
from orders.sql.ids import is_uuid
from orders.sql.transactions import Transactional

#: A key's last use is recorded at most this often.
USE_IS_NOTED_EVERY = timedelta(minutes=1)
#: How many keys' ids are known to a process, so that guesses from an address do not lock them out.
MOST_IDS = 10_000
#: How long a key still works after it was rotated, by default.
OVERLAP = timedelta(hours=24)


class Clients(Transactional[ClientRepository]):
    """A client owns orders and has any number of keys. A key is ``otk_ID.SECRET``.

    Only a hash of the secret is stored.

    Raises StorageUnavailable from every method while the database does not answer.
    """

    _repository = ClientRepository

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self._cached = Credentials[ValidKey](self._valid_ids)

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        expires_in: timedelta | None = None,
        label: str | None = None,
    ) -> str:
        """Make a key for the client of this name, and the client if it is new; return the key."""
        secret = secrets.token_urlsafe(32)
        with self._writing() as repository:
            key_id = repository.add_key(
                name,
                hashed(secret),
                sorted(scopes),
                None if expires_in is None else _ms(expires_in),
                label,
            )
        return f"{KEY_PREFIX}{key_id}.{secret}"

    def list_keys(self, name: str | None = None) -> list[ApiKey]:
        """The keys of one client, or of all, in the order in which they were made."""
        with self._reading() as repository:
            return repository.keys(name)

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key: here at once, elsewhere within `CACHE_SECONDS`. Raises KeyNotFound."""
        key_id = self._find(key_id).id
        with self._autocommit() as repository:
            key = repository.expire_key(key_id, 0)
        self._cached.forget(key_id)
        return key

    def rotate(self, key_id: str, overlap: timedelta = OVERLAP) -> str:
        """Make a new key with this one's scopes and lifetime; this one expires after ``overlap`` at
        most.

        Raises KeyNotFound, also for one that has expired.
        """
        key_id = self._find(key_id).id
        secret = secrets.token_urlsafe(32)
        with self._writing() as repository:
            successor = repository.add_successor(key_id, hashed(secret))
            if successor is None:
                raise KeyNotFound("This one has expired.")
            repository.expire_key(key_id, _ms(overlap))
        self._cached.forget(key_id)
        return f"{KEY_PREFIX}{successor}.{secret}"

    def _find(self, key_id: str) -> ApiKey:
        with self._reading() as repository:
            key = repository.key(key_id) if is_uuid(key_id) else None
        if key is None:
            raise KeyNotFound
        return key

    def id_of(self, name: str) -> str:
        """The id of the client of this name. Raises ClientNotFound."""
        with self._reading() as repository:
            client_id = repository.client_id(name)
        if client_id is None:
            raise ClientNotFound
        return client_id

    def authenticate(self, api_key: str) -> Client | None:
        """The client whose key this is, with what the key may do."""
        return self.recall(api_key) or self._authenticate(api_key)

    def recall(self, api_key: str) -> Client | None:
        """The client whose key this is, if the key is cached."""
        key_id, secret = parted(api_key)
        known = self._cached.get(key_id)
        return known.client if known and is_secret(secret, known.secret_hash) else None

    def knows(self, key_id: str) -> bool:
        """Whether there is a key of this id, even if it is not cached."""
        return self._cached.knows(key_id)

    def _valid_ids(self) -> frozenset[str]:
        with self._reading() as repository:
            return repository.valid_ids(MOST_IDS)

    def known_key(self, key_id: str, *, stale: bool = False) -> ValidKey | None:
        """A valid key, by its id alone: the caller must still prove that it has the secret.

        With ``stale``, an expired cache entry is good enough while the database does not answer.
        """
        return self._cached.find(key_id, self._read, stale=stale)

    def _authenticate(self, api_key: str) -> Client | None:
        key_id, secret = parted(api_key)
        # A key keeps its secret: who guesses that of a cached one costs no query.
        found = self._cached.find(key_id, self._read)
        if found is None or not is_secret(secret, found.secret_hash):
            return None
        if found.unused_ms > _ms(USE_IS_NOTED_EVERY) and not found.read_only:
            self._note_use(key_id)
        return found.client

    def _read(self, key_id: str) -> ValidKey | None:
        if not is_uuid(key_id):  # PostgreSQL would refuse it
            return None
        with self._reading() as repository:
            return repository.valid_key(key_id)

    def _note_use(self, key_id: str) -> None:
        with suppress(StorageUnavailable), self._autocommit() as repository:
            repository.note_use(key_id, _ms(USE_IS_NOTED_EVERY))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def is_secret(secret: str, secret_hash: str) -> bool:
    return hmac.compare_digest(secret_hash, hashed(secret))


def hashed(secret: str) -> str:
    # A fast hash will do: nobody can guess 256 random bits.
    return hashlib.sha256(secret.encode()).hexdigest()
