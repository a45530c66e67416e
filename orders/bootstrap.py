"""Wires the service from its settings. Both processes, the API and the worker, start here."""

from dataclasses import dataclass

import redis
import sqlalchemy as sa
import structlog

from orders.config import Settings
from orders.database import create_engine
from orders.service import OrderService, Timeouts
from worker import DelayQueue, connect
from worker.logs import configure_logging

#: The queue of the checks on unpaid orders. An order's id is its check's id.
QUEUE = "order-timeout"

log = structlog.get_logger("orders")


class RedisScheduler:
    """Schedules checks, when Redis answers. The sweep schedules what it missed."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue

    def schedule(self, order_id: str, due_at_ms: int) -> None:
        try:
            self._queue.schedule(order_id, due_at_ms)
        except redis.RedisError as error:
            log.warning("check not scheduled", order=order_id, error=str(error))

    def cancel(self, order_id: str) -> None:
        try:
            self._queue.cancel(order_id)
        except redis.RedisError as error:
            log.warning("check not cancelled", order=order_id, error=str(error))


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a process works with."""

    settings: Settings
    engine: sa.Engine
    redis: redis.Redis
    orders: OrderService

    def redis_answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except redis.RedisError:
            return False


def bootstrap(settings: Settings) -> Services:
    """Wire the service. Opens no connection."""
    configure_logging()
    engine = create_engine(settings)
    # Scheduling twice is harmless, so a connection found closed is worth a second try; half a
    # second of silence is not, because a customer waits.
    client = connect(
        settings.redis_url,
        timeout_seconds=0.5,
        reconnect=True,
        max_connections=settings.database_pool_size,
    )
    scheduler = RedisScheduler(DelayQueue(client, QUEUE))
    timeouts = Timeouts(
        settings.order_timeout_seconds,
        settings.order_timeout_min_seconds,
        settings.order_timeout_max_seconds,
    )
    return Services(settings, engine, client, OrderService(engine, scheduler, timeouts))
