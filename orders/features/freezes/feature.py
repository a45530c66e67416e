"""Freezes: deadlines that stand still, because an operator says so, nobody can pay, or a clock jumped."""

from collections.abc import Iterator
from contextlib import suppress

import redis
from flask import Flask

from orders.feature import Feature
from orders.features.freezes import checks, tables
from orders.features.freezes.commands import freeze, list_freezes, thaw
from orders.features.freezes.domain import FREEZE_QUEUE
from orders.features.freezes.flow import frozen, thaw_flow
from orders.features.freezes.guard import Guard
from orders.features.freezes.panel import panel
from orders.features.freezes.routes import freezes
from orders.features.freezes.service import Freezes, causes
from orders.features.freezes.settings import FreezeSettings
from orders.features.freezes.signs import start_signing
from orders.features.parts import Counted
from orders.order.domain import EventType
from orders.wiring import Services
from worker import Flow


def wire(services: Services) -> Iterator[object]:
    services.hooks.stopped.append(lambda: frozen(services))
    yield Freezes(services.engine)


def serve(_app: Flask, services: Services) -> None:
    start_signing(services.engine, lambda: services.readiness.get().problem is None)


def flows(services: Services) -> Iterator[Flow]:
    guard = guard_of(services)
    services.hooks.clocks.append(guard.not_after)
    services.hooks.ticks.append(guard.look)
    yield thaw_flow(services)


def guard_of(services: Services) -> Guard:
    """What opens freezes by itself, for a worker: on a connection that its handlers cannot use up."""

    def redis_ms() -> float | None:
        with suppress(redis.RedisError):
            return services.queue.server_time_ms()
        return None

    return Guard(services.watching, services.settings[FreezeSettings], redis_ms)


FEATURE = Feature(
    name="freezes",
    tables=tables,
    settings=(FreezeSettings,),
    queues=(FREEZE_QUEUE,),
    wire=wire,
    serve=serve,
    flows=flows,
    routes=(freezes,),
    commands=(freeze, list_freezes, thaw),
    checks=((checks.freezes, "orders.freezes"),),
    causes=causes,
    figures=(checks.figures,),
    panel=panel,
    counters=(
        Counted(
            *(EventType.EXTENDED, "orders_extended"),
            "Deadlines moved to give time back after a freeze.",
        ),
    ),
)
