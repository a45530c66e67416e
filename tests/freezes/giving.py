"""Giving back time without a worker."""

from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from orders.db.database import autocommit
from orders.features.freezes import flow
from orders.hooks import Hooks
from orders.order.domain import Timeouts
from tests.kit.shop import Shop


def give_back(shop: Shop, freeze_id: str) -> tuple[dict[str, float], sa.Row[Any] | None]:
    """One batch."""
    timeouts = Timeouts(1800, 1, 86_400)
    services: Any = SimpleNamespace(scheduler=shop.scheduler, timeouts=timeouts, hooks=Hooks())
    with autocommit(shop.engine) as connection:
        return flow.give_back(services, connection, freeze_id)
