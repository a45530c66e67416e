"""Payment providers: where each sends its signed webhooks, and who signed a message."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import sqlalchemy as sa

from orders.caches import Credentials
from orders.errors import ClientNotFound, EndpointNotFound, MessageNotFound, SignatureInvalid
from orders.providers.domain import Closer, ProviderEndpoint, ProviderMessage, Sender
from orders.providers.repository import ProviderRepository, ValidEndpoint
from orders.sql.errors import retried
from orders.sql.ids import is_uuid
from orders.sql.statements import Position
from orders.sql.transactions import Transactional
from orders.webhooks.signatures import new_secret, verify

#: How long an old secret still works after a rotation, by default.
OVERLAP = timedelta(hours=24)
#: How long a message is kept that waits for nobody.
KEPT = timedelta(days=30)


class Providers(Transactional[ProviderRepository]):
    """A client has any number of endpoints, one for each provider, say. Each has a secret of its own.

    Secrets are stored in plain text: verifying an HMAC takes the secret itself. Whoever reads them
    can report payments to that endpoint, so the database and its backups must be protected
    accordingly.

    Raises StorageUnavailable from every method while the database does not answer.
    """

    _repository = ProviderRepository

    def __init__(self, engine: sa.Engine) -> None:
        super().__init__(engine)
        self._cached = Credentials[ValidEndpoint]()
        #: Nobody knows its secret, so no message to it is valid.
        self._nobody = ValidEndpoint("", "", (new_secret(),), 0)

    @retried
    def add(
        self, name: str, provider: str, close_url: str | None = None
    ) -> tuple[ProviderEndpoint, str]:
        """Make an endpoint for a provider of the client of this name; return it and its secret.

        At ``close_url`` the provider is asked to close payment attempts. Raises ClientNotFound.
        """
        secret = new_secret()
        with self._writing() as repository:
            endpoint_id = repository.add(name, provider, secret, close_url)
        if endpoint_id is None:
            raise ClientNotFound
        return self._find(endpoint_id), secret

    def list_endpoints(self, name: str | None = None) -> list[ProviderEndpoint]:
        """The endpoints of one client, or of all, in the order in which they were made."""
        with self._reading() as repository:
            return repository.endpoints(name)

    @retried
    def rotate(self, endpoint_id: str, overlap: timedelta = OVERLAP) -> str:
        """Make a new secret and return it; the old ones expire after ``overlap`` at most.

        Raises EndpointNotFound, also for one that is revoked.
        """
        secret = new_secret()
        self._find(endpoint_id)
        with self._writing() as repository:
            rotated = repository.rotate(endpoint_id, secret, overlap // timedelta(milliseconds=1))
        self._cached.forget(endpoint_id)
        if not rotated:
            raise EndpointNotFound("This one is revoked.")
        return secret

    @retried
    def set_close_url(self, endpoint_id: str, close_url: str | None) -> ProviderEndpoint:
        """Set where the provider is asked to close payment attempts; None: nowhere.

        Raises EndpointNotFound, also for one that is revoked.
        """
        self._find(endpoint_id)
        with self._writing() as repository:
            if not repository.set_url(endpoint_id, close_url):
                raise EndpointNotFound("This one is revoked.")
        return self._find(endpoint_id)

    def closer(self, client_id: str, provider: str) -> Closer | None:
        """Where a client's provider is asked to close payment attempts; None if it cannot be."""
        with self._reading() as repository:
            return repository.closer(client_id, provider)

    @retried
    def revoke(self, endpoint_id: str) -> ProviderEndpoint:
        """Revoke an endpoint: here at once, elsewhere within `CACHE_SECONDS`. Its secrets are deleted.

        Raises EndpointNotFound.
        """
        self._find(endpoint_id)
        with self._writing() as repository:
            repository.revoke(endpoint_id)
        self._cached.forget(endpoint_id)
        return self._find(endpoint_id)

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
        """Whether this endpoint is cached, even if not freshly."""
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
    ) -> None:
        """Keep a signed message, with what became of it. The same message again is the same row.

        If it ``waits`` for a person, it is kept until one settles it; otherwise for `KEPT`. Of an
        unknown type only the first message waits: providers add new ones at any time.
        """
        digest = hashlib.sha256(f"{sender.endpoint_id} {webhook_id} ".encode() + body)
        with self._autocommit() as repository:
            repository.keep(
                for_id=str(UUID(bytes=digest.digest()[:16])),
                for_endpoint=sender.endpoint_id,
                for_webhook_id=webhook_id[:255],
                for_body=body,
                for_note=note[:500],
                for_type=unknown_type,
                waits=waits,
                old_ms=-KEPT // timedelta(milliseconds=1),
            )

    def messages(
        self, status: str, *, page_size: int, after: Position | None = None
    ) -> list[ProviderMessage]:
        """All clients' messages of one status, oldest first."""
        with self._reading() as repository:
            return repository.messages(status, page_size, after)

    def message(self, message_id: str) -> ProviderMessage:
        """Raises MessageNotFound."""
        with self._reading() as repository:
            message = repository.message(message_id)
        if message is None:
            raise MessageNotFound
        return message

    def dismiss(self, message_id: str) -> ProviderMessage:
        """Settle a message by hand. Raises MessageNotFound."""
        with self._autocommit() as repository:
            repository.dismiss(message_id)
        return self.message(message_id)

    def _find(self, endpoint_id: str) -> ProviderEndpoint:
        with self._reading() as repository:
            endpoint = repository.endpoint(endpoint_id) if is_uuid(endpoint_id) else None
        if endpoint is None:
            raise EndpointNotFound
        return endpoint

    def _look_up(self, endpoint_id: str) -> ValidEndpoint | None:
        with self._reading() as repository:
            return self._cached.refresh(endpoint_id, repository.valid_endpoint)
