"""One trace from the request that places an order to its cancellation and the webhook about it."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from devtools.processes import ROOT, wait_until
from devtools.valkey import Valkey
from orders.app import create_app
from orders.db.tables import orders
from orders.errors import SettingsInvalid
from orders.features.traces import request_spans
from orders.features.traces.opentelemetry import OpenTelemetryTraces
from orders.features.webhooks.flow import webhook_flow  # <webhooks/>
from orders.origin import Origin
from orders.queues import QUEUE
from orders.timeouts import MOST_LINES, timeout_flow
from tests.kit import api as kit_api
from tests.kit.api import Api, serving
from tests.kit.expiring import all_due
from tests.kit.queue_state import state
from tests.kit.receiver import receiving
from tests.kit.workers import running
from worker import DelayQueue, Flow, Outcome, Retry, Task, Worker
from worker.watch.tracing import TracingUnavailable, configure_tracing, traced

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
#: What a caller who traces sends along.
INCOMING = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"


class Traced:
    """The application and its flows, whose spans are kept."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        request_spans.install(api.app, self.provider)
        traces = OpenTelemetryTraces(self.provider)
        services = api.services
        services.hooks.cancelled.append(traces.cancelled)
        services.hooks.around_sending.append(traces.send)
        self.flows = [traced(timeout_flow(services), self.provider)]
        self.flows.append(traced(webhook_flow(services), self.provider))  # <webhooks/>

    def place(
        self, traceparent: str = "", more: Mapping[str, str] | None = None, **body: Any
    ) -> str:
        headers = {"Idempotency-Key": uuid4().hex, **(more or {})}
        headers |= {"traceparent": traceparent} if traceparent else {}
        basket = {"items": [{"sku": "tea", "quantity": 1}], **body}
        placed = self.api.send("POST", "/v1/orders", basket, headers=headers)
        assert placed.status_code == 201, placed.json
        made: Any = placed.json
        return str(made["id"])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def site(
    migrated_url: str,
    valkey: Valkey,
    redis_client: redis.Redis,  # noqa: ARG001  empties it
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Traced]:
    monkeypatch.setattr(kit_api, "IDLE_APPS", [])  # tracing is installed in a new one
    settings: Any = {
        "order_timeout_seconds": 0.01,
        "order_timeout_min_seconds": 0.01,
        "webhook_allow_private": True,  # <webhooks/>
    }
    with serving(migrated_url, valkey.url, **settings) as api:
        yield Traced(api)


def place_of(span: ReadableSpan) -> tuple[str, str]:
    """A span's trace and its parent."""
    assert span.context is not None
    parent = "" if span.parent is None else format_span_id(span.parent.span_id)
    return format_trace_id(span.context.trace_id), parent


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format_span_id(span.context.span_id)


def linked(span: ReadableSpan) -> list[str]:
    return [format_span_id(link.context.span_id) for link in span.links]


# <webhooks>
def test_one_trace_leads_from_the_request_to_the_webhook(site: Traced) -> None:
    with receiving() as receiver:
        wanted = {"url": receiver.url, "events": ["order.cancelled"]}
        assert site.api.send("POST", "/v1/webhooks", wanted).status_code == 201
        with running(Worker(site.flows, site.api.services.settings.redis_url)):
            order_id = site.place(INCOMING)
            wait_until(lambda: site.spans("send order.cancelled"), "the webhook to be sent")
            [sent] = site.spans("send order.cancelled")
        [message] = receiver.messages
    [request] = site.spans("POST /v1/orders")
    [cancelled] = site.spans("cancel order")
    assert place_of(request) == (TRACE, PARENT)
    assert place_of(cancelled) == place_of(sent) == (TRACE, id_of(request))
    assert message.headers["traceparent"] == f"00-{TRACE}-{id_of(sent)}-01"

    # The calls of the handlers, which may be for many orders, are in traces of their own.
    batches = {id_of(span): span for span in site.spans("process order-timeout")}
    [batch] = [batches[each] for each in linked(cancelled)]
    assert linked(batch) == [id_of(cancelled)]
    assert place_of(batch)[0] != TRACE
    assert place_of(batch)[1] == ""

    facts = cancelled.attributes or {}
    assert facts["order.id"] == order_id == (sent.attributes or {})["order.id"]
    assert 0 <= int(str(facts["order.late_ms"])) < 600_000
    assert (request.attributes or {})["http.route"] == "/v1/orders"
    assert (request.attributes or {})["http.response.status_code"] == 201
    assert (sent.attributes or {})["http.response.status_code"] == 200
    assert (batch.attributes or {})["messaging.batch.message_count"] == 1
    kinds = [request.kind, batch.kind, cancelled.kind, sent.kind]
    assert kinds == [SpanKind.SERVER, SpanKind.CONSUMER, SpanKind.CONSUMER, SpanKind.CLIENT]


