"""Traces: spans for OpenTelemetry, where it is installed and the environment asks for it."""

import os
from collections.abc import Iterator
from contextlib import suppress

from flask import Flask

from orders.feature import Feature
from orders.wiring import Services
from worker import Flow
from worker.watch.tracing import wanted


def serve(app: Flask, _services: Services) -> None:
    if wanted(os.environ):
        with suppress(ModuleNotFoundError):
            from orders.features.traces import request_spans  # noqa: PLC0415  optional

            request_spans.install(app)


def flows(services: Services) -> Iterator[Flow]:
    if wanted(os.environ):
        with suppress(ModuleNotFoundError):
            from orders.features.traces.opentelemetry import OpenTelemetryTraces  # noqa: PLC0415

            traces = OpenTelemetryTraces()
            services.hooks.cancelled.append(traces.cancelled)
            services.hooks.around_sending.append(traces.send)
    yield from ()


FEATURE = Feature(name="traces", serve=serve, flows=flows)
