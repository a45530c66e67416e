"""What the worker does with orders, without a worker."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import sqlalchemy as sa

from devtools.processes import wait_until
from orders.config import Settings
from orders.db.database import autocommit
from orders.db.errors import retried
from orders.order.service import OrderService, Report
from orders.timeouts import timeout_flow
from orders.wiring import bootstrap
from worker import Due


@retried
def expire_now(
    service: OrderService, order_ids: Sequence[str], report: Report | None = None
) -> dict[str, float]:
    """Cancel what is overdue among these orders, and return what is unpaid; see `OrderService.expire`."""
    with autocommit(service._bind) as connection:
        left = service.expire(connection, order_ids, report)
    return {order_id: ms for order_id, ms in left.items() if ms < math.inf}


def swept(
    engine: sa.Engine, after_seconds: float | None, before_seconds: float, page_size: int
) -> Iterator[Sequence[Due]]:
    """Pages of the orders that the worker's sweep finds to be due within these bounds from now."""
    url = engine.url.render_as_string(hide_password=False)
    services = bootstrap(
        Settings.of(database_url=url, redis_url="redis://127.0.0.1:1", batch_size=page_size)
    )
    try:
        sweep = timeout_flow(replace(services, engine=engine)).sweep
        assert sweep is not None
        yield from (page for page in sweep(after_seconds, before_seconds) if page)
    finally:
        services.close()


def all_due(engine: sa.Engine, count: int) -> None:
    """Wait until so many orders are: those that are not would be a batch of their own."""

    def due() -> bool:
        return sum(map(len, swept(engine, None, 0.0, 500))) == count

    wait_until(due, "all orders to be due")