# </webhooks>


def test_a_waiting_check_is_not_a_byte_longer_for_its_trace(site: Traced) -> None:
    order_id = site.place(INCOMING, timeout_seconds=1800)
    services = site.api.services
    services.scheduler.close()
    found = state(DelayQueue(services.redis, QUEUE))
    assert [*found] == ["scheduled"]
    assert [*found["scheduled"]] == [order_id]


def test_the_longest_request_id_and_a_trace_fit_beside_the_order(site: Traced) -> None:
    order_id = site.place(INCOMING, {"X-Request-ID": "x" * 64})
    handle(site.flows[0], [order_id])
    assert place_of(site.spans("cancel order")[0])[0] == TRACE
    with site.api.services.engine.connect() as connection:
        origin = connection.scalar(sa.select(orders.c.origin))
    assert Origin.parse(origin).request_id == "x" * 64
    assert Origin.parse(origin).fields() == {"request_id": "x" * 64, "trace_id": TRACE}


def test_a_batch_is_linked_to_the_traces_of_its_orders(site: Traced) -> None:
    ids = [site.place() for _ in range(MOST_LINES + 1)]
    all_due(site.api.services.engine, len(ids))
    handle(site.flows[0], ids)
    requests = {place_of(span)[0]: id_of(span) for span in site.spans("POST /v1/orders")}
    cancelled = site.spans("cancel order")
    assert dict(map(place_of, cancelled)) == requests
    assert len(requests) == len(ids)
    [batch] = site.spans("process order-timeout")
    assert {*linked(batch)} == {*map(id_of, cancelled)}
    assert all(linked(span) == [id_of(batch)] for span in cancelled)


def handle(flow: Flow, ids: Sequence[str]) -> None:
    """Have a flow handle these until none is left."""
    left = [*ids]

    def handled() -> bool:
        left[:] = [*(flow.handler([Task(each) for each in left]) or {})]
        return not left

    wait_until(handled, "the orders to be due", every=0.05)


def test_what_the_caller_does_not_sample_is_not_traced(site: Traced) -> None:
    order_id = site.place(UNSAMPLED)
    handle(site.flows[0], [order_id])
    assert {span.name for span in site.exporter.get_finished_spans()} == {"process order-timeout"}


def test_an_order_placed_without_traces_is_cancelled(site: Traced) -> None:
    site.api.app.before_request_funcs[None].pop(0)
    order_id = site.place()
    handle(site.flows[0], [order_id])
    order: Any = site.api.send("GET", f"/v1/orders/{order_id}").json
    assert order["status"] == "cancelled"
    assert site.spans("cancel order") == []


@pytest.mark.parametrize(
    "header",
    ["", "x", "00-0-0-00", f"00-{'0' * 32}-{PARENT}-01", f"{INCOMING}\t", "ff" * 5000, "\u00fc"],
)
def test_a_traceparent_that_is_none_begins_a_new_trace(site: Traced, header: str) -> None:
    order_id = site.place()
    site.exporter.clear()
    headers = {"traceparent": header}
    assert site.api.send("GET", f"/v1/orders/{order_id}", headers=headers).status_code == 200
    [span] = site.exporter.get_finished_spans()
    assert place_of(span)[1] == ("" if header != f"{INCOMING}\t" else PARENT)


def test_health_is_not_traced_and_unknown_paths_have_no_name(site: Traced) -> None:
    site.api.http.get("/healthz")
    site.api.http.get("/nowhere/secret")
    site.api.http.open("/v1/orders", method="BREW")
    assert [span.name for span in site.exporter.get_finished_spans()] == ["GET", "HTTP"]


# -- a flow's handler ----------------------------------------------------------------------


