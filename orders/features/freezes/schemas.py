"""Freezes."""

from typing import Annotated, ClassVar

from pydantic import Field

from orders.features.freezes.domain import GIVE_BACK_SECONDS, MAX_SECONDS, FreezeState
from orders.http.schemas.paging import TimeQuery, page_of
from orders.http.schemas.types import CountOut, Id, In, Moment, Out, Shown, line, whole

ClientName = Annotated[
    str, line(100), Field(description="The name of a client.", examples=["customer"])
]
Reason = Annotated[
    str,
    line(),
    Field(description="The reason, for people to read.", examples=["the card terminal is down"]),
]
Seconds = Annotated[int, *whole(3600, "How long from now, up to a day.", ge=1, le=MAX_SECONDS)]
_AFTER = "How long after the freeze its orders expire at the earliest."
GiveBack = Annotated[int, *whole(300, _AFTER, ge=0, le=MAX_SECONDS)]
Who = Annotated[
    str,
    Field(
        description="`key` and the id of an API key, `command line`, or the rule that opened it.",
        examples=["key 01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f"],
        json_schema_extra={"maxLength": 100},
    ),
]


class FreezeIn(In):
    """Which orders to freeze, for how long, and why; without a client, all of them."""

    reason: Reason
    seconds: Seconds
    give_back_seconds: GiveBack = GIVE_BACK_SECONDS
    client: ClientName | None = Field(default=None, description="Only orders of this client.")


class FreezeChangeIn(In):
    """When a freeze ends."""

    seconds: Seconds


class FreezeOut(Out):
    """A freeze: open, then thawing while it gives back time, then over."""

    id: Id
    client: Annotated[str, Shown(ClientName)] | None = Field(description="Whose orders; null: all.")
    reason: Annotated[str, Shown(Reason)]
    opened_by: Who
    opened_at: Moment = Field(description="Since when it is in force.")
    ends_at: Moment = Field(description="When it ends, or ended.")
    give_back_seconds: Annotated[int, Shown(GiveBack)]
    state: FreezeState = Field(description="Whether it is open, thawing or over.")
    thawed_by: Who | None = Field(description="Who ended it; null if it was not ended by hand.")
    given_back: CountOut = Field(description="How many orders have got time back.")
    given_back_at: Moment | None = Field(description="When it was over.")


FreezesOut = page_of("FreezesOut", FreezeOut, "A page of freezes, the latest first.")


class FreezesQuery(TimeQuery):
    """Which freezes."""

    list_name: ClassVar[str] = "freezes"
    sorted_by: ClassVar[tuple[str, ...]] = ("opened_at", "id")
