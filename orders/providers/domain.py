"""Where payment providers report to."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ProviderEndpoint:
    """Where a payment provider sends its webhooks: all that is known of it but the secrets."""

    id: str
    #: The client's name.
    client: str
    provider: str
    created_at: datetime
    revoked_at: datetime | None
    #: Until when a message may be signed with the secret before the last rotation.
    old_secret_until: datetime | None
