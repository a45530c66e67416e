"""The API's metrics besides `orders.watch.counters`. Needs prometheus-client.

Requests are timed. What the database holds is read when the API is scraped.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import sqlalchemy as sa
from flask import Flask, Response, g, request
from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from orders.caches import SharedRead
from orders.config import Settings
from orders.errors import StorageUnavailable
from orders.freezes.service import Freezes
from orders.freezes.signs import CLOCK, DOOR
from orders.order.domain import RefundsDue
from orders.order.repository import OrderRepository
from orders.providers.domain import MOST_WAITING, WaitingMessages
from orders.providers.service import Providers
from orders.sql.database import reading

#: Other methods, which a client may make up, are counted as one.
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
HTTP_SECONDS = Histogram(
    "http_request_duration_seconds",
    "How long the application took to answer.",
    ["method", "route", "status"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
IN_USE = Gauge(
    "sql_pool_connections_in_use",
    "SQL connections that requests hold.",
    multiprocess_mode="livesum",
)
POOL_SIZE = Gauge(
    "sql_pool_max_connections",
    "SQL connections that requests can hold.",
    multiprocess_mode="livesum",
)
# -- what the database holds ---------------------------------------------------------------

#: Who opens freezes: the service by itself, by these rules, or a person.
RULES, PERSON = (DOOR, CLOCK), "person"
#: How long figures are cached, so that scrapes cannot be used to load the database.
FIGURES_SECONDS = 5.0
#: The most payments that are summed up, which bounds the cost of a scrape.
MOST_PAYMENTS = 10_000


class Figures(Collector):
    """Figures that are read from the database on demand, and cached briefly. Any thread may ask for them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._read = SharedRead(self._look, FIGURES_SECONDS)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering it does not read the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        found = self._read.get()
        readable = GaugeMetricFamily(
            "orders_database_readable", "Whether the database answered for these metrics."
        )
        readable.add_metric([], float(found is not None))
        yield readable
        if found is not None:
            yield from _figures(*found)

    def _look(self) -> tuple[int, Counter[str], list[RefundsDue], WaitingMessages] | None:
        try:
            with reading(self._engine) as connection:
                repository = OrderRepository(connection)
                in_force = Counter(
                    freeze.opened_by if freeze.opened_by in RULES else PERSON
                    for freeze in Freezes(connection).in_force()
                )
                refunds = repository.refunds_due(MOST_PAYMENTS)
                waiting = Providers(connection).waiting()
                return repository.oldest_overdue_ms(), in_force, refunds, waiting
        except (StorageUnavailable, sa.exc.DBAPIError):  # no schema yet
            return None


def _figures(
    oldest_overdue_ms: int,
    in_force: Counter[str],
    refunds: list[RefundsDue],
    waiting: WaitingMessages,
) -> Iterator[Metric]:
    overdue = GaugeMetricFamily(
        "orders_oldest_overdue_age_seconds",
        "How long ago the oldest unpaid order should have been cancelled; 0 when none should.",
    )
    overdue.add_metric([], oldest_overdue_ms / 1000)
    freezes = GaugeMetricFamily(
        "orders_freezes",
        "Freezes that are open or giving back time.",
        labels=["opened_by"],
    )
    for rule in (*RULES, PERSON):
        freezes.add_metric([rule], in_force[rule])
    bound = f"among the {MOST_PAYMENTS:,} oldest of them."
    payments = GaugeMetricFamily(
        "orders_refunds_due", f"Payments that are due back, {bound}", labels=["currency"]
    )
    amount = GaugeMetricFamily(
        "orders_refunds_due_minor_units",
        f"Money that is due back, in minor units of its currency, {bound}",
        labels=["currency"],
    )
    oldest = GaugeMetricFamily(
        "orders_oldest_refund_due_age_seconds",
        f"How long the oldest refund has been due, {bound}",
        labels=["currency"],
    )
    for due in refunds:
        payments.add_metric([due.currency], due.payments)
        amount.add_metric([due.currency], due.amount_minor)
        oldest.add_metric([due.currency], due.oldest_ms / 1000)
    inbox = GaugeMetricFamily(
        "orders_waiting_messages",
        f"Messages of payment providers that wait for a person, up to {MOST_WAITING:,}.",
    )
    inbox.add_metric([], waiting.messages)
    unread = GaugeMetricFamily(
        "orders_oldest_waiting_message_age_seconds",
        "How long the oldest of them has waited; 0 when none does.",
    )
    unread.add_metric([], waiting.oldest_ms / 1000)
    yield from (overdue, freezes, payments, amount, oldest, inbox, unread)


# -- the API -------------------------------------------------------------------------------


class ApiMetrics:
    """The metrics of an API process, and of all that share its directory."""

    def __init__(self, settings: Settings, engine: sa.Engine, watching: sa.Engine) -> None:
        """Requests use ``engine``; the figures in the database are read with ``watching``."""
        self._directory = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self._registry = CollectorRegistry() if self._directory else REGISTRY
        if self._directory:
            MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self.figures = Figures(watching)
        self._registry.register(self.figures)
        POOL_SIZE.set(settings.database_pool_size)
        IN_USE.set(0)
        sa.event.listen(engine, "checkout", lambda *_: IN_USE.inc())
        sa.event.listen(engine, "checkin", lambda *_: IN_USE.dec())

    def install(self, app: Flask) -> None:
        """Have ``app`` time its requests. Call it first, so that the time covers all other hooks."""
        app.before_request(_begin)
        app.after_request(_end)

    def page(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """What a scrape gets: a WSGI application."""
        if self._directory:
            _forget_dead_processes(Path(self._directory))
        page: WSGIApplication = make_wsgi_app(self._registry)
        return page(environ, start_response)


def _begin() -> None:
    g.began_at = perf_counter()


def _end(response: Response) -> Response:
    method = request.method if request.method in METHODS else "other"
    route = request.url_rule.rule if request.url_rule else "none"  # a path may be anything
    labels: Any = (method, route, str(response.status_code))
    HTTP_SECONDS.labels(*labels).observe(perf_counter() - g.began_at)
    return response


def _forget_dead_processes(directory: Path) -> None:
    """Remove the gauges of processes that were killed."""
    for file in directory.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid, str(directory))  # type: ignore[no-untyped-call]
        except PermissionError:
            pass  # it lives
