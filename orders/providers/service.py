"""Payment providers: where each sends its signed webhooks, and who signed a message."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

from orders.attempts.domain import Closer
from orders.caches import Credentials
from orders.errors import (
    ClientNotFound,
    EndpointNotFound,
    InboxFull,
    MessageNotFound,
    SignatureInvalid,
)
from orders.providers import repository
from orders.providers.domain import ProviderEndpoint, ProviderMessage, Sender, WaitingMessages
from orders.sql.database import Bind
from orders.sql.errors import retried
from orders.sql.ids import is_uuid, new_id
from orders.sql.statements import Position, Statements
from orders.sql.transactions import Service
from orders.webhooks.signatures import new_secret, verify

#: How long an old secret still works after a rotation, by default.
OVERLAP = timedelta(hours=24)
#: How long a message is kept that waits for nobody.
KEPT = timedelta(days=30)


class ValidEndpoint(NamedTuple):
    """What a message to an endpoint is verified with, and whose payments it reports."""

    client_id: str
    provider: str
    secrets: tuple[str, ...]
    #: Until the first of the secrets expires.
    valid_ms: float


class Providers(Service):
    """A client has any number of endpoints, one for each provider, say. Each has a secret of its own.

    Secrets are stored in plain text: verifying an HMAC takes the secret itself. Whoever reads them
    can report payments to that endpoint, so the database and its backups must be protected
    accordingly.
    """

    def __init__(self, bind: Bind) -> None:
        super().__init__(bind)
        self._cached = Credentials[ValidEndpoint](partial(self._ids, repository.LIST_VALID_IDS))
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
        values = {"for_name": name, "for_provider": provider, "for_url": close_url}
        with self._writing() as sql:
            if sql.run(repository.ADD_ENDPOINT, new_id=endpoint_id, **values).first() is None:
                raise ClientNotFound
            repository.SECRETS.add(sql, endpoint_id, secret)
        return self._find(endpoint_id), secret

    def list_endpoints(self, name: str | None = None) -> list[ProviderEndpoint]:
        """The endpoints of one client, or of all, in the order in which they were made."""
        if name is None:
            return self._all(repository.ENDPOINT, repository.LIST_ENDPOINTS)
        return self._all(repository.ENDPOINT, repository.LIST_ENDPOINTS_OF_CLIENT, for_name=name)

    @retried
    def rotate(self, endpoint_id: str, overlap: timedelta = OVERLAP) -> str:
        """Make a new secret and return it; the old ones expire after ``overlap`` at most.

        Raises EndpointNotFound, also for one that is revoked.
        """
        secret = new_secret()
        with self._changing(endpoint_id) as sql:
            if sql.run(repository.LOCK_VALID, for_id=endpoint_id).first() is None:
                raise EndpointNotFound("This one is revoked.")
            repository.SECRETS.replace(
                sql, endpoint_id, secret, overlap // timedelta(milliseconds=1)
            )
        return secret

    @retried
    def set_close_url(self, endpoint_id: str, close_url: str | None) -> ProviderEndpoint:
        """Set where the provider is asked to close payment attempts; None: nowhere.

        Raises EndpointNotFound, also for one that is revoked.
        """
        with self._changing(endpoint_id) as sql:
            if not sql.run(repository.SET_URL, for_id=endpoint_id, for_url=close_url).rowcount:
                raise EndpointNotFound("This one is revoked.")
        return self._find(endpoint_id)

    @retried
    def revoke(self, endpoint_id: str) -> ProviderEndpoint:
        """Revoke an endpoint: here at once, elsewhere within `CACHE_SECONDS`. Its secrets are deleted.

        Raises EndpointNotFound.
        """
        with self._changing(endpoint_id) as sql:
            if sql.run(repository.REVOKE, for_id=endpoint_id).rowcount:  # it was not before
                repository.SECRETS.delete(sql, endpoint_id)
        return self._find(endpoint_id)

    @contextmanager
    def _changing(self, endpoint_id: str) -> Iterator[Statements]:
        """A transaction that changes an endpoint. Raises EndpointNotFound."""
        self._find(endpoint_id)
        with self._writing() as sql:
            yield sql
        self._cached.forget(endpoint_id)

    def closer(self, client_id: str, provider: str) -> Closer | None:
        """Where a client's provider is asked to close payment attempts; None if it cannot be."""
        values = {"for_client": client_id, "for_provider": provider}
        with self._reading() as sql:
            rows = sql.run(repository.GET_CLOSER, **values).all()
        if not rows:
            return None
        return Closer(rows[0].close_url, tuple(row.secret for row in rows), rows[0].at)

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
        """Keep a signed message, with what became of it. The same message again is the same row.

        If it ``waits`` for a person, it is kept until one settles it; otherwise for `KEPT`. Of an
        unknown type only the first message waits: providers add new ones at any time. It belongs to the
        client's order of this id, or of this payment, if there is one.

        Raises InboxFull, with nothing kept, if too many of its endpoint's wait already.
        """
        digest = hashlib.sha256(f"{sender.endpoint_id} {webhook_id} ".encode() + body)
        with self._autocommit() as sql:
            [room] = sql.do(
                repository.keep,
                for_id=str(UUID(bytes=digest.digest()[:16])),
                for_endpoint=sender.endpoint_id,
                for_webhook_id=webhook_id[:255],
                for_body=body,
                for_note=note[:500],
                for_type=unknown_type,
                for_order=order_id,
                for_client=sender.client_id,
                for_provider=sender.provider,
                for_reference=payment_reference,
                waits=waits,
                old_ms=-KEPT // timedelta(milliseconds=1),
            )
        if not room.is_there:
            raise InboxFull("This one was not kept: send it again.")

    def waiting(self) -> WaitingMessages:
        """How many messages wait for a person, up to `MOST_WAITING`, and how long the oldest has."""
        [row] = self._all(tuple, repository.COUNT_WAITING)
        return WaitingMessages(row[0], -(row[1] or 0))

    def messages(
        self, status: str, *, page_size: int, after: Position | None = None
    ) -> list[ProviderMessage]:
        """All clients' messages of one status, oldest first."""
        return self._page(
            repository.MESSAGE, repository.LIST_MESSAGES, page_size, after, for_status=status
        )

    def message(self, message_id: str) -> ProviderMessage:
        """Raises MessageNotFound."""
        return self._one(
            repository.MESSAGE, MessageNotFound, repository.GET_MESSAGE, for_id=message_id
        )

    def dismiss(self, message_id: str) -> ProviderMessage:
        """Settle a message by hand. Raises MessageNotFound."""
        with self._autocommit() as sql:
            sql.run(repository.DISMISS_MESSAGE, for_id=message_id)
        return self.message(message_id)

    def _find(self, endpoint_id: str) -> ProviderEndpoint:
        if not is_uuid(endpoint_id):
            raise EndpointNotFound
        return self._one(
            repository.ENDPOINT, EndpointNotFound, repository.GET_ENDPOINT, for_id=endpoint_id
        )

    def _look_up(self, endpoint_id: str) -> ValidEndpoint | None:
        return self._cached.refresh(endpoint_id, self._read)

    def _read(self, endpoint_id: str) -> ValidEndpoint | None:
        """What messages are verified with; None if there is no such endpoint, or if it is revoked."""
        with self._reading() as sql:
            rows = sql.run(repository.GET_VALID_ENDPOINT, for_id=endpoint_id).all()
        if not rows:
            return None
        return ValidEndpoint(
            *(rows[0].client_id, rows[0].provider, tuple(row.secret for row in rows)),
            min(math.inf if row.valid_ms is None else row.valid_ms for row in rows),
        )
