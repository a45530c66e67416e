"""What the worker does with orders, without a worker."""

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from orders.order.service import OrderService, Report
from orders.queues import QUEUE
from orders.sql.database import autocommit
from orders.sql.errors import retried
from orders.sql.tables import unpaid_orders
from worker import DelayQueue, Due, connect
from worker.records import Records


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
    """Pages of the orders that a sweep finds to be due within these bounds from now."""
    records = Records(
        engine,
        id=unpaid_orders.c.order_id,
        due=unpaid_orders.c.expires_at,
        pending=sa.true(),
        decide=lambda _connection, _tasks: None,
        queue=DelayQueue(connect("redis://127.0.0.1:1"), QUEUE),
    )
    sweep = records.flow(batch_size=page_size).sweep
    assert sweep is not None
    return (page for page in sweep(after_seconds, before_seconds) if page)
