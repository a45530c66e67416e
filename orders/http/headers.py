"""What every request and response gets at the door: an id."""

import re

import structlog
from flask import Flask, Response, g, request
from uuid_utils import uuid7
from werkzeug.exceptions import BadRequest

from orders.db.acting import KEY_ID
from orders.origin import Origin

HEADER = "X-Request-ID"
#: The id that a caller, or a proxy before us, may give a request.
GIVEN = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def install(app: Flask) -> None:
    """Have ``app`` give each request an id, in its response and in every line logged for it."""
    app.before_request(_enter)
    app.after_request(_leave)


def _enter() -> None:
    """Raises BadRequest for a parameter that is given twice, because one would be ignored."""
    KEY_ID.set(None)  # that of the request before
    given = request.headers.get(HEADER, "")
    g.request_id = given if GIVEN.fullmatch(given) else str(uuid7())
    g.origin = Origin(g.request_id, g.get("traceparent", ""))
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**g.origin.fields())
    for name, values in request.args.lists() if request.query_string else ():
        if len(values) > 1:
            raise BadRequest(f"The parameter {name[:50]!r} is there {len(values)} times.")


def origin() -> Origin:
    """This request, as the origin of an order."""
    known: Origin = g.origin
    return known


def _leave(response: Response) -> Response:
    response.headers.add(HEADER, g.request_id)
    response.headers.add("X-Content-Type-Options", "nosniff")
    return response