def spans_of(handler: Any, tasks: Sequence[Task]) -> tuple[Any, list[ReadableSpan]]:
    """What a traced handler returned or raised, and its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    flow = traced(Flow(name="q", handler=handler), provider)
    try:
        outcome: Any = flow.handler(tasks)
    except Exception as error:  # noqa: BLE001  it is looked at
        outcome = error
    return outcome, [*exporter.get_finished_spans()]


def status_of(span: ReadableSpan) -> tuple[str, str | None, list[str]]:
    return span.status.status_code.name, span.status.description, [e.name for e in span.events]


def test_a_handlers_span_says_what_became_of_its_tasks() -> None:
    from worker import DeadLetter, Failed  # noqa: PLC0415

    tasks = [Task("a", attempt=3), Task("b")]
    outcome, [span] = spans_of(lambda _: None, tasks[:1])
    facts = dict(span.attributes or {})
    assert (outcome, span.name, status_of(span)) == (None, "process q", ("UNSET", None, []))
    assert (facts["messaging.message.id"], facts["task.attempt"]) == ("a", 3)

    returned: Mapping[str, Outcome] = {"a": Failed("no such mail"), "b": Retry(5)}
    outcome, [span] = spans_of(lambda _: returned, tasks)
    assert outcome == returned
    assert status_of(span) == ("ERROR", "1 failed: RuntimeError: no such mail", ["exception"])

    outcome, [span] = spans_of(lambda _: {"a": DeadLetter("never")}, tasks)
    assert status_of(span)[:2] == ("ERROR", "1 failed: never")
    outcome, [span] = spans_of(lambda _: "nonsense", tasks)
    assert (outcome, status_of(span)[0]) == ("nonsense", "UNSET")


def test_what_a_handler_raises_goes_on_and_a_retry_is_no_error() -> None:
    from worker import one_at_a_time  # noqa: PLC0415

    def fail(_: object) -> None:
        raise ValueError("broken")

    def later(_: Task) -> None:
        raise Retry(5)

    error, [span] = spans_of(fail, [Task("a")])
    assert (type(error), status_of(span)) == (ValueError, ("ERROR", "broken", ["exception"]))
    alone = one_at_a_time(later)
    error, [span] = spans_of(alone, [Task("a")])
    assert (type(error), status_of(span)) == (Retry, ("UNSET", None, []))
    assert traced(Flow(name="q", handler=alone)).one_at_a_time
    assert not traced(Flow(name="q", handler=fail)).one_at_a_time


# -- switching it on -----------------------------------------------------------------------

#: What makes a worker's flows and an application, and tells what there is of traces then. redis-py
#: imports what OpenTelemetry has for metrics by itself.
IMPORTS = """
import sys
import orders.app, orders.timeouts, worker.cli, worker.cli.run
orders.timeouts.flows()
orders.app.create_app()
for name in ("opentelemetry.sdk.trace", "orders.features.traces.opentelemetry", "orders.features.traces.request_spans"):
    print(name in sys.modules)
"""


#: Where none is.
NO_DATABASE = "postgresql+psycopg://nobody@127.0.0.1:1/none"


def imported(program: str = IMPORTS, **env: str) -> set[str]:
    given = {"DATABASE_URL": NO_DATABASE, "REDIS_URL": "redis://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), **given, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {*done.stdout.split()}


@pytest.mark.slow
def test_opentelemetry_is_imported_only_when_asked_for() -> None:
    assert imported() == {"False"}
    assert imported(OTEL_TRACES_EXPORTER="none") == {"False"}
    assert imported(OTEL_TRACES_EXPORTER="console") == {"True"}


def test_without_opentelemetry_everything_works_without_traces() -> None:
    program = f"import sys; sys.modules['opentelemetry'] = None\n{IMPORTS}"
    assert imported(program) == {"False"}


def test_an_exporter_that_is_not_there_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TracingUnavailable, match="There is no exporter 'jaeger'"):
        configure_tracing({"OTEL_TRACES_EXPORTER": "jaeger"}, "x")
    with pytest.raises(TracingUnavailable, match="install opentelemetry-exporter-otlp-proto-http"):
        configure_tracing({"OTEL_TRACES_EXPORTER": "otlp"}, "x")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("DATABASE_URL", NO_DATABASE)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    # It is for the whole process, in which other tests follow.
    monkeypatch.setattr("orders.wiring.configure_logging", lambda _: None)
    with pytest.raises(SettingsInvalid, match="opentelemetry-sdk, which is not installed"):
        create_app()
