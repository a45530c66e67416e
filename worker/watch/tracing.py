"""OpenTelemetry spans around a flow's handler. Unless they are switched on, nothing is imported.

OpenTelemetry's own environment variables switch them on: ``OTEL_TRACES_EXPORTER`` names an exporter, and the SDK
reads everything else (``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``, ``OTEL_EXPORTER_OTLP_ENDPOINT``, ...).
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from ..errors import WorkerError
from ..flow import Failed, Flow, NoOp, Outcome, Reschedule, Retry, Task, one_at_a_time

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

#: The entry point group in which packages register their exporters.
EXPORTERS = "opentelemetry_traces_exporter"
#: The exporter that "otlp" means, by protocol. Without a protocol it is whichever is installed.
OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class TracingUnavailable(WorkerError):
    """Traces cannot be exported."""


def wanted(environ: Mapping[str, str]) -> list[str]:
    """The names of the exporters in OTEL_TRACES_EXPORTER; none if it is unset."""
    names = environ.get("OTEL_TRACES_EXPORTER", "").split(",")
    return [name for each in names if (name := each.strip()) not in ("", "none")]


def configure_tracing(environ: Mapping[str, str], service: str) -> bool:
    """Set up OpenTelemetry for this process if the environment asks for it; return whether it does.

    Only for entry points. ``service`` is the process's name in traces, unless the environment has one. An
    existing provider, as under ``opentelemetry-instrument``, is left alone. Raises TracingUnavailable.
    """
    names = wanted(environ)
    if not names:
        return False
    try:
        from opentelemetry import trace  # noqa: PLC0415  optional
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise TracingUnavailable(
            "OTEL_TRACES_EXPORTER needs opentelemetry-sdk, which is not installed: pip install opentelemetry-sdk"
        ) from error
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return True
    named = OTELResourceDetector().detect()  # by the environment
    provider = TracerProvider(resource=Resource.create({"service.name": service}).merge(named))
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name, environ)))
    trace.set_tracer_provider(provider)
    return True


def _exporter(name: str, environ: Mapping[str, str]) -> Any:
    candidates = [name]
    if name == "otlp":
        protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", ""
        )
        candidates = [OTLP[protocol]] if protocol in OTLP else [*OTLP.values()]
    for candidate in candidates:
        for found in entry_points(group=EXPORTERS, name=candidate):
            return found.load()()
    package = "opentelemetry-exporter-otlp-proto-http" if name == "otlp" else "its package"
    raise TracingUnavailable(
        f"There is no exporter {name!r} for OTEL_TRACES_EXPORTER: install {package}."
    )


def traced(flow: Flow, provider: "TracerProvider | None" = None) -> Flow:
    """The same flow with a span around each call of its handler.

    The span is current while the handler runs, so spans that the handler starts are its children. ``provider``
    defaults to that of the process.
    """
    from opentelemetry import trace  # noqa: PLC0415  optional

    tracer = trace.get_tracer("order-timeout.worker", tracer_provider=provider)

    def handler(tasks: Sequence[Task]) -> Mapping[str, Outcome] | None:
        with _span(tracer, flow.name, tasks) as span:
            outcomes = flow.handler(tasks)
            if isinstance(outcomes, Mapping):  # a handler may return anything
                failed = [each for each in outcomes.values() if _is_failure(each)]
                if failed:
                    _fail(span, f"{len(failed)} failed: {failed[0]}", failed[0])
            return outcomes

    def handle_one(task: Task) -> Outcome | None:
        return (handler([task]) or {}).get(task.id)

    made = copy.copy(flow)  # not dataclasses.replace: a subclass may have another constructor
    traced_handler = one_at_a_time(handle_one) if flow.one_at_a_time else handler
    object.__setattr__(made, "handler", traced_handler)
    return made


@contextmanager
def _span(tracer: Any, queue: str, tasks: Sequence[Task]) -> Iterator["Span"]:
    """A span around one call of a handler."""
    from opentelemetry.trace import SpanKind  # noqa: PLC0415  optional

    facts: dict[str, Any] = {
        "messaging.system": "redis",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.batch.message_count": len(tasks),
    }
    if len(tasks) == 1:
        facts |= {"messaging.message.id": tasks[0].id, "task.attempt": tasks[0].attempt}
    with tracer.start_as_current_span(
        f"process {queue}",
        kind=SpanKind.CONSUMER,
        attributes=facts,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            if _is_failure(error):
                _fail(span, str(error), error)
            raise


def _is_failure(outcome: object) -> bool:
    """Whether a task has failed with this; it may only be put off."""
    is_put_off = isinstance(outcome, Retry) and not outcome.counted
    is_error = isinstance(outcome, BaseException) and not isinstance(outcome, NoOp | Reschedule)
    return is_error and not is_put_off


def _fail(span: "Span", why: str, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415  optional

    span.record_exception(error.error if isinstance(error, Failed) else error)
    span.set_status(StatusCode.ERROR, why)
