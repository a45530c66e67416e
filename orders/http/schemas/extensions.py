"""Extensions of many orders."""

from typing import Annotated

from pydantic import Field

from orders.freezes.domain import MAX_SECONDS
from orders.http.schemas.freezes import ClientName, Reason
from orders.http.schemas.types import CountOut, In, MomentIn, Out, Sku, whole

Time = Annotated[MomentIn, Field(strict=False, examples=["2026-11-22T09:30:00Z"])]


class ExtensionIn(In):
    """By how much to extend which unpaid orders: those that are all of what is given."""

    seconds: Annotated[int, *whole(900, "By how much, up to a day.", ge=1, le=MAX_SECONDS)]
    reason: Reason
    client: ClientName | None = Field(default=None, description="Only orders of this client.")
    sku: Sku | None = Field(default=None, description="Only orders with this SKU.")
    placed_after: Time | None = Field(
        default=None, description="Only those placed after this moment."
    )
    due_before: Time | None = Field(
        default=None, description="Only those whose deadline is before this moment."
    )
    dry_run: bool = Field(default=False, description="Only count them.", examples=[False])


class ExtensionOut(Out):
    """What one request did."""

    extended: CountOut = Field(description="How many orders it extended, or would extend.")
    done: bool = Field(
        description="Whether there is nothing left to do, or to count.", examples=[True]
    )
