"""Clients and their API keys: who calls, and what each key may do."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from orders.caches import Credentials
from orders.clients.domain import KEY_PREFIX, ApiKey, Client, ValidKey, parted
from orders.db.files import Room
from orders.db.ids import MILLISECOND, is_uuid, new_id
from orders.db.statements import Service, made_of
from orders.errors import ClientNotFound, KeyNotFound, StorageUnavailable, Unauthorized

SQL = Room("orders.clients")
#: A key's last use is recorded at most this often.
USE_IS_NOTED_EVERY_MS = 60_000


class Clients(Service):
    """A client owns orders and has any number of keys. A key is ``otk_ID.SECRET``.

    Only a hash of the secret is stored.
    """

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self._cached = Credentials[ValidKey](partial(self._ids, SQL.list_valid_ids))

    def create_key(
        self,
        name: str,
        scopes: Sequence[str],
        expires_in: timedelta | None = None,
        label: str | None = None,
    ) -> str:
        """Make a key for the client of this name, and the client if it is new; return the key."""
        key_id, secret = new_id(), secrets.token_urlsafe(32)
        lifetime_ms = expires_in and expires_in // MILLISECOND
        values = {"id": key_id, "secret_hash": hashed(secret), "scopes": " ".join(sorted(scopes))}
        with self._writing() as sql:
            SQL.add_client(sql, id=new_id(), name=name)
            SQL.add_key(sql, **values, client=name, lifetime_ms=lifetime_ms, label=label)
        return f"{KEY_PREFIX}{key_id}.{secret}"

    def list_keys(self, name: str | None = None) -> list[ApiKey]:
        """The keys of one client, or of all, in the order in which they were made."""
        return self._all(_api_key, SQL.list_keys, client=name, id=None)

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key: here at once, elsewhere within `CACHE_SECONDS`. Raises KeyNotFound."""
        key_id = self._find(key_id).id
        with self._autocommit() as sql:
            SQL.expire_key(sql, id=key_id, ms=0)
        self._cached.forget(key_id)
        return self._find(key_id)

    def rotate(self, key_id: str, overlap: timedelta = timedelta(hours=24)) -> str:
        """Make a new key with this one's scopes and lifetime; this one expires after ``overlap`` at
        most.

        Raises KeyNotFound, also for one that has expired.
        """
        key_id, successor = self._find(key_id).id, new_id()
        secret = secrets.token_urlsafe(32)
        values = {"id": successor, "secret_hash": hashed(secret), "of": key_id}
        with self._writing() as sql:
            if SQL.add_successor(sql, **values).first() is None:
                raise KeyNotFound("This one has expired.")
            SQL.expire_key(sql, id=key_id, ms=overlap // MILLISECOND)
        self._cached.forget(key_id)
        return f"{KEY_PREFIX}{successor}.{secret}"

    def _find(self, key_id: str) -> ApiKey:
        if not is_uuid(key_id):
            raise KeyNotFound
        return self._one(_api_key, KeyNotFound, SQL.list_keys, client=None, id=key_id)

    def id_of(self, name: str) -> str:
        """The id of the client of this name. Raises ClientNotFound."""
        client_id: str | None = self._value(SQL.get_client_id, name=name)
        if client_id is None:
            raise ClientNotFound
        return client_id

    def recall(self, api_key: str) -> Client | None:
        """The client whose key this is, if the key is cached."""
        key_id, secret = parted(api_key)
        known = self._cached.get(key_id)
        return known.client if known and is_secret(secret, known.secret_hash) else None

    def knows(self, key_id: str) -> bool:
        """Whether there is a key of this id, even if it is not cached."""
        return self._cached.knows(key_id)

    def authenticate(self, api_key: str, *, stale: bool = False) -> Client:
        """The client whose key this is, with what the key may do; records that it is used. Raises Unauthorized.

        With ``stale``, an expired cache entry is good enough while the database does not answer.
        """
        if client := self.recall(api_key):
            return client
        key_id, secret = parted(api_key)
        # A key keeps its secret: who guesses that of a cached one costs no query.
        found = self._cached.find(key_id, self._read, stale=stale)
        if found is None or not is_secret(secret, found.secret_hash):
            raise Unauthorized
        if found.unused_ms > USE_IS_NOTED_EVERY_MS and not found.read_only:
            with suppress(StorageUnavailable), self._autocommit() as sql:
                SQL.note_use(sql, id=key_id, ms=USE_IS_NOTED_EVERY_MS)
        return found.client

    def _read(self, key_id: str) -> ValidKey | None:
        if not is_uuid(key_id):  # PostgreSQL would refuse it
            return None
        return self._one_or_none(_valid_key, SQL.get_valid_key, id=key_id)


_api_key = made_of(ApiKey, scopes=lambda text: frozenset(text.split()))


def _valid_key(row: sa.Row[Any]) -> ValidKey:
    client = Client(row.client_id, row.name, frozenset(row.scopes.split()))
    return ValidKey(client, row.secret_hash, row.valid_ms, row.unused_ms, row.read_only)


def is_secret(secret: str, secret_hash: str) -> bool:
    return hmac.compare_digest(secret_hash, hashed(secret))


def hashed(secret: str) -> str:
    # A fast hash will do: nobody can guess 256 random bits.
    return hashlib.sha256(secret.encode()).hexdigest()
