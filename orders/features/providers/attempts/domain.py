"""What a payment attempt is, and where its provider is asked to close it."""

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

ATTEMPT_QUEUE = "attempts"

#: How long one attempt may last.
MAX_SECONDS = 900
#: So many attempts of an order may be unsettled: settling one looks at the others.
MOST_OPEN = 50


class AttemptOutcome(StrEnum):
    """How an attempt was settled."""

    #: Its money was reported, in time or not, as much as was due or not.
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    #: Its provider has closed it: nobody can pay any more.
    CLOSED = "closed"
    #: It ended, and its provider cannot be asked.
    EXPIRED = "expired"
    #: Its provider could not say until the bound.
    UNKNOWN = "unknown"


class DueAttempt(NamedTuple):
    """An attempt that is not settled."""

    id: str
    order_id: str
    client_id: str
    provider: str
    reference: str
    #: The order's total.
    amount_minor: int
    currency: str
    #: Milliseconds until it ends.
    ends_in_ms: int
    #: Whether its provider is to be asked before it is settled. It is not if the money has been reported.
    asks: bool
    #: Whether it has kept its order for as long as it may.
    is_over: bool


class Closer(NamedTuple):
    """Where a client's provider is asked to close a payment attempt, and what signs the request."""

    url: str
    secrets: tuple[str, ...]
    #: The time of its signature, by the database's clock: a worker's may be wrong.
    at: datetime
