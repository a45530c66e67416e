"""What a freeze is."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

FREEZE_QUEUE = "freezes"

#: How long a freeze may last from when it is opened or prolonged.
MAX_SECONDS = 86_400
GIVE_BACK_SECONDS = 300
#: Who opened a freeze on the command line. With a key it is "key" and the key's id.
COMMAND_LINE = "command line"


class FreezeState(StrEnum):
    """Thawing: it has ended, and is in force until every order has its time back."""

    OPEN = "open"
    THAWING = "thawing"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """A freeze."""

    id: str
    #: The name of the client whose orders it stops; None: everybody's.
    client: str | None
    reason: str
    opened_by: str
    opened_at: datetime
    ends_at: datetime
    #: In how many milliseconds it ends, 0 or less if it has.
    left_ms: int = field(compare=False)
    #: How long it was to last when it was opened.
    asked_ms: int
    give_back_seconds: int
    #: Who ended it; None if it ended by itself, or has not.
    thawed_by: str | None
    #: How many orders have got time back.
    given_back: int
    given_back_at: datetime | None

    def __str__(self) -> str:
        until = f"{self.ends_at:%Y-%m-%d %H:%M} UTC"
        return f"{self.scope} until {until}, by {self.opened_by}: {self.reason.rstrip('.')}"

    @property
    def state(self) -> FreezeState:
        if self.given_back_at is not None:
            return FreezeState.OVER
        return FreezeState.OPEN if self.left_ms > 0 else FreezeState.THAWING

    @property
    def scope(self) -> str:
        return "everything" if self.client is None else f"client {self.client}"

    @property
    def deadline(self) -> datetime:
        """When the orders that it stops expire: those that would have expired before."""
        return self.ends_at + timedelta(seconds=self.give_back_seconds)
