"""What every request and response gets at the door: an id, and headers for browsers."""

import re

import structlog
from flask import Flask, Response, g, request
from uuid_utils import uuid7
from werkzeug.exceptions import BadRequest

from orders.order.origin import Origin
from orders.sql.acting import KEY_ID

HEADER = "X-Request-ID"
#: The id that a caller, or a proxy before us, may give a request.
GIVEN = re.compile(r"[A-Za-z0-9._:-]{1,64}")

#: For HTML pages: they load nothing from other hosts, run no inline scripts, and may not be framed.
PAGE = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def install(app: Flask) -> None:
    """Have ``app`` give each request an id, in its response and in every line logged for it."""
    app.before_request(_enter)
    app.after_request(_leave)


def _enter() -> None:
    """Raises BadRequest for a parameter that is given twice, because one would be ignored."""
    KEY_ID.set(None)  # that of the request before
    given = request.headers.get(HEADER, "")
    g.request_id = given if GIVEN.fullmatch(given) else str(uuid7())
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**origin().fields())
    for name, values in request.args.lists() if request.query_string else ():
        if len(values) > 1:
            raise BadRequest(f"The parameter {name[:50]!r} is there {len(values)} times.")


def origin() -> Origin:
    """This request, as the origin of an order."""
    return Origin(g.request_id, g.get("traceparent", ""))


def _leave(response: Response) -> Response:
    response.headers.extend({HEADER: g.request_id, "X-Content-Type-Options": "nosniff"})
    if response.mimetype == "text/html":
        for name, value in PAGE.items():
            response.headers.setdefault(name, value)
    return response
