"""The flow that deletes orders that have been kept long enough."""

import time
from datetime import UTC, datetime

from orders.db.statements import FIRST
from orders.features.retention.service import Retention
from orders.features.retention.settings import RetentionSettings
from orders.log import log
from orders.wiring import Services
from worker import Recurring, Retry, Task

#: Its ids are the times when it runs.
RETENTION_QUEUE = "retention"
#: Once an hour. A run goes on for up to an hour, a batch at a time.
CRON, HOUR_SECONDS = "0 * * * *", 3600
#: How many orders are looked at in one transaction.
BATCH_SIZE = 500


def retention_flow(services: Services) -> Recurring:
    """Delete old orders, at a bounded rate."""
    settings = services.settings
    return Recurring(
        RETENTION_QUEUE,
        cron=CRON,
        timezone="UTC",
        handler=Pruner(services),
        probe=services.check_ready,
        pauses=services.pauses_of(RETENTION_QUEUE),
        threads=1,
        lease_seconds=settings.lease_seconds,
        max_failures=settings.max_failures,
        max_deliveries=settings.max_deliveries,
    )


class Pruner:
    """Deletes a batch at a time. It is done when no more are old enough."""

    def __init__(self, services: Services) -> None:
        self._services = services
        per_second = services.settings[RetentionSettings].retention_per_second
        self._size = min(BATCH_SIZE, per_second)
        self._seconds = self._size / per_second
        #: Where the next batch begins: those before it were looked at, and some have to stay.
        self._after = FIRST.id

    def __call__(self, task: Task) -> Retry | None:
        began = time.monotonic()
        # Also Redis's clock must call them old.
        not_after = datetime.fromtimestamp(min(time.time(), task.due_at_ms / 1000), UTC)
        deleted = self._services[Retention].delete(self._after, self._size, not_after)
        if deleted.orders:
            log.info("orders deleted", orders=deleted.orders)
        self._after = deleted.last_id or FIRST.id
        if deleted.last_id is None or task.attempt * self._seconds >= HOUR_SECONDS:
            return None
        return Retry(1000 * max(0.0, self._seconds - (time.monotonic() - began)))
