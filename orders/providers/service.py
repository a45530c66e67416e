"""Payment providers: where each sends its signed webhooks, and who signed a message."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from orders.caches import Credentials
from orders.errors import ClientNotFound, EndpointNotFound, SignatureInvalid
from orders.providers.domain import ProviderEndpoint
from orders.providers.repository import ProviderRepository, ValidEndpoint
from orders.sql.errors import retried
from orders.sql.ids import is_uuid
from orders.sql.transactions import Transactional
from orders.webhooks.signatures import new_secret, verify

log = structlog.get_logger("orders")

#: How long an old secret still works after a rotation, by default.
OVERLAP = timedelta(hours=24)
#: How many ignored types of messages to keep track of, so that each is logged once.
MAX_TYPES = 1000


class Sender(NamedTuple):
    """A provider that signed a message, and the client whose payments it reports."""

    endpoint_id: str
    client_id: str
    provider: str


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
        #: Endpoints, and the types of messages that were ignored.
        self._ignored: set[tuple[str, str]] = set()

    @retried
    def add(self, name: str, provider: str) -> tuple[ProviderEndpoint, str]:
        """Make an endpoint for a provider of the client of this name; return it and its secret.

        Raises ClientNotFound.
        """
        secret = new_secret()
        with self._autocommit() as repository:
            endpoint_id = repository.add(name, provider, secret)
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
        with self._autocommit() as repository:
            rotated = repository.rotate(endpoint_id, secret, overlap // timedelta(milliseconds=1))
        self._cached.forget(endpoint_id)
        if not rotated:
            raise EndpointNotFound("This one is revoked.")
        return secret

    @retried
    def revoke(self, endpoint_id: str) -> ProviderEndpoint:
        """Revoke an endpoint: here at once, elsewhere within `CACHE_SECONDS`. Its secrets are deleted.

        Raises EndpointNotFound.
        """
        self._find(endpoint_id)
        with self._autocommit() as repository:
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
        """Whether this endpoint is cached."""
        return self._cached.get(endpoint_id) is not None

    def check(self, endpoint_id: str) -> None:
        """Look up an endpoint. Raises SignatureInvalid if there is none."""
        if self._look_up(endpoint_id) is None:
            raise SignatureInvalid

    def ignore(self, sender: Sender, kind: str, message_id: str) -> None:
        """Log the first message of a type that is ignored: providers add new ones at any time."""
        if (sender.endpoint_id, kind) not in self._ignored and len(self._ignored) < MAX_TYPES:
            self._ignored.add((sender.endpoint_id, kind))
            log.info(
                "webhooks of this type are ignored",
                type=kind,
                webhook_id=message_id,
                **sender._asdict(),
            )

    def _find(self, endpoint_id: str) -> ProviderEndpoint:
        with self._reading() as repository:
            endpoint = repository.endpoint(endpoint_id) if is_uuid(endpoint_id) else None
        if endpoint is None:
            raise EndpointNotFound
        return endpoint

    def _look_up(self, endpoint_id: str) -> ValidEndpoint | None:
        with self._reading() as repository:
            return self._cached.refresh(endpoint_id, repository.valid_endpoint)
