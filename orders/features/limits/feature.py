"""Limits: what one client may reserve without paying."""

from collections.abc import Iterator

from orders.feature import Feature
from orders.features.limits.errors import TooManyHeldPieces, TooManyUnpaidOrders
from orders.features.limits.service import UnpaidLimits
from orders.features.limits.settings import LimitsSettings
from orders.wiring import Services


def wire(services: Services) -> Iterator[object]:
    settings = services.settings[LimitsSettings]
    made = UnpaidLimits(services.engine, settings.max_unpaid_orders, settings.max_held_pieces)
    services.hooks.around_placing.append(made.placing)
    yield made


FEATURE = Feature(
    name="limits",
    settings=(LimitsSettings,),
    wire=wire,
    refusals={"create_order": (TooManyHeldPieces, TooManyUnpaidOrders)},
)
