"""The page, and the JSON that its script requests with the cookie of a session."""

import time
from pathlib import Path
from typing import Any, cast

from flask import Flask, Response, current_app, g, make_response, request, send_from_directory

from orders.bootstrap import Services
from orders.clients.domain import parted
from orders.errors import LoginRequired, NotFromThisPage
from orders.http.auth import (
    calling_key,
    check_scopes,
    current_client,
    identify,
    log_key,
    page,
    services,
)
from orders.http.routing import Routes
from orders.http.schemas.freezes import FreezeChangeIn, FreezeIn
from orders.http.schemas.payments import RefundIn
from orders.http.strict_json import StrictRequest
from orders.ops.freezes import ShownFreezes
from orders.ops.lookups import ShownRecords, refund_due
from orders.ops.queues import ShownQueues
from orders.ops.schemas import (
    ConcernedQuery,
    LetterQuery,
    LettersIn,
    LettersQuery,
    LoginIn,
    PauseIn,
    QueueIn,
    RefundsQuery,
    SearchQuery,
)
from orders.ops.sessions import COOKIE, SECONDS, Session, Sessions
from orders.sql.acting import KEY_ID
from orders.why import why

STATIC = Path(__file__).parent / "static"
#: The repository's docs.
GUIDES = Path(__file__).parents[1] / "guides"
#: Only the page's own files and routes, nothing inline, and not in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
TOKEN_HEADER = "X-CSRF-Token"  # noqa: S105  a header's name
#: Endpoints that need no session.
OPEN = {"ops.index", "ops.asset", "ops.log_in"}
Json = dict[str, Any]

ops = Routes("ops", prefix="/ops")


class Tools:
    """What the routes work with."""

    def __init__(self, wired: Services) -> None:
        self.records = ShownRecords(wired.watching)
        self.queues = ShownQueues(wired.redis, wired.pauses)
        self.freezes = ShownFreezes(wired.engine, wired.watching)
        self.sessions = Sessions(wired.engine, wired.clients)


def install(app: Flask) -> None:
    """Serve the page from ``app``."""
    app.extensions["ops"] = Tools(app.extensions["orders"])
    app.register_blueprint(ops)


def tools() -> Tools:
    made: Tools = current_app.extensions["ops"]
    return made


# -- before and after each request ---------------------------------------------------------


@ops.before_request
def enter() -> None:
    """Find the session, and refuse changes that other sites send.

    Raises LoginRequired, NotFromThisPage, TooManyRequests, StorageUnavailable.
    """
    changes = request.method not in ("GET", "HEAD")
    if changes and not _is_from_here():
        raise NotFromThisPage
    if request.endpoint == "ops.log_in":
        # In a bulkhead of its own: strangers may send it slowly.
        cast("StrictRequest", request).whole_body(services().receiving_logins)
    if request.endpoint in OPEN:
        return
    limits, sessions = services().rate_limits, tools().sessions
    cookie = request.cookies.get(COOKIE)
    if not cookie:
        raise LoginRequired
    limits.admit_stranger(request.remote_addr, unless=lambda: sessions.knows(cookie))
    # While the database is down, operators may still read.
    session = sessions.resume(cookie, stale=not changes)
    if session is None:
        limits.count_stranger(request.remote_addr)
        raise LoginRequired
    if changes and request.headers.get(TOKEN_HEADER) != session.token:
        raise NotFromThisPage
    limits.admit(session.key_id)
    KEY_ID.set(session.key_id)
    _remember(session)


