"""What the worker does with orders, without a worker."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import sqlalchemy as sa

from orders.bootstrap import bootstrap
from orders.config import Settings
from orders.order.service import OrderService, Report
from orders.sql.database import autocommit
from orders.sql.errors import retried
from orders.timeouts import timeout_flow
from worker import Due


@retried
def expire_now(
    service: OrderService, order_ids: Sequence[str], report: Report | None = None
) -> dict[str, float]:
    """Cancel what is overdue among these orders; see `OrderService.expire`."""
    with autocommit(service._engine) as connection:
        return service.expire(connection, order_ids, report)


def swept(
    engine: sa.Engine, after_seconds: float | None, before_seconds: float, page_size: int
) -> Iterator[Sequence[Due]]:
    """Pages of the orders that the worker's sweep finds to be due within these bounds from now."""
    url = engine.url.render_as_string(hide_password=False)
    services = bootstrap(
        Settings(database_url=url, redis_url="redis://127.0.0.1:1", batch_size=page_size)
    )
    try:
        sweep = timeout_flow(replace(services, engine=engine)).sweep
        assert sweep is not None
        yield from (page for page in sweep(after_seconds, before_seconds) if page)
    finally:
        services.close()
