"""The one place where errors become responses: problem+json, RFC 9457."""

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

import structlog
from apiflask import APIFlask
from apiflask.exceptions import HTTPError
from flask import Response, current_app, request
from werkzeug.exceptions import HTTPException

from orders import errors
from orders.errors import OrderError
from orders.http import contract

log = structlog.get_logger("orders")


def _by_error(groups: dict[int, tuple[type[OrderError], ...]]) -> dict[type[OrderError], int]:
    return {error: number for number, group in groups.items() for error in group}


#: The status of each error. All others are bugs: 500.
STATUS = _by_error(
    {
        401: (errors.LoginRequired, errors.SignatureInvalid),
        403: (errors.Forbidden, errors.NotFromThisPage),
        404: (
            *(errors.OrderNotFound, errors.SkuNotFound, errors.PaymentNotFound),
            *(errors.ClientNotFound, errors.WebhookNotFound, errors.DeliveryNotFound),
            *(errors.DeadLetterNotFound, errors.MessageNotFound, errors.FreezeNotFound),
        ),
        409: (
            *(errors.OutOfStock, errors.StockReserved, errors.AlreadyPaid, errors.OrderCancelled),
            *(errors.KeyInFlight, errors.ReferenceReused, errors.TooManyWebhooks),
            *(errors.AlreadyRefunded, errors.RefundTooLarge, errors.WrongCurrency),
            *(errors.FreezeEnded, errors.AttemptTooLate, errors.TooManyAttempts),
        ),
        412: (errors.PreconditionFailed,),
        422: (
            *(
                errors.UnknownOrder,
                errors.UnknownSku,
                errors.MixedCurrencies,
                errors.TotalTooLarge,
                errors.KeyReused,
            ),
            *(errors.TimeoutOutOfRange, errors.StockTooLarge, errors.WebhookUrlNotAllowed),
            *(errors.UnknownProvider, errors.FreezeOutOfRange),
        ),
        428: (errors.PreconditionRequired,),
        429: (errors.TooManyRequests, errors.TooManyUnpaidOrders, errors.TooManyHeldPieces),
        503: (
            *(errors.StockBusy, errors.ServerBusy, errors.QueueUnavailable, errors.DoctorBusy),
            *(errors.StorageUnavailable, errors.StorageReadOnly, errors.SchemaOutdated),
            errors.RowLocked,
        ),
    }
)
#: Errors that time mends, and after how many seconds to come back.
RETRY_AFTER = _by_error(
    {
        1: (errors.KeyInFlight, errors.StockBusy, errors.ServerBusy),
        2: (
            *(errors.QueueUnavailable, errors.StorageUnavailable),
            *(errors.StorageReadOnly, errors.SchemaOutdated, errors.RowLocked),
        ),
        5: (errors.DoctorBusy,),
        10: (errors.TooManyUnpaidOrders, errors.TooManyHeldPieces),
    }
)
#: The code and the title of each error status. Clients rely on them, so they do not come from
#: Python, whose names may change: 3.13 renamed 413, 414, 416 and 422.
NAMES: dict[int, tuple[str, str]] = {
    400: ("bad_request", "Bad Request"),
    401: ("unauthorized", "Unauthorized"),
    403: ("forbidden", "Forbidden"),
    404: ("not_found", "Not Found"),
    405: ("method_not_allowed", "Method Not Allowed"),
    406: ("not_acceptable", "Not Acceptable"),
    408: ("request_timeout", "Request Timeout"),
    409: ("conflict", "Conflict"),
    410: ("gone", "Gone"),
    411: ("length_required", "Length Required"),
    412: ("precondition_failed", "Precondition Failed"),
    413: ("request_entity_too_large", "Request Entity Too Large"),
    414: ("request_uri_too_long", "Request-URI Too Long"),
    415: ("unsupported_media_type", "Unsupported Media Type"),
    416: ("requested_range_not_satisfiable", "Requested Range Not Satisfiable"),
    417: ("expectation_failed", "Expectation Failed"),
    418: ("im_a_teapot", "I'm a Teapot"),
    421: ("misdirected_request", "Misdirected Request"),
    422: ("unprocessable_entity", "Unprocessable Entity"),
    423: ("locked", "Locked"),
    424: ("failed_dependency", "Failed Dependency"),
    428: ("precondition_required", "Precondition Required"),
    429: ("too_many_requests", "Too Many Requests"),
    431: ("request_header_fields_too_large", "Request Header Fields Too Large"),
    451: ("unavailable_for_legal_reasons", "Unavailable For Legal Reasons"),
    500: ("internal_server_error", "Internal Server Error"),
    501: ("not_implemented", "Not Implemented"),
    502: ("bad_gateway", "Bad Gateway"),
    503: ("service_unavailable", "Service Unavailable"),
    504: ("gateway_timeout", "Gateway Timeout"),
    505: ("http_version_not_supported", "HTTP Version Not Supported"),
}
#: For a status that a library adds one day. A test fails until it has a name above.
UNNAMED = ("error", "Error")
#: Replaces the database driver's text, which is only logged.
UNAVAILABLE = (
    "The database is unavailable. To learn whether a write succeeded, repeat it with the same key."
)
#: Replace the libraries' texts, which do not say what to do.
DETAILS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: (
        "Send an API key as Authorization: Bearer KEY. It is missing, malformed, unknown, expired or revoked."
    ),
    HTTPStatus.NOT_FOUND: "There is nothing at this path. Ids in paths are complete UUIDs.",
}
#: In these, an invalid value makes the whole request malformed.
MALFORMED = {"headers", "query"}
#: The code of an unexpected error.
INTERNAL = "internal_error"
#: The additional fields of some errors, as the document shows them.
FACTS: dict[type[OrderError], dict[str, Any]] = {
    errors.UnknownSku: {"sku": "mug"},
    errors.OutOfStock: {"sku": "mug", "available": 1},
    errors.TooManyRequests: {"retry_after": 1},
    errors.TooManyUnpaidOrders: {"limit": 1000},
    errors.TooManyHeldPieces: {"limit": 10_000},
    errors.TooManyWebhooks: {"limit": 10},
}
VALIDATES = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}


