"""Who may call: clients and their API keys."""

from dataclasses import dataclass
from datetime import datetime

#: What keys begin with, so that people and programs that search for leaked secrets recognize them.
KEY_PREFIX = "otk_"


def parted(api_key: str) -> tuple[str, str]:
    """The id and the secret of a key, whose prefix may be missing."""
    key_id, _, secret = api_key.removeprefix(KEY_PREFIX).partition(".")
    return key_id, secret


@dataclass(frozen=True, slots=True)
class Client:
    """Who calls, and what the key they sent may do: a customer, the shop's back office, or both."""

    id: str
    name: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class ValidKey:
    """Whose an API key is, and what it may do."""

    client: Client
    secret_hash: str
    #: Until it expires.
    valid_ms: float
    #: Since its use was last noted.
    unused_ms: float
    #: Whether the database is read-only.
    read_only: bool


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key: all but the key itself."""

    id: str
    #: The client's name.
    client: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None
    #: To the minute.
    last_used_at: datetime | None
    expired: bool
    #: What it is for, for people to read.
    label: str | None = None
