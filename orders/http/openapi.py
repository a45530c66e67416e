"""The API's description, OpenAPI 3.1.

    make openapi          writes docs/openapi.json

Whatever can be derived is: operations from the routes' contracts and docstrings, schemas from the models,
errors from `orders.http.problems`.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from http import HTTPStatus
from inspect import getdoc
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from flask import Flask, Response, current_app
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from werkzeug.routing import Rule

from orders.http import problems
from orders.http.contract import Contract, contract_of
from orders.http.routing import Routes
from orders.http.schemas.problem import ProblemOut
from orders.http.schemas.providers import WebhookHeaders
from orders.http.schemas.types import IF_MATCH, MAX_IF_MATCH, Id, Sku
from orders.http.schemas.webhooks import MessageOut
from orders.webhooks.domain import WEBHOOK_TYPES

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"
JSON = "application/json"
PROBLEM = "application/problem+json"
REFERENCE = "#/components/schemas/{model}"
RESPONSE = "#/components/responses/{name}"
SCHEME = "BearerAuth"
#: The paths that begin with it come first; and the order of methods.
ORDERS = "/v1/orders"
METHODS = ("get", "post", "put", "patch", "delete")

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

Schema = dict[str, Any]
Node = TypeVar("Node")


def _string(example: str, **bounds: Any) -> Schema:
    return {"type": "string", **bounds, "examples": [example]}


def _response_header(description: str, schema: Schema) -> Schema:
    """A header of a response."""
    return {"description": description, "required": True, "schema": schema}


def _parameter(name: str, place: str, schema: Schema, *, required: bool = False) -> Schema:
    """A parameter of a request, whose description is in its schema."""
    schema = _tidy(schema)
    return {
        "name": name,
        "in": place,
        "description": schema.pop("description", ""),
        "required": required,
        "schema": schema,
    }


def _tidy(node: Node) -> Node:
    """Without the titles that pydantic makes of names."""
    if isinstance(node, list):
        return [_tidy(each) for each in node]  # type: ignore[return-value]
    if not isinstance(node, dict):
        return node
    return {  # type: ignore[return-value]
        name: _tidy(value)
        for name, value in node.items()
        if name != "title" or not isinstance(value, str)
    }


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
            "/v1/orders/01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f",
            format="uri-reference",
            maxLength=200,
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
#: The headers of requests that are in no schema of a route.
TAKEN: dict[str, Schema] = {
    "If-Match": _parameter(
        "If-Match", "header", {"description": ANY_VERSION, **VERSIONS}, required=True
    ),
    "If-Match, if it exists": _parameter(
        "If-Match",
        "header",
        {"description": f"{ANY_VERSION} Required to change what exists.", **VERSIONS},
    ),
    "If-None-Match: *": _parameter(
        "If-None-Match",
        "header",
        {
            "description": "*, to create it only if it is new.",
            **_string("*", pattern=r"^\*$", maxLength=1),
        },
    ),
}


class Route(NamedTuple):
    """A method of a path of the application, and what it takes and may answer."""

    method: str
    rule: Rule
    contract: Contract

    @property
    def path(self) -> str:
        """Its path as the document has it."""
        return re.sub(r"<(?:[^<:]+:)?([^>]+)>", r"{\1}", str(self.rule.rule))

    @property
    def group(self) -> str:
        """The blueprint's name."""
        return str(self.rule.endpoint).partition(".")[0]


def install(app: Flask) -> None:
    """Have ``app`` describe itself."""

    @cache
    def text() -> bytes:
        return json.dumps(document(app)).encode()

    def described() -> Response:
        return current_app.response_class(text(), mimetype=JSON)

    app.add_url_rule("/openapi.json", "openapi", described)


def written(app: Flask) -> str:
    """The document as it is committed."""
    return f"{json.dumps(document(app), indent=2, ensure_ascii=False)}\n"


