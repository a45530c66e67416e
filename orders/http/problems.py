"""The one place where errors become responses: problem+json, RFC 9457."""

import re
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException
from werkzeug.http import HTTP_STATUS_CODES

from orders import errors
from orders.errors import OrderError
from orders.log import log

#: The status of each kind of error. All others are bugs: 500.
STATUS: dict[type[OrderError], int] = {
    errors.NotAuthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.PreconditionFailed: 412,
    errors.Invalid: 422,
    errors.PreconditionRequired: 428,
    errors.TooMuch: 429,
    errors.NotAvailable: 503,
}
#: Replaces the database driver's text, which is only logged.
UNAVAILABLE = (
    "The database is unavailable. To learn whether a write succeeded, repeat it with the same key."
)
#: Replaces Werkzeug's text, which does not say what to do.
NOWHERE = "There is nothing at this path. Ids in paths are complete UUIDs."
#: The code of an unexpected error.
INTERNAL = "internal_error"


class InvalidInput(HTTPException):
    """An input does not validate."""

    def __init__(self, status: int, wrong: dict[str, list[str]]) -> None:
        super().__init__("Validation error")
        self.code = status
        self.facts = {"errors": wrong}


def install(app: Flask) -> None:
    """Have ``app`` answer every error with a problem."""
    app.register_error_handler(HTTPException, _from_werkzeug)
    app.register_error_handler(OrderError, _from_order_error)
    app.register_error_handler(Exception, _from_bug)


def problem(status: int, code: str, detail: str | None = None, **more: Any) -> Response:
    """An error response."""
    body = {"type": "about:blank", "title": title_of(status), "status": int(status), "code": code}
    text = current_app.json.dumps(body | ({"detail": detail} if detail else {}) | more)
    return Response(f"{text}\n", status, content_type="application/problem+json")


def title_of(status: int) -> str:
    """The name of a status: Werkzeug's, as Python's may change. Its code is made of it."""
    return HTTP_STATUS_CODES.get(status, "Error")


def code_of(status: int) -> str:
    """The code of a library's error."""
    return re.sub("[^a-z]", "_", title_of(status).replace("'", "").lower())


def status_of(error: type[OrderError]) -> int:
    """The status of its kind."""
    return next((STATUS[kind] for kind in error.__mro__ if kind in STATUS), 500)


def _from_order_error(error: OrderError) -> Response:
    detail = str(error)
    if isinstance(error, errors.StorageUnavailable):
        # What a driver says of its server is for the log.
        if current_app.extensions["orders"].outage.is_due():
            log.error("storage unavailable", error=detail, path=request.path)
        error, detail = errors.StorageUnavailable(), UNAVAILABLE
    status = status_of(type(error))
    response = problem(status, error.code, detail, **error.facts)
    retry_after = error.facts.get("retry_after", error.retry_after)
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if error.challenge:
        response.headers["WWW-Authenticate"] = error.challenge
    return response


def _from_werkzeug(error: HTTPException) -> Response:
    status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    detail = NOWHERE if status == HTTPStatus.NOT_FOUND else error.description
    facts = error.facts if isinstance(error, InvalidInput) else {}
    response = problem(status, code_of(status), detail, **facts)
    for name, value in error.get_headers():
        if name not in ("Content-Type", "Content-Length"):
            response.headers[name] = value
    return response


def _from_bug(error: Exception) -> Response:
    log.error("unexpected error", path=request.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)
