"""What a payment attempt is, and what its provider may answer when it is asked to close it."""

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from orders.features.providers.errors import GatewayUnavailable

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


class Closed(NamedTuple):
    """The provider has closed it, and takes no money for it any more."""

    provider: str | None = None
    order_id: str | None = None
    reference: str | None = None


class Paid(NamedTuple):
    """The provider has taken money for it."""

    provider: str
    order_id: str
    reference: str
    amount_minor: int
    currency: str
    #: By the provider's clock.
    paid_at: datetime | None = None


class Unknown(NamedTuple):
    """The provider cannot tell yet: ask again."""


Reply = Closed | Paid | Unknown
#: What a provider is asked about.
COMPARED = ("provider", "order_id", "reference", "amount_minor", "currency")


def check(reply: Reply, attempt: DueAttempt) -> None:
    """Raises GatewayUnavailable if a reply names something else than what was asked about.

    A client may give an attempt any provider and reference: also those of a payment for another order.
    """
    for name in COMPARED:
        if getattr(reply, name, None) not in (None, getattr(attempt, name)):
            raise GatewayUnavailable(f"It names another {name}.")


class Closer(NamedTuple):
    """Where a client's provider is asked to close a payment attempt, and what signs the request."""

    url: str
    secrets: tuple[str, ...]
    #: The time of its signature, by the database's clock: a worker's may be wrong.
    at: datetime


class Gateway(Protocol):
    """A provider that can be asked."""

    def close(self, attempt: DueAttempt, /) -> Reply:
        """Close an attempt, or say which order was paid, and how much. Repeating it is harmless.

        Raises GatewayUnavailable if it said nothing of use about this attempt.
        """
