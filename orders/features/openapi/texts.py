"""What the API's description says beside routes and schemas: its introduction, its key, its headers."""

from typing import Any

from orders.http.schemas.types import IF_MATCH, MAX_IF_MATCH

Schema = dict[str, Any]

DESCRIPTION = """\
Orders that are paid in time, or cancelled on time.

**Errors** are problem+json (RFC 9457) with a stable `code`. These have one meaning everywhere:

| status | `code` | |
|---|---|---|
| 400 | `bad_request` | a header, a parameter or the body cannot be read |
| 401 | `unauthorized`, `signature_invalid` | the key, or the signature, is missing or wrong |
| 403 | `forbidden` | the key lacks the scope that `detail` names |
| 404 | `not_found` | there is no such path; `…_not_found`: no such thing |
| 405 | `method_not_allowed` | `Allow` lists the methods of the path |
| 411, 413 | `length_required`, `request_entity_too_large` | send a `Content-Length`, and a smaller body |
| 415 | `unsupported_media_type` | send `application/json`, not compressed |
| 429 | `too_many_requests` | wait for `Retry-After` |
| 500 | `internal_error` | our fault; report the `X-Request-ID` |
| 503 | `storage_unavailable`, `server_busy`, `stock_busy`, `inbox_full` | wait for `Retry-After`, and repeat |

**Repeating** a request is safe: `POST /v1/orders` by its `Idempotency-Key`, a payment and a refund by
the provider's reference; a cancellation changes nothing the second time. A repeated response says
`Idempotent-Replayed: true`.

**Lists** come in pages: send `next_cursor` as `cursor` to read the next one, with the same filters.

**Money** is in minor units of a currency. **Times** are RFC 3339, in UTC, to the millisecond, by the
database's clock.

Another client's orders, payments and events do not exist for you: 404.
"""

KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key, sent as `Authorization: Bearer KEY`. A key belongs to a client, which owns "
    "orders, and has scopes: `orders` places, reads, extends and cancels the client's orders, "
    "`payments` reports payments and refunds, `ops` sets and adjusts stock, reads every "
    "client's orders, and freezes deadlines. `python -m orders keys create NAME "
    "--scope orders` makes one.",
}


def _string(example: str, **bounds: Any) -> Schema:
    return {"type": "string", **bounds, "examples": [example]}


def _response_header(description: str, schema: Schema) -> Schema:
    """A header of a response."""
    return {"description": description, "required": True, "schema": schema}


#: The headers of responses, by name.
HEADERS: dict[str, Schema] = {
    "X-Request-ID": _response_header(
        "The request's id: the caller's if it sent a valid one. The log has it too.",
        _string(
            "01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f",
            pattern="^[A-Za-z0-9._:-]+$",
            minLength=1,
            maxLength=64,
        ),
    ),
    "Location": _response_header(
        "The path of what was created.",
        _string(
            "/v1/orders/01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f", format="uri-reference", maxLength=200
        ),
    ),
    "Idempotent-Replayed": {
        "description": "Present if this response repeats an earlier one.",
        "schema": {"type": "string", "const": "true"},
    },
    "ETag": _response_header(
        "Identifies this version. Send it as If-Match to change only this version.",
        _string('"1"', pattern='^"[!#-~]+"$', maxLength=100),
    ),
    "Retry-After": _response_header(
        "How many seconds to wait before trying again.",
        {"type": "integer", "minimum": 1, "maximum": 3600, "examples": [2]},
    ),
    "WWW-Authenticate": _response_header(
        "How to authenticate: with a bearer token, or a signature.",
        _string('Bearer realm="orders"', maxLength=200),
    ),
}

ANY_VERSION = "The ETag that you read, or * for any."
VERSIONS = _string("*", pattern=IF_MATCH, minLength=1, maxLength=MAX_IF_MATCH)


def _taken(name: str, description: str, schema: Schema, *, required: bool = False) -> Schema:
    said = {"name": name, "in": "header", "description": description}
    return {**said, "required": required, "schema": schema}


#: The headers of requests that are in no schema of a route.
TAKEN: dict[str, Schema] = {
    "If-Match": _taken("If-Match", ANY_VERSION, VERSIONS, required=True),
    "If-Match, if it exists": _taken(
        "If-Match", f"{ANY_VERSION} Required to change what exists.", VERSIONS
    ),
    "If-None-Match: *": _taken(
        "If-None-Match",
        "*, to create it only if it is new.",
        _string("*", pattern=r"^\*$", maxLength=1),
    ),
}