@ops.after_request
def leave(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = POLICY
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _is_from_here() -> bool:
    """Whether the browser says that this page sent the request."""
    origin = request.headers.get("Origin", "")
    site = request.headers.get("Sec-Fetch-Site", "same-origin")
    same = {f"http://{request.host}", f"https://{request.host}"}
    return origin in same and site == "same-origin"


def _remember(session: Session) -> None:
    g.session, g.client, g.key_id = session, session.client, session.key_id


def session() -> Session:
    found: Session = g.session
    return found


# -- the page ------------------------------------------------------------------------------


@ops.get("", strict_slashes=False)
def index() -> Response:
    """The page. It contains no data, and shows the login form itself."""
    return _file("index.html")


@ops.get("/static/<name>")
def asset(name: str) -> Response:
    """A script, the style sheet or the icon."""
    return _file(name)


def _file(name: str) -> Response:
    response = send_from_directory(GUIDES if name == "runbook.md" else STATIC, name)
    response.headers["Cache-Control"] = "no-cache"  # revalidated, so mostly a 304
    return response


# -- logging in and out --------------------------------------------------------------------


@ops.post("/session")
def log_in(body: LoginIn) -> Response:
    """Log in with an API key."""
    client = identify(body.key)
    key_id, _ = parted(body.key)
    made = None if client is None else tools().sessions.log_in(client, key_id)
    if made is None:
        raise LoginRequired("This key is not valid.")
    _remember(made)
    log_key("log in")
    response = make_response(_described(made))
    # Behind a proxy that ends TLS, only the browser knows that it used https.
    secure = request.is_secure or request.headers.get("Origin", "").startswith("https://")
    response.set_cookie(
        COOKIE,
        made.cookie,
        max_age=SECONDS,
        path="/ops",
        secure=secure,
        httponly=True,
        samesite="Strict",
    )
    return response


@ops.get("/session")
def get_session() -> Json:
    """Who is logged in."""
    return _described(session())


@ops.delete("/session")
def log_out() -> Response:
    """Log out: the cookie's session ends."""
    tools().sessions.log_out(session())
    log_key("log out")
    response = make_response({})
    response.delete_cookie(COOKIE, path="/ops", httponly=True, samesite="Strict")
    return response


def _described(session: Session) -> Json:
    return {
        "client": session.client.name,
        "token": session.token,
        "expires_in_seconds": max(0, round(session.expires_at - time.time())),
    }


# -- reading -------------------------------------------------------------------------------


@ops.get("/state")
def state() -> Json:
    """What the page polls: counts, lists, queues and workers."""
    sql = tools().records.state()
    if sql["answers"]:
        sql |= {"freezes": tools().freezes.state.get()}
    if late := sql.get("overdue"):
        sql["overdue"] = {**late, "put_off": tools().queues.put_off(late["ids"])}
    return {"sql": sql, "redis": tools().queues.state.get()}


@ops.get("/search")
def search(query: SearchQuery) -> Json:
    """Orders with this id or reference."""
    return {"orders": tools().records.find(query.text)}


@ops.get("/orders/<uuid:order_id>")
def order(order_id: str) -> Json:
    """An order with everything that happened to it, and why it is still unpaid."""
    story = tools().records.story(order_id)
    return story | {"why": why(services(), order_id, services().watching)}


@ops.get("/letters")
def letters(query: LettersQuery) -> Json:
    """Dead letters, newest first."""
    queues = tools().queues
    read = queues.letter_ids if query.ids else queues.letters
    found, end = read(query.queue, query.text, query.after)
    return {"letters": found, "next_cursor": query.cursor_from(end)}


@ops.get("/letter")
def letter(query: LetterQuery) -> Json:
    """Why a task is dead, with the traceback."""
    return {"letter": tools().queues.letter(query.queue, query.id)}


@ops.get("/refunds")
def refunds(query: RefundsQuery) -> Json:
    """Payments that have to be refunded, oldest first."""
    found = page(tools().records.refunds_due(query.limit, query.after), query)
    shown = [refund_due(row) for row in found["data"]]
    return {"refunds": shown, "next_cursor": found["next_cursor"]}


@ops.get("/freezes/concerned")
def concerned(query: ConcernedQuery) -> Json:
    """How many orders would be cancelled within so many seconds."""
    return tools().freezes.concerned(query.seconds)


# -- changing ------------------------------------------------------------------------------


@ops.post("/freezes")
def freeze(body: FreezeIn) -> Json:
    """Stop cancellations by timeout, of all orders or of one client's."""
    made, _ = tools().freezes.open(
        body.client,
        reason=body.reason,
        by=calling_key(),
        seconds=body.seconds,
        give_back_seconds=body.give_back_seconds,
    )
    return _frozen("freeze", made.id)


@ops.post("/freezes/<uuid:freeze_id>")
def prolong(freeze_id: str, body: FreezeChangeIn) -> Json:
    """Have a freeze end so many seconds from now."""
    tools().freezes.prolong(freeze_id, by=calling_key(), seconds=body.seconds)
    return _frozen("prolong", freeze_id)


@ops.delete("/freezes/<uuid:freeze_id>")
def thaw(freeze_id: str) -> Json:
    """End a freeze now: its orders get their time back."""
    tools().freezes.thaw(freeze_id, by=calling_key())
    return _frozen("thaw", freeze_id)


def _frozen(action: str, freeze_id: str) -> Json:
    tools().freezes.state.forget()
    log_key(action, freeze=freeze_id)
    return {"id": freeze_id}


@ops.post("/letters/requeue")
def requeue(body: LettersIn) -> Json:
    """Schedule dead tasks again, due now."""
    done = tools().queues.requeue(body.queue, body.ids)
    log_key("requeue", queue=body.queue, letters=done)
    return {"done": done}


@ops.post("/letters/purge")
def purge(body: LettersIn) -> Json:
    """Delete dead tasks for good."""
    done = tools().queues.purge(body.queue, body.ids)
    log_key("purge", queue=body.queue, letters=done)
    return {"done": done}


@ops.post("/pause")
def pause(body: PauseIn) -> Json:
    """Stop claims from a queue and its sweeps, until somebody resumes it."""
    by = f"{current_client().name}, {calling_key()}"
    tools().queues.pause(body.queue, reason=body.reason, by=by)
    log_key("pause", queue=body.queue, reason=body.reason)
    return {}


@ops.post("/resume")
def resume(body: QueueIn) -> Json:
    """End a pause."""
    tools().queues.resume(body.queue)
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
