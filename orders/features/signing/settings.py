"""The environment's settings of sending: see `orders.config`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingSettings:
    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    #: How long a request may take in all.
    webhook_timeout_seconds: Annotated[float, Field(ge=0.1)] = 5.0
    #: Whether it may go to private addresses and any port, as on a developer's machine.
    webhook_allow_private: bool = False
