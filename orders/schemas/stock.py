"""Stock."""

from typing import Annotated

from pydantic import Field

from orders.domain import MAX_MINOR
from orders.schemas.types import MAX_INT, In, Out, PriceCurrency


class StockIn(In):
    """A SKU's stock, what orders hold included, and its price."""

    on_hand: Annotated[int, Field(ge=0, le=MAX_INT)]
    price_minor: Annotated[int, Field(ge=0, le=MAX_MINOR)]
    currency: PriceCurrency


class StockOut(Out):
    """A SKU's stock; on_hand includes reserved."""

    sku: str
    on_hand: int
    reserved: int
    price_minor: int
    currency: str
