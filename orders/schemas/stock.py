"""Stock and its adjustments."""

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from orders.domain import MAX_INT, MAX_MINOR, Adjustment, StockItem
from orders.schemas.paging import Query, encoded
from orders.schemas.types import SKU_PATTERN, In, Moment, Out, PriceCurrency


class StockIn(In):
    """A SKU's stock, what orders hold included, and its price."""

    on_hand: Annotated[int, Field(ge=0, le=MAX_INT)]
    price_minor: Annotated[int, Field(ge=0, le=MAX_MINOR)]
    currency: PriceCurrency


def _not_zero(delta: int) -> int:
    if delta == 0:
        raise ValueError("it changes nothing")
    return delta


#: Neither control characters nor those that end a line or turn its direction.
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{1,200}$"


class AdjustmentIn(In):
    """How much to add to what is on hand, or with a minus to remove, and why."""

    delta: Annotated[
        int,
        Field(ge=-MAX_INT, le=MAX_INT, json_schema_extra={"not": {"const": 0}}),
        AfterValidator(_not_zero),
    ]
    reason: Annotated[
        str, StringConstraints(pattern=PRINTABLE), Field(examples=["3 broken in transit"])
    ]


class StockQuery(Query):
    """Which SKUs."""

    @property
    def after(self) -> str | None:
        """Where the page before ended. Raises BadRequest."""
        return self.name("sku", SKU_PATTERN)

    def cursor_after(self, item: StockItem) -> str:
        """The cursor of the page that follows this SKU."""
        return encoded(f"sku {item.sku}")


class AdjustmentsQuery(Query):
    """Which of a SKU's adjustments."""

    @property
    def before_id(self) -> int | None:
        """Where the page before ended. Raises BadRequest."""
        number = self.name("adjustment", "[0-9]{1,18}")  # as a bigint holds
        return None if number is None else int(number)

    def cursor_after(self, adjustment: Adjustment) -> str:
        """The cursor of the page that follows this adjustment."""
        return encoded(f"adjustment {adjustment.id}")


class StockOut(Out):
    """A SKU's stock; on_hand includes reserved."""

    sku: str
    on_hand: int
    reserved: int
    price_minor: int
    currency: str


class StocksOut(Out):
    """A page of SKUs, in byte order."""

    data: list[StockOut]
    next_cursor: str | None


class AdjustmentOut(Out):
    """A change of what is on hand that no order made."""

    id: int
    sku: str
    client: str | None
    delta: int
    reason: str
    on_hand: int
    at: Moment


class AdjustmentsOut(Out):
    """A page of adjustments, newest first."""

    data: list[AdjustmentOut]
    next_cursor: str | None
