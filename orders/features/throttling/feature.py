"""Throttling: rate limits, and bulkheads around what one caller could make everybody wait for."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from orders.errors import ServerBusy
from orders.feature import Feature
from orders.features.throttling.bulkhead import Bulkhead
from orders.features.throttling.errors import StockBusy
from orders.features.throttling.rate_limits import RateLimits
from orders.features.throttling.settings import ThrottlingSettings
from orders.hooks import Call
from orders.order.domain import NewOrder
from orders.wiring import Services


class Receiving(NamedTuple):
    """Bounds how many bodies are read at a time: of requests with a key, and of signed ones."""

    keys: Bulkhead
    signatures: Bulkhead


def wire(services: Services) -> Iterator[object]:
    settings, hooks = services.settings[ThrottlingSettings], services.hooks
    per_second = settings.rate_limit_per_second
    limits = RateLimits(per_second, settings.rate_limit_burst or per_second)
    hooks.before_serving.append(limits.admit)
    hooks.around_checking.append(limits.checking)
    # A process has as many threads as connections, or fewer. Orders for one SKU queue up here
    # rather than in SQL, which is also a little faster: see docs/decisions.md.
    threads, patience = services.settings.database_pool_size, services.settings.lock_timeout_seconds
    half = max(1, threads // 2)
    placing = Bulkhead(half, StockBusy, longest_wait_seconds=patience)
    # Together they leave a thread to everybody else, from four threads on.
    receiving = Receiving(
        Bulkhead(max(1, min(half, threads - 3)), ServerBusy),
        Bulkhead(max(1, half // 2), ServerBusy),
    )

    def place(new: NewOrder, call: Call) -> Any:
        with placing.enter(new.quantities):
            return call()

    def read(came_with: str, call: Call) -> Any:
        with getattr(receiving, came_with).enter(["body"]):
            return call()

    hooks.around_placing.append(place)
    hooks.around_reading.append(read)
    yield limits
    yield receiving


def install(app: Flask) -> None:
    """Have requests come from the addresses that proxies saw."""
    settings = app.extensions["orders"].settings[ThrottlingSettings]
    if proxies := settings.trusted_proxies:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=proxies, x_proto=0)  # type: ignore[method-assign]


FEATURE = Feature(
    name="throttling",
    settings=(ThrottlingSettings,),
    wire=wire,
    install=install,
    refusals={"create_order": (StockBusy,)},
)
