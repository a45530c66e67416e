"""A span for each request of the API, which continues the trace that the caller is in. Needs OpenTelemetry."""

from http import HTTPStatus
from typing import Any

from flask import Flask, Response, g, request
from opentelemetry import context, propagate, trace
from opentelemetry.trace import SpanKind, StatusCode, TracerProvider

from orders.features.parts import METHODS
from orders.features.traces.opentelemetry import traceparent, tracer


def install(app: Flask, provider: TracerProvider | None = None) -> None:
    """Trace ``app``'s requests. Its other hooks run within the span."""
    made = tracer(provider)

    def begin() -> None:
        if request.blueprint == "health":  # asked every few seconds
            return
        method = request.method if request.method in METHODS else "HTTP"
        route = request.url_rule.rule if request.url_rule else ""  # a path may be anything
        span = made.start_span(
            f"{method} {route}".rstrip(),
            propagate.extract(request.headers),
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": route},
        )
        g.span = span
        g.span_token = context.attach(trace.set_span_in_context(span))
        g.traceparent = traceparent(span)

    app.before_request_funcs.setdefault(None, []).insert(0, begin)
    app.after_request(_note)
    app.teardown_request(_end)


def _note(response: Response) -> Response:
    if "span" in g:
        g.span.set_attribute("http.response.status_code", response.status_code)
        if "request_id" in g:
            g.span.set_attribute("request.id", g.request_id)
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            g.span.set_status(StatusCode.ERROR)
    return response


def _end(_error: Any) -> None:
    if "span" in g:
        context.detach(g.pop("span_token"))
        g.pop("span").end()