def document(app: Flask) -> Schema:
    """The description of ``app``, in the order in which it is read."""
    routes = sorted(
        _routes(app),
        key=lambda each: (ORDERS not in each.path, each.path, METHODS.index(each.method)),
    )
    groups = {name: each.tag for name, each in app.blueprints.items() if isinstance(each, Routes)}
    paths: Schema = {}
    shared: Schema = {}
    for route in routes:
        operation = _operation(route, groups[route.group]["name"], shared)
        paths.setdefault(route.path, {})[route.method] = operation
    shown = {route.group for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {"description": DESCRIPTION, "title": "Orders", "version": "1"},
        "tags": [tag for name, tag in groups.items() if name in shown],
        "paths": paths,
        "webhooks": _webhooks(),
        "components": {
            "schemas": _schemas(routes),
            "responses": dict(sorted(shared.items())),
            "headers": HEADERS,
            "securitySchemes": {SCHEME: KEY},
        },
    }


def _routes(app: Flask) -> Iterator[Route]:
    """Every route of the public API."""
    for rule in app.url_map.iter_rules():
        contract = contract_of(app.view_functions[rule.endpoint])
        if contract and contract.is_public:
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                yield Route(method.lower(), rule, contract)


# -- schemas -------------------------------------------------------------------------------


def _schemas(routes: Iterable[Route]) -> dict[str, Schema]:
    """The schema of every model that a route takes or returns, and of problems."""
    # A problem is not made by its model: what does not apply is absent.
    models: dict[tuple[type[BaseModel], Any], None] = {
        (ProblemOut, "validation"): None,
        (MessageOut, "serialization"): None,
    }
    for _, _, contract in routes:
        for model, mode in ((contract.body, "validation"), (contract.returns, "serialization")):
            if model is not None:
                models[model, mode] = None
    _, found = models_json_schema([*models], ref_template=REFERENCE)
    schemas = {name: _tidy(schema) for name, schema in sorted(found["$defs"].items())}
    problem = schemas[ProblemOut.__name__]
    problem["properties"] = {
        name: _never_null(schema) for name, schema in problem["properties"].items()
    }
    return schemas


def _never_null(schema: Schema) -> Schema:
    """The schema of something that may be absent, but is never null."""
    schema = {
        name: value for name, value in schema.items() if name != "default" or value is not None
    }
    if "anyOf" not in schema:
        return schema
    [kind] = (kind for kind in schema.pop("anyOf") if kind != {"type": "null"})
    return {**kind, **schema}


# -- operations ----------------------------------------------------------------------------


def _operation(route: Route, group: str, shared: dict[str, Schema]) -> Schema:
    """What the document says of one route; responses that others have, too, are put into ``shared``."""
    contract = route.contract
    summary, _, description = (getdoc(contract.view) or "").partition("\n")
    texts = [description.strip(), _needed(contract.scopes)]
    responses = {**_successes(route), **_problems(route, shared)}
    return {
        "operationId": contract.view.__name__,
        "tags": [group],
        "summary": summary.removesuffix("."),
        "description": "\n\n".join(filter(None, texts)),
        # One alternative for each scope, as any of them will do.
        **({} if contract.scopes is None else {"security": _alternatives(contract.scopes)}),
        "parameters": [*_parameters(route)],
        **({"requestBody": _body(_reference(contract.body))} if contract.body else {}),
        "responses": dict(sorted(responses.items())),
    }


def _parameters(route: Route) -> Iterator[Schema]:
    for name in sorted(route.rule.arguments):
        yield _parameter(name, "path", _path_schema(name), required=True)
    for place in ("header", "query"):
        if model := route.contract.inputs.get(place):
            schema = model.model_json_schema(ref_template=REFERENCE)
            for name, each in schema["properties"].items():
                required = name in schema.get("required", ())
                yield _parameter(name, place, _never_null(each), required=required)
    for name in route.contract.noted("takes"):
        yield TAKEN[name]


def _successes(route: Route) -> dict[str, Schema]:
    """What the route returns, with every status that it declares."""
    contract = route.contract
    return {
        str(int(status)): _success(route, status, description)
        for status, description in {contract.status: contract.description, **contract.also}.items()
    }


