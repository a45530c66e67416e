"""The environment's settings of this feature: see `orders.config`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeSettings:
    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    #: What makes a worker stop cancelling by itself, 0 never: how long no API process has served, how far
    #: the database's clock jumped.
    door_freeze_after_seconds: Annotated[float, Field(ge=0)] = 5.0
    clock_freeze_jump_seconds: Annotated[float, Field(ge=0)] = 2.0
    #: For how long, unless the cause is gone or a person thaws before.
    freeze_at_most_seconds: Annotated[float, Field(ge=1, le=86_400)] = 3600.0