def install(app: APIFlask) -> None:
    """Have ``app`` answer every error with a problem."""
    app.error_processor(_from_apiflask)
    app.register_error_handler(HTTPException, _from_werkzeug)
    app.register_error_handler(OrderError, _from_order_error)
    app.register_error_handler(Exception, _from_bug)


def problem(status: int, code: str, detail: str | None = None, **more: Any) -> Response:
    """An error response."""
    text = current_app.json.dumps(_body(status, code, detail, **more))
    return Response(text, status, content_type="application/problem+json")


def example_of(error: type[OrderError]) -> dict[str, Any]:
    """The body of an error's response, as the document shows it."""
    detail = UNAVAILABLE if issubclass(error, errors.StorageUnavailable) else str(error())
    status = STATUS[error]
    return _body(status, error.code, detail, **FACTS.get(error, {}))


def example_of_status(status: HTTPStatus) -> dict[str, Any]:
    """The body of a library's error, or a bug's, as the document shows it."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _body(status, INTERNAL)
    facts: dict[str, Any] = {}
    if status in VALIDATES:
        facts["errors"] = {"quantity": ["Field required"]}
    return _body(status, _code(status), **facts)


def headers_of(status: int, codes: Collection[str]) -> dict[str, bool]:
    """The headers of an error's response, and whether all of these codes have them."""
    if status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": True}
    later = {error.code for error in RETRY_AFTER.keys() | {errors.TooManyRequests}}
    return {"Retry-After": later >= {*codes}} if later & {*codes} else {}


def _from_order_error(error: OrderError) -> Response:
    detail: str | None = str(error)
    if isinstance(error, errors.SchemaOutdated):  # which table is missing is for the log
        error = errors.StorageUnavailable()
    if current_app.testing:
        contract.check(error)
    status = STATUS.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    if isinstance(error, errors.StorageUnavailable):
        log.error("storage unavailable", error=detail, path=request.path)
        detail = UNAVAILABLE
    response = problem(status, error.code, detail, **error.facts)
    retry_after = error.facts.get("retry_after", RETRY_AFTER.get(type(error)))
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if isinstance(error, errors.SignatureInvalid):
        response.headers["WWW-Authenticate"] = 'Webhook-Signature realm="orders"'
    return response


def _from_werkzeug(error: HTTPException) -> Response:
    status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    response = problem(status, _code(status), DETAILS.get(status, error.description))
    for name, value in error.get_headers():
        if name not in ("Content-Type", "Content-Length"):
            response.headers[name] = value
    return response


def _from_apiflask(error: HTTPError) -> Response:
    status = error.status_code
    facts = {}
    if error.detail:
        [(place, fields)] = error.detail.items()
        facts["errors"] = fields
        if place in MALFORMED:
            status = HTTPStatus.BAD_REQUEST
    response = problem(status, _code(status), DETAILS.get(status, error.message), **facts)
    response.headers.extend(error.headers or {})
    return response


def _from_bug(error: Exception) -> Response:
    log.error("unexpected error", path=request.path, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)


def _body(status: int, code: str, detail: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": NAMES.get(status, UNNAMED)[1],
        "status": int(status),
        "code": code,
        **({"detail": detail} if detail else {}),
        **more,
    }


def _code(status: int) -> str:
    return NAMES.get(status, UNNAMED)[0]