def _success(route: Route, status: int, description: str) -> Schema:
    returns = route.contract.returns
    names = ["X-Request-ID", *route.contract.noted("sends")]
    if status == HTTPStatus.OK and "Location" in names:  # of what is new
        names.remove("Location")
    return {
        "description": description or getdoc(returns),
        "headers": _headers(dict.fromkeys(names, True)),
        **({"content": {JSON: {"schema": _reference(returns)}}} if returns else {}),
    }


def _problems(route: Route, shared: dict[str, Schema]) -> dict[str, Schema]:
    """Each error status, with the codes that it may have and what they mean."""
    found = {}
    meanings = {
        int(status): {problems.code_of(status): problems.title_of(status)}
        for status in route.contract.statuses(route.rule.arguments)
    }
    meanings[500] = {problems.INTERNAL: problems.title_of(500)}
    errors = sorted(route.contract.errors(), key=lambda error: error.code)
    for error in errors:
        meanings.setdefault(problems.status_of(error), {})[error.code] = str(error())
    later = {error.code for error in errors if error.retry_after}
    for status, codes in meanings.items():
        found[str(status)] = _problem(status, codes, later)
        if len(codes) == 1:
            [code] = codes
            shared[code] = found[str(status)]
            found[str(status)] = {"$ref": RESPONSE.format(name=code)}
    return found


def _problem(status: int, codes: dict[str, str], later: set[str]) -> Schema:
    """A problem with one of these codes; ``later`` are those that come with Retry-After."""
    headers = {"X-Request-ID": True}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = True
    if later & codes.keys():
        headers["Retry-After"] = later >= codes.keys()
    named = {"status": {"const": status}, "code": {"enum": [*codes]}}
    return {
        "description": "\n\n".join(f"`{code}`: {meaning}" for code, meaning in codes.items()),
        "headers": _headers(headers),
        "content": {PROBLEM: {"schema": {**_reference(ProblemOut), "properties": named}}},
    }


def _reference(model: type[BaseModel]) -> Schema:
    return {"$ref": REFERENCE.format(model=model.__name__)}


def _body(schema: Schema) -> Schema:
    """The body of a request."""
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _needed(scopes: Collection[str] | None) -> str:
    if scopes is None:
        return ""
    named = f"the scope {' or '.join(f'`{scope}`' for scope in scopes)}" if scopes else "any scope"
    return f"Needs a key with {named}."


def _alternatives(scopes: Collection[str]) -> list[Schema]:
    return [{SCHEME: [scope]} for scope in scopes] or [{SCHEME: []}]


def _path_schema(name: str) -> Schema:
    if name == "sku":
        return TypeAdapter(Sku).json_schema()
    described = f"The {name.removesuffix('_id')}'s id."
    return {**TypeAdapter(Id).json_schema(), "description": described}


def _headers(names: dict[str, bool]) -> Schema:
    """Headers of a response, by whether every such response has them."""
    return {
        name: {"$ref": f"#/components/headers/{name}"}
        if always
        else {**HEADERS[name], "required": False}
        for name, always in names.items()
    }


# -- webhooks ------------------------------------------------------------------------------


def _webhooks() -> Schema:
    """What is sent to the clients that subscribed to it, by the type of the event."""
    message = _reference(MessageOut)
    headers = TypeAdapter(WebhookHeaders).json_schema()["properties"]
    parameters = [
        _parameter(name, "header", {**each}, required=True) for name, each in headers.items()
    ]
    return {
        kind: {
            "post": {
                "operationId": f"on_{kind.replace('.', '_')}",
                "tags": ["Webhooks"],
                "summary": f"The event {kind}",
                "description": "Sent at least once, until any 2xx comes back; 410 pauses the subscription.",
                "parameters": parameters,
                "requestBody": _body({**message, "properties": {"type": {"const": kind}}}),
                "responses": {
                    "2XX": {"description": "The message was accepted."},
                    "410": {"description": "Send no more: the subscription is paused."},
                },
            }
        }
        for kind in WEBHOOK_TYPES
    }
