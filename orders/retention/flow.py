"""The flow that deletes what has been kept long enough: orders, and deliveries of webhooks."""

import time
from datetime import UTC, datetime

from orders.bootstrap import Services
from orders.log import log
from orders.outages import outages
from orders.queues import RETENTION_QUEUE
from orders.sql.statements import FIRST
from worker import Recurring, Retry, Task

#: Once an hour. A run goes on for up to an hour, a batch at a time.
CRON, HOUR_SECONDS = "0 * * * *", 3600
#: How many orders are looked at in one transaction.
BATCH_SIZE = 500


def retention_flow(services: Services) -> Recurring:
    """Delete old orders and deliveries, at a bounded rate."""
    settings = services.settings
    return Recurring(
        RETENTION_QUEUE,
        cron=CRON,
        timezone="UTC",
        handler=Pruner(services),
        probe=outages()(services.orders.check_ready),
        pauses=services.pauses[RETENTION_QUEUE],
        threads=1,
        lease_seconds=settings.lease_seconds,
        max_failures=settings.max_failures,
        max_deliveries=settings.max_deliveries,
    )


class Pruner:
    """Deletes a batch at a time. It is done when no more are old enough."""

    def __init__(self, services: Services) -> None:
        self._services = services
        per_second = services.settings.retention_per_second
        self._size = min(BATCH_SIZE, per_second)
        self._seconds = self._size / per_second
        #: Where the next batch begins: those before it were looked at, and some have to stay.
        self._after = FIRST.id

    def __call__(self, task: Task) -> Retry | None:
        began = time.monotonic()
        with outages():
            more = self._services.webhooks.prune()
            more = self._delete(task.due_at_ms) or more
        if not more or task.attempt * self._seconds >= HOUR_SECONDS:
            return None
        return Retry(1000 * max(0.0, self._seconds - (time.monotonic() - began)))

    def _delete(self, redis_ms: int) -> bool:
        """Delete a batch of orders; whether there are more. Also Redis's clock must call them old."""
        not_after = datetime.fromtimestamp(min(time.time(), redis_ms / 1000), UTC)
        deleted = self._services.retention.delete(self._after, self._size, not_after)
        if deleted.orders:
            log.info("orders deleted", orders=deleted.orders)
        self._after = deleted.last_id or FIRST.id
        return deleted.last_id is not None
