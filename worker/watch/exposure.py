"""A worker that serves its metrics and its health, as ``python -m worker run --metrics-port`` does."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus

from ..flow import Flow
from ..log import log
from ..queue.shards import shards_of
from ..runtime.liveness import WorkerHealth
from ..runtime.worker import Worker
from .monitoring import MonitoringServer, Page, Reply, json_reply

NOT_INSTALLED = "Metrics need prometheus-client, which is not installed."


@contextmanager
def exposed(
    flows: Sequence[Flow], redis_url: str, *, threads: int, host: str, port: int | None
) -> Iterator[Worker]:
    """A worker for the caller to run. With a port, ``/metrics`` and ``/healthz`` are served meanwhile.

    ``/metrics`` contains everything in prometheus-client's default registry, so metrics that a handler adds
    appear there without further configuration. Raises PortUnavailable, and ValueError as `Worker` does.
    """
    if port is None:
        yield Worker(flows, redis_url, threads=threads)
        return
    try:
        from . import metrics  # noqa: PLC0415  optional: the engine works without it
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        log.warning(NOT_INSTALLED)
        worker = Worker(flows, redis_url, threads=threads)
        page = Reply(f"{NOT_INSTALLED}\n".encode(), status=HTTPStatus.NOT_IMPLEMENTED)
        with _served(host, port, worker, lambda _: page):
            yield worker
        return
    names = [shard.name for flow in flows for shard in shards_of(flow)]
    with metrics.registered(names, redis_url) as counted:
        worker = Worker(flows, redis_url, threads=threads, listeners=[counted])
        counted.watch(worker.health)
        with _served(host, port, worker, metrics.page):
            yield worker


@contextmanager
def _served(host: str, port: int, worker: Worker, metrics: Page) -> Iterator[None]:
    pages: dict[str, Page] = {
        "/metrics": metrics,
        "/healthz": partial(health_page, worker.health),
    }
    with closing(MonitoringServer(host, port, pages)) as server:
        server.start()
        log.info("metrics and health are served", host=host, port=server.port)
        yield


def health_page(health: Callable[[], WorkerHealth], _accept: str = "") -> Reply:
    """200 if the worker does its work, waits for an outage to end, or is stopping; otherwise 503."""
    found = health()
    status = HTTPStatus.OK if found.alive else HTTPStatus.SERVICE_UNAVAILABLE
    return json_reply(dataclasses.asdict(found), status)
