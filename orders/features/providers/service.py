"""Payment providers: where each sends its signed webhooks, and who signed a message."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from orders.caches import Credentials
from orders.db.database import Bind
from orders.db.errors import retried
from orders.db.files import Room
from orders.db.ids import MILLISECOND, is_uuid, new_id
from orders.db.statements import Position, Service, as_it_is, made_of
from orders.errors import ClientNotFound, OrderError
from orders.features.providers.attempts.domain import Closer
from orders.features.providers.domain import ProviderEndpoint, Sender, WaitingMessages
from orders.features.providers.errors import (
    EndpointNotFound,
    InboxFull,
    MessageNotFound,
    UnknownProvider,
)
from orders.features.signing.errors import SignatureInvalid
from orders.features.signing.signatures import new_secret, verify

SQL = Room("orders.features.providers")
#: How long a message is kept that waits for nobody.
KEPT = timedelta(days=30)


class ValidEndpoint(NamedTuple):
    """What a message to an endpoint is verified with, and whose payments it reports."""

    client_id: str
    provider: str
    secrets: tuple[str, ...]
    #: Until the first of the secrets expires.
    valid_ms: float


#: As `orders.features.providers.schemas` shows it, and from which endpoint it came.
Message = sa.Row[Any]
_endpoint, _waiting = made_of(ProviderEndpoint), made_of(WaitingMessages)
_valid, _closer = made_of(ValidEndpoint, secrets=tuple), made_of(Closer, secrets=tuple)


class Registered(NamedTuple):
    """The providers that a client has registered."""

    providers: frozenset[str]
    valid_ms: float = math.inf


class Providers(Service):
    """A client has any number of endpoints, one for each provider, say. Each has a secret of its own.

    Secrets are stored in plain text: verifying an HMAC takes the secret itself. Whoever reads them
    can report payments to that endpoint, so the database and its backups must be protected
    accordingly.
    """

    def __init__(self, bind: Bind) -> None:
        super().__init__(bind)
        #: By client.
        self._registered = Credentials[Registered](frozenset)
        self._cached = Credentials[ValidEndpoint](partial(self._ids, SQL.list_valid_ids))
        #: Nobody knows its secret, so no message to it is valid.
        self._nobody = ValidEndpoint("", "", (new_secret(),), 0)

    @retried
    def add(
        self, name: str, provider: str, close_url: str | None = None
    ) -> tuple[ProviderEndpoint, str]:
        """Make an endpoint for a provider of the client of this name; return it and its secret.

        At ``close_url`` the provider is asked to close payment attempts. Raises ClientNotFound.
        """
        endpoint_id, secret = new_id(), new_secret()
        values = {"client": name, "provider": provider, "close_url": close_url, "secret": secret}
        with self._autocommit() as sql:
            if SQL.add_endpoint(sql, id=endpoint_id, **values).first() is None:
                raise ClientNotFound
        self._registered = Credentials(frozenset)
        return self._find(endpoint_id), secret

    def list_endpoints(self, name: str | None = None) -> list[ProviderEndpoint]:
        """The endpoints of one client, or of all, in the order in which they were made."""
        return self._all(_endpoint, SQL.list_endpoints, client=name)

    @retried
    def rotate(self, endpoint_id: str, overlap: timedelta = timedelta(hours=24)) -> str:
        """Make a new secret and return it; the old ones expire after ``overlap`` at most.

        Raises EndpointNotFound, also for one that is revoked.
        """
        secret = new_secret()
        with self._changing(endpoint_id) as sql:
            if SQL.lock_valid(sql, id=endpoint_id).first() is None:
                raise EndpointNotFound("This one is revoked.")
            values = {"secret": secret, "overlap_ms": overlap // MILLISECOND}
            SQL.replace_secret(sql, endpoint_id=endpoint_id, **values)
        return secret

    @retried
    def set_close_url(self, endpoint_id: str, close_url: str | None) -> ProviderEndpoint:
        """Set where the provider is asked to close payment attempts; None: nowhere.

        Raises EndpointNotFound, also for one that is revoked.
        """
        with self._changing(endpoint_id) as sql:
            if not SQL.set_close_url(sql, id=endpoint_id, close_url=close_url).rowcount:
                raise EndpointNotFound("This one is revoked.")
        return self._find(endpoint_id)

    @retried
    def revoke(self, endpoint_id: str) -> ProviderEndpoint:
        """Revoke an endpoint: here at once, elsewhere within `CACHE_SECONDS`. Its secrets are deleted.

        Raises EndpointNotFound.
        """
        with self._changing(endpoint_id) as sql:
            SQL.revoke(sql, id=endpoint_id)
            SQL.delete_secrets(sql, endpoint_id=endpoint_id)
        return self._find(endpoint_id)

    @contextmanager
    def _changing(self, endpoint_id: str) -> Iterator[sa.Connection]:
        """A transaction that changes an endpoint. Raises EndpointNotFound."""
        self._find(endpoint_id)
        with self._writing() as sql:
            yield sql
        self._cached.forget(endpoint_id)
        self._registered = Credentials(frozenset)

    def closer(self, client_id: str, provider: str) -> Closer | None:
        """Where a client's provider is asked to close payment attempts; None if it cannot be."""
        named = {"client_id": client_id, "provider": provider}
        return self._one_or_none(_closer, SQL.get_closer, **named)

    def refusal(self, client_id: str, provider: str) -> OrderError | None:
        """Why a client's payment by this provider is not to be recorded: it has registered others only.

        A misspelled name is found so; whoever may report payments may name any that is registered. What another
        process changed is seen after `CACHE_SECONDS`, but one that was registered at once. So a provider
        that was revoked, or one that is none of the first that are registered, still passes for so long.
        """
        for look in (self._registered.find, self._registered.refresh):
            found = look(client_id, self._read_registered)
            if not found or not found.providers or provider in found.providers:
                return None
        return UnknownProvider()

    def _read_registered(self, client_id: str) -> Registered:
        return Registered(self._ids(SQL.list_registered, client_id=client_id))

    def authenticate(
        self, endpoint_id: str, headers: Mapping[str, str], body: bytes, *, now_seconds: float
    ) -> Sender:
        """The provider that signed these bytes for this endpoint, as of ``now_seconds``.

        Raises SignatureInvalid. Every failure takes the same work, even for an unknown endpoint:
        two verifications, and between them a look-up that finds a secret newer than the cache.
        """
        for find in (self._cached.get, self._look_up):
            endpoint = find(endpoint_id) or self._nobody
            with suppress(SignatureInvalid):
                verify(headers, body, endpoint.secrets, now_seconds=now_seconds)
                return Sender(endpoint_id, endpoint.client_id, endpoint.provider)
        raise SignatureInvalid

    def knows(self, endpoint_id: str) -> bool:
        """Whether there is an endpoint of this id, even if it is not cached."""
        return self._cached.knows(endpoint_id)

    def check(self, endpoint_id: str) -> None:
        """Look up an endpoint. Raises SignatureInvalid if there is none."""
        if self._look_up(endpoint_id) is None:
            raise SignatureInvalid

    @retried
    def keep(
        self,
        sender: Sender,
        webhook_id: str,
        body: bytes,
        note: str,
        *,
        waits: bool = False,
        unknown_type: str | None = None,
        order_id: str | None = None,
        payment_reference: str | None = None,
    ) -> None:
        """Keep a signed message that ``waits`` for a person, or note what became of one that waited.

        The same message again is the same row. Once it is settled, all but its body is kept for `KEPT`. Of an
        unknown type only the first message waits: providers add new ones at any time. It belongs to the
        client's order of this id, or of this payment, if there is one.

        Raises InboxFull, with nothing kept, if too many of its endpoint's wait already.
        """
        digest = hashlib.sha256(f"{sender.endpoint_id} {webhook_id} ".encode() + body)
        with self._autocommit() as sql:
            kept = SQL.keep(
                sql,
                id=str(UUID(bytes=digest.digest()[:16])),
                **sender._asdict(),
                webhook_id=webhook_id[:255],
                body=body,
                note=note[:500],
                waits=waits,
                unknown_type=unknown_type,
                order_id=order_id,
                payment_reference=payment_reference,
                kept_ms=KEPT // MILLISECOND,
            )
            if not kept.scalar_one():
                raise InboxFull("This one was not kept: send it again.")

    def waiting(self) -> WaitingMessages:
        """How many messages wait for a person, up to `MOST_WAITING`, and how long the oldest has."""
        [found] = self._all(_waiting, SQL.count_waiting)
        return found

    def messages(
        self, status: str, *, page_size: int, after: Position | None = None
    ) -> list[Message]:
        """All clients' messages of one status, oldest first."""
        return self._page(as_it_is, SQL.list_messages, page_size, after, status=status)

    def message(self, message_id: str) -> Message:
        """Raises MessageNotFound."""
        return self._one(as_it_is, MessageNotFound, SQL.get_message, id=message_id)

    def dismiss(self, message_id: str) -> Message:
        """Settle a message by hand. Raises MessageNotFound."""
        with self._autocommit() as sql:
            SQL.dismiss_message(sql, id=message_id)
        return self.message(message_id)

    def _find(self, endpoint_id: str) -> ProviderEndpoint:
        if not is_uuid(endpoint_id):
            raise EndpointNotFound
        return self._one(_endpoint, EndpointNotFound, SQL.get_endpoint, id=endpoint_id)

    def _look_up(self, endpoint_id: str) -> ValidEndpoint | None:
        return self._cached.refresh(endpoint_id, self._read)

    def _read(self, endpoint_id: str) -> ValidEndpoint | None:
        """What messages are verified with; None if there is no such endpoint, or if it is revoked."""
        return self._one_or_none(_valid, SQL.get_valid_endpoint, id=endpoint_id)
