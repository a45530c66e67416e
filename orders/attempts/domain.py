"""What a payment attempt is, and what its provider may answer when it is asked to close it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from orders.errors import ReferenceReused

#: How long one attempt may last.
MAX_SECONDS = 900


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


@dataclass(frozen=True, slots=True)
class Attempt:
    """Somebody is paying an order, until this is settled or ends."""

    id: str
    order_id: str
    client_id: str
    provider: str
    reference: str
    opened_at: datetime
    ends_at: datetime
    settled_at: datetime | None
    outcome: AttemptOutcome | None

    @property
    def created_at(self) -> datetime:
        return self.opened_at


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
    ends_in_ms: float
    #: Whether its provider is to be asked before it is settled. It is not if the money has been reported.
    asks: bool
    #: Whether it has kept its order for as long as it may.
    is_over: bool
    #: Whether its order can still be paid.
    is_unpaid: bool


class Closed(NamedTuple):
    """The provider has closed it, and takes no money for it any more."""


class Paid(NamedTuple):
    """The provider has taken money for it."""

    order_id: str
    reference: str
    amount_minor: int
    currency: str
    #: By the provider's clock.
    paid_at: datetime | None = None

    def check(self, attempt: DueAttempt) -> None:
        """Raises ReferenceReused if it is another payment, or for something else than the client's order.

        A client may give an attempt any reference: also that of a payment for another order.
        """
        asked = (attempt.order_id, attempt.reference, attempt.amount_minor, attempt.currency)
        if self[:4] != asked:
            raise ReferenceReused


class Unknown(NamedTuple):
    """The provider cannot tell yet: ask again."""


Reply = Closed | Paid | Unknown


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

        Raises GatewayUnavailable if there was no answer in time, or none that makes sense.
        """
