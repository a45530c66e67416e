"""The page, and the JSON that its script requests with the API key of an operator."""

from functools import cache, partial
from pathlib import Path
from typing import Any

from flask import Flask, Response, request, send_from_directory

from orders.caches import SharedRead
from orders.feature import features
from orders.features.operators import answering, calling_key, log_key
from orders.features.ops import queues
from orders.features.ops.lookups import ShownRecords
from orders.features.ops.schemas import LettersIn, LettersQuery, PauseIn, QueueIn, SearchQuery
from orders.http.auth import authenticate, check_scopes, current_client, services
from orders.http.routing import Routes
from orders.http.schemas.payments import RefundIn
from orders.queues import QUEUE, queue_names
from orders.wiring import Services
from worker import DelayQueue
from worker.runtime import pauses

FEATURES = Path(__file__).parents[1]
STATIC = Path(__file__).parent / "static"
#: The repository's docs.
GUIDES = Path(__file__).parents[2] / "guides"
#: Only the page's own files and routes, nothing inline, and not in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: How long what is shown is shared by all who ask this process.
FRESH_SECONDS = 1.0
#: Endpoints that need no key.
OPEN = {"ops.index", "ops.asset"}
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

    def forget(self) -> None:
        """Have the next poll read again, because something was changed."""
        for each in (self.sql, self.redis, *self.panels.values()):
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
    return _file("index.html")


@ops.get("/static/<name>")
def asset(name: str) -> Response:
    """A script, a style sheet or the icon, also of a panel."""
    return _file(name)


def _file(name: str) -> Response:
    feature = name.partition(".")[0]
    own = FEATURES / feature / "static" if feature in tools().panels else STATIC
    response = send_from_directory(GUIDES if name == "runbook.md" else own, name)
    response.headers["Cache-Control"] = "no-cache"  # revalidated, so mostly a 304
    return response


# -- reading -------------------------------------------------------------------------------


@ops.get("/state")
def state() -> Json:
    """What the page polls: counts, lists, queues and workers, and what each panel shows."""
    sql = tools().sql.get()
    if late := sql.get("overdue"):
        put_off = queues.put_off(tools().queues[QUEUE], late["ids"])
        sql = {**sql, "overdue": {**late, "put_off": put_off}}
    panels = tools().panels.items()
    told = {name: panel.get() if sql["answers"] else None for name, panel in panels}
    return {
        "client": current_client().name,
        "queues": queue_names(),
        "sql": sql,
        "redis": tools().redis.get(),
        "panels": told,
    }


@ops.get("/search")
def search(query: SearchQuery) -> Json:
    """Orders with this id or reference."""
    return {"orders": tools().records.find(query.text)}


@ops.get("/orders/<uuid:order_id>")
def order(order_id: str) -> Json:
    """An order with everything that happened to it, and why it is still unpaid."""
    story = tools().records.story(order_id)
    return story | {"why": services().hooks.causes(order_id, services().watching)}


@ops.get("/letters")
def letters(query: LettersQuery) -> Json:
    """The newest dead letters."""
    return {"letters": queues.letters(tools().queues[query.queue])}


@ops.get("/refunds")
def refunds() -> Json:
    """Payments that have to be refunded, oldest first."""
    return {"refunds": tools().records.list_refunds_due()}


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
