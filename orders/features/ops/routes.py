"""The page, and the views that its script requests with the API key of an operator."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from flask import Flask, Response, request, send_from_directory

from orders.caches import SharedRead
from orders.errors import OrderError
from orders.feature import features
from orders.features.operators import answering, calling_key, log_key
from orders.features.ops import problems, queues, runbook
from orders.features.ops.filters import FEATURES, templates
from orders.features.ops.lookups import LISTED, MOST_REFUNDS, MOST_UNPAID, ShownRecords
from orders.features.ops.problems import Seen
from orders.features.ops.schemas import (
    GuideQuery,
    LettersIn,
    LettersQuery,
    PauseIn,
    QueueIn,
    SearchQuery,
)
from orders.http.auth import authenticate, check_scopes, current_client, services
from orders.http.problems import status_of
from orders.http.routing import Routes
from orders.http.schemas.payments import RefundIn
from orders.order.domain import OrderStatus
from orders.queues import QUEUE, queue_names
from orders.wiring import Services
from worker import DelayQueue
from worker.runtime import pauses

STATIC = Path(__file__).parent / "static"
#: Only the page's own files and routes, nothing inline, and not in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: How long what is shown is shared by all who ask this process.
FRESH_SECONDS = 1.0
#: Endpoints that need no key.
OPEN = {"ops.index", "ops.asset"}
#: What all templates know.
KNOWN = {
    "orders_queue": QUEUE,
    "late_ms": problems.LATE_MS,
    "grace_ms": problems.GRACE_MS,
    "most_unpaid": MOST_UNPAID,
    "most_refunds": MOST_REFUNDS,
    "levels": {OrderStatus.UNPAID: "", OrderStatus.PAID: "good", OrderStatus.CANCELLED: "warn"},
}
Json = dict[str, Any]

ops = Routes("ops", prefix="/ops")


class Tools:
    """What the routes work with."""

    def __init__(self, wired: Services) -> None:
        self.records = ShownRecords(wired.watching, wired.hooks)
        self.queues = {name: DelayQueue(wired.redis, name) for name in queue_names()}
        self.sql = SharedRead(self.records.state, FRESH_SECONDS)
        pairs = [(each, wired.pauses_of(name)) for name, each in self.queues.items()]
        self.redis = SharedRead(partial(queues.state, pairs), FRESH_SECONDS)
        self.panels = {
            each.name: SharedRead(partial(each.panel, wired), FRESH_SECONDS)
            for each in features()
            if each.panel
        }
        self.templates = templates(self.panels)
        self.templates.globals |= KNOWN
        self.templates.filters |= {
            "next_due": problems.next_due,
            "pause_level": problems.pause_level,
            "tiles": problems.tiles,
        }

    def look(self) -> Seen:
        """What all views show."""
        orders = self.sql.get()
        late = [row.order_id for row in ((orders and orders.overdue) or ())[:LISTED]]
        return Seen(
            orders,
            self.redis.get(),
            queues.put_off(self.queues[QUEUE], late) if late else (),
            {name: each.get() if orders else None for name, each in self.panels.items()},
        )

    def render(self, template: str, status: int = 200, **shown: Any) -> Response:
        text = self.templates.get_template(f"ops/{template}.html").render(shown)
        # A task's id need not be UTF-8.
        return Response(text.encode(errors="backslashreplace"), status, mimetype="text/html")

    def forget(self) -> None:
        """Have the next poll read again, because something was changed."""
        shared: tuple[SharedRead[Any], ...] = (self.sql, self.redis, *self.panels.values())
        for each in shared:
            each.forget()


def install(app: Flask) -> None:
    """Serve the page from ``app``."""
    app.register_blueprint(with_panels())


@cache
def with_panels() -> Routes:
    """The routes of the page, and those of features with a panel, to which the same rules apply."""
    for feature in features():
        for routes in feature.routes if feature.panel else ():
            ops.register_blueprint(routes, url_prefix="")
    return ops


def tools() -> Tools:
    return services()[Tools]


# -- before and after each request ---------------------------------------------------------


@ops.before_request
def enter() -> None:
    """Raises what `authenticate` raises. While the database is down, operators may still read."""
    if request.endpoint not in OPEN:
        authenticate(["ops"], stale=request.method == "GET")


@ops.after_request
def leave(response: Response) -> Response:
    policies = {"Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
    response.headers.update({"Content-Security-Policy": POLICY, **policies})
    response.headers.setdefault("Cache-Control", "no-store")
    if request.method != "GET":
        tools().forget()
    return response


# -- the page ------------------------------------------------------------------------------


@ops.get("", strict_slashes=False)
def index() -> Response:
    """The page. It contains no data, and shows the login form itself."""
    return tools().render("index", panels=tools().panels)


@ops.get("/static/<name>")
def asset(name: str) -> Response:
    """A script, a style sheet or the icon, also of a panel."""
    feature = name.partition(".")[0]
    own = FEATURES / feature / "static" if feature in tools().panels else STATIC
    response = send_from_directory(own, name)
    response.headers["Cache-Control"] = "no-cache"  # revalidated, so mostly a 304
    return response


# -- views ---------------------------------------------------------------------------------


def view(name: str, read: Callable[[], Json] = dict) -> Response:
    """What is wrong, the sections, and a view of what ``read`` returns, or why that cannot be read."""
    seen, template, status = tools().look(), name, 200
    try:
        shown = read()
    except OrderError as error:
        template, status = "frame", status_of(type(error))
        shown = {"failed": str(type(error)())}  # what a driver says of its server is for the log
    found = problems.problems(seen)
    level, said = problems.status(seen, found)
    frame = {"view": name, "client": current_client().name, "level": level, "said": said}
    return tools().render(template, status, **frame, seen=seen, problems=found, **shown)


@ops.get("/view/overview")
def overview() -> Response:
    """Counts, lists, queues and workers, and what each panel shows."""
    return view("overview")


@ops.get("/view/find")
def find(query: SearchQuery) -> Response:
    """Orders with this id or reference."""
    return view("find", lambda: {"text": query.text, "orders": tools().records.find(query.text)})


@ops.get("/view/order/<uuid:order_id>")
def order(order_id: str) -> Response:
    """An order with everything that happened to it, and why it is still unpaid."""

    def read() -> Json:
        found, steps = tools().records.story(order_id)
        why = services().hooks.causes(order_id, services().watching)
        return {"order": found, "steps": steps, "why": why}

    return view("order", read)


@ops.get("/view/dead")
def dead(query: LettersQuery) -> Response:
    """The newest dead letters."""

    def read() -> Json:
        letters, now_ms = queues.letters(tools().queues[query.queue])
        return {"queue": query.queue, "letters": letters, "now_ms": now_ms}

    return view("dead", read)


@ops.get("/view/refunds")
def refunds() -> Response:
    """Payments that have to be refunded, oldest first."""
    return view("refunds", lambda: {"refunds": tools().records.list_refunds_due()})


@ops.get("/view/runbook")
def guide(query: GuideQuery) -> Response:
    """An entry of the runbook, or all of it."""
    entries = runbook.entries()
    entry = query.entry if query.entry in entries else ""
    return view("runbook", lambda: {"entry": entry, "text": entries[entry]})


# -- changing ------------------------------------------------------------------------------


@ops.post("/letters/<any(requeue, purge):verb>")
def change_letters(verb: str, body: LettersIn) -> Json:
    """Schedule dead tasks again, due now; or delete them for good."""
    with answering():
        done = len(getattr(tools().queues[body.queue], verb)(body.ids))
    log_key(verb, queue=body.queue, letters=done)
    return {"done": done}


@ops.post("/pause")
def pause(body: PauseIn) -> Json:
    """Stop claims from a queue until somebody resumes it; without Redis, too."""
    by, kept = f"{current_client().name}, {calling_key()}", services().pauses_of(body.queue)
    with answering():
        pauses.pause(tools().queues[body.queue], kept, reason=body.reason, by=by)
    log_key("pause", queue=body.queue, reason=body.reason)
    return {}


@ops.post("/resume")
def resume(body: QueueIn) -> Json:
    """End a pause."""
    with answering():
        pauses.resume(tools().queues[body.queue], services().pauses_of(body.queue))
    log_key("resume", queue=body.queue)
    return {}


@ops.post("/refunds/<uuid:payment_id>")
def refund(payment_id: str, body: RefundIn) -> Json:
    """Record that a payment was refunded. As over the API, that takes the scope payments."""
    check_scopes(current_client(), ["payments"])
    payer = tools().records.payer(payment_id)
    services().orders.refund(payer, payment_id, **body.model_dump())
    log_key("refund", payment=payment_id)
    return {}
