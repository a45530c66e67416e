"""The environment's settings of this feature: see `orders.config`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    #: How long orders are kept once nothing is to be done for them, 0: forever; and how many are deleted
    #: per second at most.
    retention_days: Annotated[int, Field(ge=0, le=36_500)] = 0
    retention_per_second: Annotated[int, Field(ge=1, le=10_000)] = 100
