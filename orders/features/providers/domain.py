"""Where payment providers report to, and what they sent."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

#: How many messages of an endpoint may wait for a person. Of all of them, no more are counted.
MOST_WAITING = 10_000


class Sender(NamedTuple):
    """A provider that signed a message, and the client whose payments it reports."""

    endpoint_id: str
    client_id: str
    provider: str


class MessageStatus(StrEnum):
    """Whether a message waits for a person, because it could not be recorded."""

    WAITING = "waiting"
    SETTLED = "settled"


class WaitingMessages(NamedTuple):
    """How many messages wait for a person, counted up to a number, and how long the oldest has."""

    messages: int
    oldest_ms: int


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
    #: Asked to close a payment attempt; None: this provider cannot be asked.
    close_url: str | None
