"""Metrics for Prometheus."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flask import Flask

from orders.errors import SettingsInvalid
from orders.feature import Feature
from orders.features.metrics.settings import MetricsSettings
from orders.features.metrics.shared_counts import DIRECTORY, prepared
from orders.log import log
from orders.wiring import Services
from worker import Flow
from worker.watch.monitoring import MonitoringServer, PortUnavailable


def serve(app: Flask, services: Services) -> None:
    """Count, and serve /metrics on the port that all processes of the API share. Raises SettingsInvalid.

    A port that cannot be used is only logged: serving orders matters more.
    """
    settings = services.settings[MetricsSettings]
    port = settings.metrics_port
    if port is None:
        return
    default = Path(tempfile.gettempdir()) / f"order-timeout-metrics-{port}"
    os.environ[DIRECTORY] = str(prepared(Path(settings.metrics_dir or default)))
    try:
        # Not at the top: prometheus-client is optional, and reads the variable.
        from orders.features.metrics.api import ApiMetrics  # noqa: PLC0415
        from orders.features.metrics.counters import count  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsInvalid("METRICS_PORT needs prometheus-client.") from error
    services.hooks.observers.append(count)
    metrics = ApiMetrics(services.settings, services.engine, services.watching)
    metrics.install(app)
    try:
        MonitoringServer(settings.metrics_host, port, {"/metrics": metrics.page}, shared=True)
    except PortUnavailable as error:
        log.error("no metrics", error=str(error))


def flows(services: Services) -> Iterator[Flow]:
    with suppress(ModuleNotFoundError):
        from orders.features.metrics.counters import count  # noqa: PLC0415  optional

        services.hooks.observers.append(count)
    yield from ()


FEATURE = Feature(name="metrics", settings=(MetricsSettings,), serve=serve, flows=flows)
