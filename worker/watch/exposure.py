"""A worker that serves its metrics and its health, as ``python -m worker run --metrics-port`` does."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..errors import WorkerError
from ..flow import Flow
from ..log import log
from ..runtime.liveness import WorkerHealth
from ..runtime.worker import Worker
from .monitoring import MonitoringServer, respond


class MetricsUnavailable(WorkerError):
    """Metrics need prometheus-client, which is not installed."""


@contextmanager
def exposed(
    flows: Sequence[Flow], redis_url: str, *, threads: int, host: str, port: int | None
) -> Iterator[Worker]:
    """A worker for the caller to run. With a port, ``/metrics`` and ``/healthz`` are served meanwhile.

    ``/metrics`` contains everything in prometheus-client's default registry, so metrics that a handler adds
    appear there without further configuration. Raises PortUnavailable, MetricsUnavailable, and ValueError as `Worker` does.
    """
    if port is None:
        yield Worker(flows, redis_url, threads=threads)
        return
    try:
        from prometheus_client import REGISTRY, make_wsgi_app  # noqa: PLC0415  optional

        from .metrics import Metrics  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MetricsUnavailable from error
    with ExitStack() as stack:
        metrics = stack.enter_context(closing(Metrics([flow.name for flow in flows], redis_url)))
        worker = Worker(flows, redis_url, threads=threads, listeners=[metrics])
        metrics.watch(worker.health)
        REGISTRY.register(metrics)
        stack.callback(REGISTRY.unregister, metrics)
        pages = {"/metrics": make_wsgi_app(), "/healthz": health_page(worker.health)}
        server = stack.enter_context(closing(MonitoringServer(host, port, pages)))
        log.info("metrics and health are served", host=host, port=server.server_port)
        yield worker


def health_page(health: Callable[[], WorkerHealth]) -> WSGIApplication:
    """200 if the worker does its work, waits for an outage to end, or is stopping; otherwise 503."""

    def page(_environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        found = health()
        status = HTTPStatus.OK if found.alive else HTTPStatus.SERVICE_UNAVAILABLE
        body = json.dumps(dataclasses.asdict(found))
        return respond(start_response, body, status, "application/json")

    return page
