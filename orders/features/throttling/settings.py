"""The environment's settings of this feature: see `orders.config`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlingSettings:
    #: Requests of one API key to one process, on average and at once; None: as many as in a second.
    rate_limit_per_second: Annotated[int, Field(ge=1)] = 1000
    rate_limit_burst: Annotated[int | None, Field(ge=1)] = None
    #: How many reverse proxies add a client's address to X-Forwarded-For. Without one, a client
    #: could choose its address.
    trusted_proxies: Annotated[int, Field(ge=0)] = 0
