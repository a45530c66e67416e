"""The environment's settings of this feature: see `orders.config`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSettings:
    #: What one client may reserve without paying: unpaid orders, and the pieces in them. 0 is no limit.
    max_unpaid_orders: Annotated[int, Field(ge=0)] = 10_000
    max_held_pieces: Annotated[int, Field(ge=0)] = 100_000
