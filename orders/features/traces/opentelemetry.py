"""The spans of orders, in the traces of the requests that placed them. Needs OpenTelemetry.

A batch has a trace of its own, and each of its orders has a span in the order's trace. The two are
linked to each other.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orders.hooks import Post
from orders.order.domain import CancelledOrder
from orders.origin import Origin

#: How origins are written, whatever OTEL_PROPAGATORS says of the network.
W3C = TraceContextTextMapPropagator()
FIELD = "traceparent"


def tracer(provider: TracerProvider | None) -> trace.Tracer:
    return trace.get_tracer("order-timeout.orders", tracer_provider=provider)


def traceparent(span: trace.Span) -> str:
    """A span as an origin has it; "" for none."""
    carrier: dict[str, str] = {}
    W3C.inject(carrier, trace.set_span_in_context(span))
    return carrier.get(FIELD, "")


def context_of(origin: Origin) -> Context:
    """The context of a span that is a child of the request, or a root span if no request is known."""
    return W3C.extract({FIELD: origin.traceparent}, Context())


class OpenTelemetryTraces:
    """Hooks that add spans to the traces of orders. ``provider`` is the process's own if none is given."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = tracer(provider)

    def cancelled(self, cancelled: Sequence[CancelledOrder], began_ns: int) -> None:
        batch = trace.get_current_span()
        links = [Link(batch.get_span_context())] if batch.is_recording() else []
        for each in cancelled:
            origin = Origin.parse(each.origin)
            if not origin.traceparent:  # placed without tracing
                continue
            span = self._tracer.start_span(
                "cancel order",
                context_of(origin),
                SpanKind.CONSUMER,
                {"order.id": each.id, "order.late_ms": each.late_ms},
                links,
                start_time=began_ns,
            )
            if span.is_recording():
                batch.add_link(span.get_span_context())
            span.end()

    def send(self, message: Any, post: Post) -> Any:
        """Send a feature's message about an order, with a header. Raises what ``post`` raises."""
        with self._tracer.start_as_current_span(
            f"send {message.type}",
            context_of(Origin.parse(message.origin)),
            SpanKind.CLIENT,
            {
                "http.request.method": "POST",
                # Not the URL: its path or query may hold one of the client's secrets.
                "server.address": urlsplit(message.url).hostname or "",
                "order.id": message.order_id or "",
                "webhook.id": message.id,
                "webhook.attempt": message.attempts + 1,
            },
        ) as span:
            headers: dict[str, str] = {}
            propagate.inject(headers)
            answer = post(headers)
            if answer.status is not None:
                span.set_attribute("http.response.status_code", answer.status)
            if not answer.is_success:
                span.set_status(StatusCode.ERROR, answer.error or f"status {answer.status}")
            return answer
