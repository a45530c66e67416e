"""The API's metrics besides `orders.features.metrics.counters`. Needs prometheus-client.

Requests are timed. What the database holds is read when the API is scraped.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import sqlalchemy as sa
from flask import Flask, Response, g, request
from prometheus_client import CollectorRegistry, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from orders.caches import SharedRead
from orders.config import Settings
from orders.db.database import reading
from orders.errors import StorageUnavailable
from orders.feature import features
from orders.features.metrics.figures import figures
from orders.features.metrics.shared_counts import DIRECTORY
from orders.features.parts import METHODS, Figure

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
#: How long figures are cached, so that scrapes cannot be used to load the database.
FIGURES_SECONDS = 5.0


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
        for figure in found or ():
            family = GaugeMetricFamily(figure.name, figure.help, labels=figure.labels)
            for labels, value in figure.values.items():
                family.add_metric(labels, value)
            yield family

    def _look(self) -> list[Figure] | None:
        reads = (figures, *(each for feature in features() for each in feature.figures))
        try:
            with reading(self._engine) as connection:
                return [figure for read in reads for figure in read(connection)]
        except (StorageUnavailable, sa.exc.DBAPIError):  # no schema yet
            return None


class ApiMetrics:
    """The metrics of an API process, and of all that share its directory."""

    def __init__(self, settings: Settings, engine: sa.Engine, watching: sa.Engine) -> None:
        """Requests use ``engine``; the figures in the database are read with ``watching``."""
        self._registry = CollectorRegistry()
        MultiProcessCollector(self._registry)  # type: ignore[no-untyped-call]
        self._registry.register(Figures(watching))
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
        _forget_dead_processes(Path(os.environ[DIRECTORY]))
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
