"""The environment's settings of this feature: see `orders.config`."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    #: How many a worker sends at a time; half of them may hang.
    webhook_threads: Annotated[int, Field(ge=2)] = 8
    #: How long before an order's deadline `order.expiring` is sent; 0: never.
    webhook_expiring_minutes: Annotated[float, Field(ge=0)] = 0.0
    #: How long delivered and dead webhooks are kept; 0: forever.
    webhook_keep_days: Annotated[int, Field(ge=0)] = 30

    @property
    def reminder_ms(self) -> int:
        return round(60_000 * self.webhook_expiring_minutes)
