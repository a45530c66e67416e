"""Wires the service from its settings. Both processes, the API and the worker, start here."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from wsgiref.types import WSGIApplication

import redis
import sqlalchemy as sa

from orders.attempts.service import Attempts
from orders.caches import SharedRead
from orders.clients.rate_limits import RateLimits
from orders.clients.service import Clients
from orders.config import Settings
from orders.errors import ServerBusy, SettingsInvalid, StockBusy, StorageUnavailable
from orders.freezes.giving_back import GivingBack
from orders.freezes.guard import Guard, Limits
from orders.freezes.service import Freezes
from orders.log import log
from orders.order.bulkhead import Bulkhead
from orders.order.domain import Timeouts
from orders.order.feed import Feed
from orders.order.limits import UnpaidLimits
from orders.order.ports import Observer, nobody
from orders.order.repository import read_order
from orders.order.service import OrderService
from orders.providers.service import Providers
from orders.queues import ATTEMPT_QUEUE, QUEUE, QUEUES, WEBHOOK_QUEUE
from orders.retention.service import Retention
from orders.sql.database import create_engine, create_watching_engine
from orders.sql.freeze_tables import queue_pauses
from orders.stock.service import StockService
from orders.watch.traces import NO_TRACES, Traces
from orders.webhooks.service import WebhookPolicy, Webhooks
from worker import BatchScheduler, DelayQueue, Pauses, connect
from worker.log import Reminder
from worker.records import TablePauses
from worker.watch.logs import configure_logging
from worker.watch.monitoring import MonitoringServer, PortUnavailable
from worker.watch.tracing import TracingUnavailable, configure_tracing, wanted

#: How long /readyz repeats what it found.
READY_SECONDS = 1.0


class Readiness(NamedTuple):
    """What is wrong with the database, if anything, and whether Redis answers."""

    problem: StorageUnavailable | None
    redis: bool


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a process works with."""

    settings: Settings
    engine: sa.Engine
    #: For metrics and the operators' page: see `orders.sql.database.create_watching_engine`.
    watching: sa.Engine
    redis: redis.Redis
    #: The queue of the orders' checks.
    queue: DelayQueue
    scheduler: BatchScheduler
    webhook_scheduler: BatchScheduler
    attempt_scheduler: BatchScheduler
    attempts: Attempts
    orders: OrderService
    feed: Feed
    freezes: Freezes
    giving_back: GivingBack
    stock: StockService
    clients: Clients
    providers: Providers
    rate_limits: RateLimits
    #: Bounds how many bodies are read at a time: of requests with a key, of signed ones, and of logins.
    receiving: Bulkhead
    receiving_signed: Bulkhead
    receiving_logins: Bulkhead
    webhooks: Webhooks
    retention: Retention
    #: By the name of the queue: what Redis cannot lose.
    pauses: Mapping[str, Pauses]
    #: What anybody may ask costs one look a second.
    readiness: SharedRead[Readiness]
    #: When to log that requests find the database unavailable.
    outage: Reminder

    def close(self) -> None:
        """Send what is still to be scheduled, and close all connections."""
        self.scheduler.close()
        self.webhook_scheduler.close()
        self.attempt_scheduler.close()
        self.engine.dispose()
        self.watching.dispose()
        self.redis.close()


