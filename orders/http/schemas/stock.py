"""Stock and its adjustments."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Discriminator, Field, RootModel, Tag

from orders.http.schemas.paging import NumberQuery, Query, page_of
from orders.http.schemas.types import (
    SKU_PATTERN,
    WHOLE,
    Count,
    CountOut,
    CurrencyOut,
    Id,
    In,
    Moment,
    Out,
    Price,
    PriceCurrency,
    PriceOut,
    Shown,
    SkuOut,
    line,
)
from orders.stock.domain import MAX_INT

OnHand = Field(
    description="How many pieces there are, including those that unpaid orders reserve.",
    examples=[10],
)

Timeout = Annotated[int, Field(ge=1, le=MAX_INT, examples=[300]), WHOLE]


SkuTimeout = Annotated[
    Timeout | None,
    Field(
        description="How long an order for it may stay unpaid by default, within the server's bounds: an "
        "order has the shortest of its SKUs'. Null is the server's default; if left out, it stays as it is. "
        "Orders that were placed before keep their deadlines.",
        examples=[300],
    ),
]


class StockIn(In):
    """A SKU's stock, including what unpaid orders reserve, and its price."""

    on_hand: Annotated[Count, OnHand]
    price_minor: Price
    currency: PriceCurrency
    timeout_seconds: SkuTimeout = None


class TimeoutIn(In):
    """A SKU's timeout alone. Its stock and price stay as they are."""

    timeout_seconds: SkuTimeout


def _tag(change: Any) -> str:
    is_alone = isinstance(change, dict) and change.keys() == {"timeout_seconds"}
    return "timeout" if is_alone else "stock"


class StockChangeIn(
    RootModel[
        Annotated[
            Annotated[StockIn, Tag("stock")] | Annotated[TimeoutIn, Tag("timeout")],
            Discriminator(_tag),
        ]
    ]
):
    """A SKU's stock and price, its timeout, or all of them."""


def _not_zero(delta: int) -> int:
    if delta == 0:
        raise ValueError("it changes nothing")
    return delta


Delta = Annotated[
    int,
    Field(
        ge=-MAX_INT,
        le=MAX_INT,
        description="How many pieces to add; negative to remove some.",
        examples=[-3],
        json_schema_extra={"not": {"const": 0}},
    ),
    AfterValidator(_not_zero),
    WHOLE,
]
Reason = Annotated[
    str,
    line(),
    Field(description="The reason, for people to read.", examples=["3 broken in transit"]),
]


class AdjustmentIn(In):
    """How many pieces to add to what is on hand, negative to remove some, and why."""

    delta: Delta
    reason: Reason


class StockQuery(Query):
    """Which SKUs."""

    list_name: ClassVar[str] = "sku"
    sorted_by: ClassVar[tuple[str, ...]] = ("sku",)

    @property
    def after(self) -> str | None:
        """Where the page before ended. Raises BadRequest."""
        return self._read(self.list_name, SKU_PATTERN)


class AdjustmentsQuery(NumberQuery):
    """Which of a SKU's adjustments."""

    list_name: ClassVar[str] = "adjustment"


class StockOut(Out):
    """A SKU's stock; on_hand includes reserved."""

    sku: SkuOut
    on_hand: Annotated[CountOut, OnHand]
    reserved: CountOut = Field(description="How many of these pieces unpaid orders reserve.")
    price_minor: PriceOut
    currency: CurrencyOut
    timeout_seconds: Annotated[int, Shown(Timeout)] | None = Field(
        description="How long an order for it may stay unpaid by default; null is the server's default."
    )
    retired_at: Moment | None = Field(description="Since when it is not sold, if so.")


StocksOut = page_of("StocksOut", StockOut, "A page of SKUs that are sold, in byte order.")


class AdjustmentOut(Out):
    """A change of a SKU's stock on hand that no order made."""

    id: int = Field(
        description="Its number, greater than any earlier one.",
        examples=[17],
        json_schema_extra={"minimum": 1, "maximum": 2**63 - 1},
    )
    sku: SkuOut
    client: Annotated[str, Field(json_schema_extra={"maxLength": 100})] | None = Field(
        description="Whose key it was; null when it came from the command line."
    )
    delta: Annotated[int, Shown(Delta)]
    reason: Annotated[str, Shown(Reason)]
    on_hand: CountOut = Field(description="How many there were afterwards.", examples=[7])
    at: Moment = Field(description="When it was made.")
    key_id: Id | None = Field(
        description="The id of the key that it was made with; null when it came from the command line."
    )


AdjustmentsOut = page_of("AdjustmentsOut", AdjustmentOut, "A page of adjustments, newest first.")
