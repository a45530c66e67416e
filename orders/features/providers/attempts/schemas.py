"""Payments under way."""

from typing import Annotated, ClassVar

from pydantic import Field

from orders.features.providers.attempts.domain import MAX_SECONDS, AttemptOutcome
from orders.http.schemas.paging import TimeQuery, page_of
from orders.http.schemas.types import (
    Id,
    In,
    Moment,
    Out,
    Provider,
    ProviderOut,
    Reference,
    ReferenceOut,
    whole,
)

Seconds = Annotated[int, *whole(600, "How long it may take, in seconds.", ge=1, le=MAX_SECONDS)]


class AttemptIn(In):
    """Somebody is paying."""

    provider: Provider
    reference: Annotated[
        Reference, Field(description="The provider's own name for the payment that it may become.")
    ]
    seconds: Seconds = MAX_SECONDS


class AttemptOut(Out):
    """A payment attempt. While it is open, its order is not cancelled at its deadline."""

    id: Id
    order_id: Id = Field(description="The id of its order.")
    provider: ProviderOut
    reference: ReferenceOut
    opened_at: Moment
    ends_at: Moment = Field(description="When it ends, unless it is settled before.")
    settled_at: Moment | None = Field(
        description="When its outcome was known; null while it is open."
    )
    outcome: AttemptOutcome | None = Field(
        description="Closed: by its provider. Expired: it ended, and the provider cannot be asked. "
        "Unknown: the provider could not tell for as long as the order may wait."
    )


class AttemptsQuery(TimeQuery):
    """Which of an order's attempts."""

    list_name: ClassVar[str] = "attempts"
    sorted_by: ClassVar[tuple[str, ...]] = ("opened_at", "id")


AttemptsOut = page_of("AttemptsOut", AttemptOut, "A page of attempts, oldest first.")