def bootstrap(settings: Settings, observe: Observer = nobody) -> Services:
    """Wire the service. Opens no connection. Raises SettingsInvalid."""
    engine = create_engine(settings)
    client, queue = _redis(settings)
    scheduler = BatchScheduler(queue)
    webhook_scheduler = BatchScheduler(DelayQueue(client, WEBHOOK_QUEUE))
    attempt_scheduler = BatchScheduler(DelayQueue(client, ATTEMPT_QUEUE))
    # A process has as many threads as connections, or fewer. Orders for one SKU queue up here
    # rather than in SQL, which is also a little faster: see docs/decisions.md.
    half = max(1, settings.database_pool_size // 2)
    placing = Bulkhead(half, StockBusy, longest_wait_seconds=settings.lock_timeout_seconds)
    orders = OrderService(
        engine,
        scheduler,
        _timeouts(settings),
        UnpaidLimits(settings.max_unpaid_orders, settings.max_held_pieces),
        placing,
        webhooks=webhook_scheduler,
        reminders=settings.webhook_expiring_minutes > 0,
        observe=observe,
    )
    giving_back = GivingBack(
        scheduler,
        webhook_scheduler,
        _timeouts(settings),
        reminders=settings.webhook_expiring_minutes > 0,
        observe=observe,
    )
    policy = WebhookPolicy(
        settings.webhook_timeout_seconds,
        settings.webhook_allow_private,
        settings.webhook_expiring_minutes,
        settings.webhook_keep_days,
    )
    return Services(
        settings=settings,
        engine=engine,
        watching=create_watching_engine(settings),
        redis=client,
        queue=queue,
        scheduler=scheduler,
        webhook_scheduler=webhook_scheduler,
        attempt_scheduler=attempt_scheduler,
        attempts=Attempts(engine, scheduler, attempt_scheduler, settings.attempts_at_most_seconds),
        orders=orders,
        feed=Feed(engine),
        freezes=Freezes(engine),
        giving_back=giving_back,
        stock=StockService(engine, _timeouts(settings).ms),
        clients=Clients(engine),
        providers=Providers(engine),
        rate_limits=RateLimits(settings.rate_limit_per_second, settings.rate_limit_burst),
        # Together they leave a thread to everybody else, from four threads on.
        receiving=Bulkhead(max(1, min(half, settings.database_pool_size - 3)), ServerBusy),
        receiving_signed=Bulkhead(max(1, half // 2), ServerBusy),
        receiving_logins=Bulkhead(max(1, half // 4), ServerBusy),
        webhooks=Webhooks(engine, webhook_scheduler, policy, read_order, observe),
        retention=Retention(
            engine, partial(orders.describe, versions=None), settings.retention_days
        ),
        pauses={name: TablePauses(engine, queue_pauses, name) for name in QUEUES},
        readiness=SharedRead(partial(_readiness, orders, client, Reminder()), READY_SECONDS),
        outage=Reminder(),
    )


def guard_of(services: Services) -> Guard:
    """What opens freezes by itself, for a worker: on a connection that its handlers cannot use up."""
    settings, queue = services.settings, services.queue
    limits = Limits(
        door_seconds=settings.door_freeze_after_seconds,
        clock_seconds=settings.clock_freeze_jump_seconds,
        at_most_seconds=settings.freeze_at_most_seconds,
    )

    def redis_ms() -> float | None:
        with suppress(redis.RedisError):
            return queue.server_time_ms()
        return None

    return Guard(services.watching, limits, redis_ms)


def _readiness(orders: OrderService, client: redis.Redis, outage: Reminder) -> Readiness:
    redis_answers = False
    with suppress(redis.RedisError):
        redis_answers = bool(client.ping())
    problem: StorageUnavailable | None = None
    try:
        orders.check_ready()
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


def _redis(settings: Settings) -> tuple[redis.Redis, DelayQueue]:
    """A client, and the queue of the orders' checks. Raises SettingsInvalid."""
    # Scheduling twice is harmless, so a command that finds its connection closed is sent again. Redis
    # has half a second to answer, because /readyz waits for it too.
    try:
        client = connect(settings.redis_url, timeout_seconds=0.5, reconnect=True)
        return client, DelayQueue(client, QUEUE)
    except ValueError as error:
        raise SettingsInvalid(f"REDIS_URL: {error}") from error


def _timeouts(settings: Settings) -> Timeouts:
    return Timeouts(
        settings.order_timeout_seconds,
        settings.order_timeout_min_seconds,
        settings.order_timeout_max_seconds,
        settings.attempts_at_most_seconds,
    )


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


def counting() -> Observer:
    """An observer that counts for Prometheus; without prometheus-client, one that counts nothing."""
    try:
        # Not at the top: an API process first sets where its counts are shared.
        from orders.watch.counters import count  # noqa: PLC0415
    except ModuleNotFoundError:
        return nobody
    return count


def tracing(environ: Mapping[str, str]) -> Traces:
    """What this process adds to traces: nothing, unless OpenTelemetry is configured and installed."""
    if wanted(environ):
        with suppress(ModuleNotFoundError):
            from orders.watch.opentelemetry import OpenTelemetryTraces  # noqa: PLC0415  optional

            return OpenTelemetryTraces()
    return NO_TRACES


def serve_metrics(settings: Settings, page: WSGIApplication) -> None:
    """Serve /metrics until the process ends, on the port that all processes of the API share.

    A port that cannot be used is only logged: serving orders matters more.
    """
    host, port = settings.metrics_host, settings.metrics_port or 0
    try:
        MonitoringServer(host, port, {"/metrics": page}, shared=True)
    except PortUnavailable as error:
        log.error("no metrics", error=str(error))
