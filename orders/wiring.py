"""Wires the service from its settings. Both processes, the API and the worker, start here."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import redis
import sqlalchemy as sa

from orders.caches import SharedRead
from orders.clients.service import Clients
from orders.config import Settings
from orders.db.database import create_engine, watching
from orders.db.schema import check_ready
from orders.db.tables import queue_pauses
from orders.errors import SettingsInvalid, StorageUnavailable
from orders.feature import features
from orders.hooks import Hooks
from orders.log import Reminder, log
from orders.order.domain import Timeouts
from orders.order.service import OrderService
from orders.queues import QUEUE
from orders.stock.service import StockService
from worker import BatchScheduler, DelayQueue, Pauses, Unavailable, connect
from worker.records import TablePauses
from worker.watch.logs import configure_logging
from worker.watch.tracing import TracingUnavailable, configure_tracing

T = TypeVar("T")
#: How long /readyz repeats what it found.
READY_SECONDS = 1.0


class Readiness(NamedTuple):
    """What is wrong with the database, if anything, and whether Redis answers."""

    problem: StorageUnavailable | None
    redis: bool


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a process works with. What a feature made is found by its type: ``services[Webhooks]``."""

    settings: Settings
    engine: sa.Engine
    #: For metrics and the operators' page: see `orders.db.database.watching`.
    watching: sa.Engine
    redis: redis.Redis
    #: The queue of the orders' checks.
    queue: DelayQueue
    scheduler: BatchScheduler
    hooks: Hooks
    timeouts: Timeouts
    orders: OrderService
    stock: StockService
    clients: Clients
    #: What anybody may ask costs one look a second.
    readiness: SharedRead[Readiness]
    #: When to log that requests find the database unavailable.
    outage: Reminder
    made: dict[type, object] = field(default_factory=dict)
    schedulers: dict[str, BatchScheduler] = field(default_factory=dict)

    def __getitem__(self, kind: type[T]) -> T:
        found = self.made[kind]
        assert isinstance(found, kind)
        return found

    def scheduler_of(self, queue: str) -> BatchScheduler:
        """A scheduler of another queue, which `close` closes."""
        if queue not in self.schedulers:
            self.schedulers[queue] = BatchScheduler(DelayQueue(self.redis, queue))
        return self.schedulers[queue]

    def pauses_of(self, queue: str) -> Pauses:
        """What Redis cannot lose."""
        return TablePauses(self.engine, queue_pauses, queue)

    def check_ready(self) -> None:
        """The probe of each flow. Raises Unavailable, for the engine's doctor knows its name."""
        try:
            check_ready(self.engine)
        except StorageUnavailable as error:
            raise Unavailable(str(error)) from error

    def close(self) -> None:
        """Send what is still to be scheduled, and close all connections."""
        for each in (self.scheduler, *self.schedulers.values()):
            each.close()
        self.engine.dispose()
        self.watching.dispose()
        self.redis.close()


def bootstrap(settings: Settings) -> Services:
    """Wire the service. Opens no connection. Raises SettingsInvalid."""
    engine = create_engine(settings)
    try:
        # Scheduling twice is harmless, so a command that finds its connection closed is sent again. Redis
        # has half a second to answer, because /readyz waits for it too.
        client = connect(settings.redis_url, timeout_seconds=0.5, reconnect=True)
        queue = DelayQueue(client, QUEUE)
    except ValueError as error:
        raise SettingsInvalid(f"REDIS_URL: {error}") from error
    scheduler = BatchScheduler(queue)
    hooks = Hooks()
    timeouts = Timeouts(
        settings.order_timeout_seconds,
        settings.order_timeout_min_seconds,
        settings.order_timeout_max_seconds,
        settings.attempts_at_most_seconds,
    )
    services = Services(
        settings=settings,
        engine=engine,
        watching=create_engine(watching(settings)),
        redis=client,
        queue=queue,
        scheduler=scheduler,
        hooks=hooks,
        timeouts=timeouts,
        orders=OrderService(engine, scheduler, timeouts, hooks),
        stock=StockService(engine, timeouts.ms),
        clients=Clients(engine),
        readiness=SharedRead(
            partial(_readiness, lambda: check_ready(engine), client, Reminder()), READY_SECONDS
        ),
        outage=Reminder(),
    )
    for feature in features():
        for made in feature.wire(services):
            services.made[type(made)] = made
    return services


def _readiness(check: Callable[[], None], client: redis.Redis, outage: Reminder) -> Readiness:
    redis_answers = False
    with suppress(redis.RedisError):
        redis_answers = bool(client.ping())
    problem: StorageUnavailable | None = None
    try:
        check()
    except StorageUnavailable as error:
        if outage.is_due():
            log.warning("not ready", error=str(error))
        problem = error
    except Exception as error:  # cached like the others
        if outage.is_due():
            log.exception("not ready")
        problem = StorageUnavailable()
        problem.__cause__ = error
    else:
        outage.reset()
    return Readiness(problem, redis_answers)


def process_settings(environ: Mapping[str, str]) -> Settings:
    """Set up the logging and tracing of a process that is starting, and return its settings.

    Raises SettingsInvalid.
    """
    settings = Settings.from_env(environ)
    try:
        configure_logging(environ.get("LOG_LEVEL", ""))
        configure_tracing(environ, "orders")
    except (ValueError, TracingUnavailable) as error:
        raise SettingsInvalid(str(error)) from error
    return settings
