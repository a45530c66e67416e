"""What is on the shelf. Pure: no clock, no database, no network."""

from dataclasses import dataclass
from datetime import datetime

#: Amounts travel as JSON numbers, which are exact up to here in every language.
MAX_MINOR = 2**53 - 1
#: What the columns for quantities hold.
MAX_INT = 2**31 - 1
#: In place of a timeout: a SKU keeps the one that it has.
KEEP_TIMEOUT = 0


@dataclass(frozen=True, slots=True)
class StockItem:
    """A SKU on the shelf. ``on_hand`` includes ``reserved``, which unpaid orders reserve."""

    sku: str
    on_hand: int
    reserved: int
    price_minor: int
    currency: str
    #: Since when it is no longer sold.
    retired_at: datetime | None = None
    #: How long an order for it may stay unpaid; None is the service's default.
    timeout_seconds: int | None = None

    @property
    def available(self) -> int:
        return self.on_hand - self.reserved

    @property
    def version(self) -> str:
        """What an operator sets. Not ``reserved``, which every order for a popular SKU changes."""
        sold = f"{self.on_hand}-{self.price_minor}-{self.currency}"
        if self.timeout_seconds is not None:
            sold += f"-{self.timeout_seconds}s"
        return sold if self.retired_at is None else f"{sold}-retired"


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A change of a SKU's stock on hand that no order made."""

    #: Grows with each change of the SKU.
    id: int
    sku: str
    #: The client's name; None for the command line.
    client: str | None
    delta: int
    reason: str
    #: Afterwards.
    on_hand: int
    at: datetime
    #: Of the API key; None for the command line.
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The version that a writer expects to find."""

    #: It must have one of these; None is any.
    versions: list[str] | None = None
    #: Whether it must exist already; None is either.
    exists: bool | None = None


ANYTHING = Expected()
