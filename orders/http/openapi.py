"""The API's description, OpenAPI 3.1: what APIFlask makes of the routes, completed.

    make openapi          writes docs/openapi.json

Whatever can be derived is: schemas from the models, errors from `orders.http.contract` and
`orders.http.problems`, examples from those of the fields.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from apiflask import APIFlask
from flask import Response
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from werkzeug.http import generate_etag
from werkzeug.routing import Rule

from orders.http import contract, problems
from orders.http.schemas.problem import ProblemOut
from orders.http.schemas.providers import WebhookHeaders
from orders.http.schemas.queue import TaskId
from orders.http.schemas.types import IF_MATCH, MAX_IF_MATCH, Id, Sku
from orders.http.schemas.webhooks import MessageOut
from orders.webhooks.domain import WEBHOOK_TYPES

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"
JSON = "application/json"
PROBLEM = "application/problem+json"
#: The paths that begin with it come first.
ORDERS = "/v1/orders"

DESCRIPTION = """\
Orders that are paid in time, or cancelled on time.

Guides: [by example](/docs/page/http-api.md), [payments](/docs/page/payments.md),
[webhooks](/docs/page/webhooks.md), [fairness](/docs/page/fairness.md).

**Errors** are problem+json (RFC 9457) with a stable `code`. These have one meaning everywhere:

| status | `code` | |
|---|---|---|
| 400 | `bad_request` | a header, a parameter or the body cannot be read |
| 401 | `unauthorized`, `signature_invalid` | the key, or the signature, is missing or wrong |
| 403 | `forbidden` | the key lacks the scope that `detail` names |
| 404 | `not_found` | there is no such path; `…_not_found`: no such thing |
| 405 | `method_not_allowed` | `Allow` lists the methods of the path |
| 411, 413 | `length_required`, `request_entity_too_large` | send a `Content-Length`, and a smaller body |
| 415 | `unsupported_media_type` | send `application/json` |
| 429 | `too_many_requests` | wait for `Retry-After` |
| 500 | `internal_error` | our fault; report the `X-Request-ID` |
| 503 | `storage_unavailable`, `server_busy`, `stock_busy`, `queue_unavailable` | wait for `Retry-After`, and repeat |

**Repeating** a request is safe: `POST /v1/orders` by its `Idempotency-Key`, a payment and a refund by
the provider's reference; a cancellation changes nothing the second time. A repeated response says
`Idempotent-Replayed: true`.

**Lists** come in pages: send `next_cursor` as `cursor` to read the next one, with the same filters.

**Money** is in minor units of a currency. **Times** are RFC 3339, in UTC, to the millisecond, by the
database's clock.

Another client's orders, payments and events do not exist for you: 404.
"""

Schema = dict[str, Any]
View = Callable[[], Response]
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
    "RateLimit": _response_header(
        "How many requests the key has left, and in how many seconds its quota is full again.",
        _string('"key";r=199;t=1', maxLength=100),
    ),
    "RateLimit-Policy": _response_header(
        "How many requests a key may send in how many seconds.",
        _string('"key";q=200;w=2', maxLength=100),
    ),
    "WWW-Authenticate": _response_header(
        "How to authenticate: with a bearer token, or a signature.",
        _string('Bearer realm="orders"', maxLength=200),
    ),
}

RATE_LIMIT = ["RateLimit", "RateLimit-Policy"]
#: For responses that may be sent before the key is checked.
LIMITED = dict.fromkeys(RATE_LIMIT, False)

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
    "If-None-Match": _parameter(
        "If-None-Match",
        "header",
        {
            "description": "The ETag of the version you have: 304 if it is still current. Anything else is ignored.",
            "type": "string",
        },
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
#: What signs a message to a webhook.
SIGNATURE = ("webhook-id", "webhook-timestamp", "webhook-signature")

#: The parameters in paths that are not an id of ours.
PATH_PARAMETERS: dict[str, Any] = {"sku": Sku, "task_id": TaskId}


class Incomplete(Exception):
    """The document cannot be completed."""


class Route(NamedTuple):
    """A rule of the application, and the view that it leads to."""

    rule: Rule
    view: Callable[..., Any]

    @property
    def name(self) -> str:
        """The view's, unique in the application: the operation's id."""
        return str(self.rule.endpoint).rpartition(".")[2]


def install(app: APIFlask) -> None:
    """Have ``app`` describe itself completely."""
    app.description = DESCRIPTION
    app.config.update(
        OPENAPI_VERSION="3.1.0",
        # Errors come from `orders.http.contract`.
        AUTO_VALIDATION_ERROR_RESPONSE=False,
        AUTO_AUTH_ERROR_RESPONSE=False,
        AUTO_404_RESPONSE=False,
        # Otherwise the first request's Host is kept, and "Try it out" sends everybody's keys to it.
        AUTO_SERVERS=False,
    )
    app.spec_processor(lambda document: _completed(app, document))
    app.config["SPEC_DECORATORS"] = [_written_once(app)]


def _written_once(app: APIFlask) -> Callable[[View], View]:
    """A decorator for the document's view: the document is the same for every request."""

    @cache
    def text(view: View) -> tuple[bytes, str]:
        body = view().get_data()
        return body, generate_etag(body)

    def decorated(view: View) -> View:
        def answer() -> Response:
            body, etag = text(view)
            response = app.response_class(body, mimetype=JSON)
            response.set_etag(etag)
            return response

        return answer

    return decorated


def written(app: APIFlask) -> str:
    """The document as it is committed."""
    document: Any = app.spec
    return f"{json.dumps(document, indent=2, ensure_ascii=False)}\n"


def _completed(app: APIFlask, document: Any) -> Any:
    """APIFlask's document, completed, and in the order in which it is read."""
    routes = dict(_routes(app))
    described = [
        routes[method, path].view for path, item in document["paths"].items() for method in item
    ]
    schemas = _schemas(described)
    components = {
        "schemas": schemas,
        "responses": {},
        "headers": HEADERS,
        "securitySchemes": document["components"]["securitySchemes"],
    }
    paths = {
        path: {
            method: _Operation(routes[method, path], operation, components).completed()
            for method, operation in document["paths"][path].items()
        }
        for path in sorted(document["paths"], key=lambda path: (ORDERS not in path, path))
    }
    components["responses"] = dict(sorted(components["responses"].items()))
    return {
        "openapi": document["openapi"],
        "info": document["info"],
        "tags": document["tags"],
        "paths": paths,
        "webhooks": _webhooks(schemas),
        "components": components,
    }


def _routes(app: APIFlask) -> Iterator[tuple[tuple[str, str], Route]]:
    """Every route, by its method and path as the document has them."""
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:[^<:]+:)?([^>]+)>", r"{\1}", rule.rule)
        for method in rule.methods or ():
            yield (method.lower(), path), Route(rule, app.view_functions[rule.endpoint])


# -- schemas -------------------------------------------------------------------------------


def _schemas(views: list[Callable[..., Any]]) -> dict[str, Schema]:
    """The schema of every model that a view takes or returns, and of problems."""
    # A problem is not made by its model: what does not apply is absent.
    models: dict[tuple[type[BaseModel], Any], None] = {
        (ProblemOut, "validation"): None,
        (MessageOut, "serialization"): None,
    }
    for view in views:
        spec = contract.spec_of(view)
        returned = (spec.get("response") or {}).get("schema")
        for model, mode in ((spec.get("body"), "validation"), (returned, "serialization")):
            if isinstance(model, type) and issubclass(model, BaseModel):
                models[model, mode] = None
    _, found = models_json_schema([*models], ref_template="#/components/schemas/{model}")
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
    kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
    if len(kinds) != 1:
        raise Incomplete(f"more than one type besides null: {schema}")
    return {**kinds[0], **schema}


def example_of(schema: Schema, schemas: dict[str, Schema]) -> Any:
    """An example, composed of those of the fields. Raises Incomplete where there is none.

    What may be null is, unless the field itself has an example.
    """
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema or "enum" in schema:
        return schema.get("const") or schema["enum"][0]
    kinds = schema.get("anyOf") or schema.get("oneOf") or []
    if {"type": "null"} in kinds:
        return None
    if kinds:
        return example_of(kinds[0], schemas)
    return _composed_example(schema, schemas)


def _composed_example(schema: Schema, schemas: dict[str, Schema]) -> Any:
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if schema.get("type") == "array":
        return [example_of(schema["items"], schemas)]
    if "properties" in schema:
        return {name: example_of(each, schemas) for name, each in schema["properties"].items()}
    raise Incomplete(f"there is no example of {schema}")


# -- operations ----------------------------------------------------------------------------


class _Operation:
    """One operation, being completed."""

    def __init__(self, route: Route, made: Schema, components: Schema) -> None:
        self._route = route
        self._made = made
        self._components = components
        self._schemas: dict[str, Schema] = components["schemas"]

    def completed(self) -> Schema:
        made = self._made
        return {
            "operationId": self._route.name,
            "tags": made["tags"],
            "summary": made["summary"].removesuffix("."),
            "description": self._description(),
            **({"security": self._security()} if "security" in made else {}),
            "parameters": [
                *map(self._parameter, made["parameters"]),
                *map(TAKEN.__getitem__, contract.taken_by(*self._route)),
            ],
            **({"requestBody": self._body(made["requestBody"])} if "requestBody" in made else {}),
            "responses": dict(sorted({**self._successes(), **self._problems()}.items())),
        }

    def _description(self) -> str:
        spec = contract.spec_of(self._route.view)
        scopes = [f"`{role}`" for role in spec.get("roles") or []]
        needed = f"Needs a key with the scope {' or '.join(scopes)}." if scopes else ""
        if spec.get("auth") and not scopes:
            needed = "Needs a key with any scope."
        return f"{self._made.get('description', '')}\n\n{needed}".strip()

    def _security(self) -> list[Schema]:
        """One alternative for each scope, as any of them will do."""
        return [
            {name: [scope]}
            for alternative in self._made["security"]
            for name, scopes in alternative.items()
            for scope in scopes
        ] or self._made["security"]

    def _parameter(self, made: Schema) -> Schema:
        name, place = made["name"], made["in"]
        schema = _path_schema(name) if place == "path" else _never_null(_tidy(made["schema"]))
        if "$ref" in schema:  # APIFlask writes OrdersQuery.OrderStatus
            schema["$ref"] = re.sub(r"\w+\.", "", schema["$ref"])
        return _parameter(name, place, schema, required=made["required"])

    def _body(self, made: Schema) -> Schema:
        schema = made["content"][JSON]["schema"]
        example = {**example_of(schema, self._schemas), **made["content"][JSON].get("example", {})}
        return {"required": True, "content": {JSON: {"schema": schema, "example": example}}}

    def _successes(self) -> dict[str, Schema]:
        """What the route returns, with every status that it declares."""
        result = contract.spec_of(self._route.view)["response"]
        main = self._made["responses"][str(int(result["status_code"]))]
        schema = main.get("content", {}).get(JSON, {}).get("schema")
        found = {
            status: self._success(status, made, schema)
            for status, made in self._made["responses"].items()
        }
        if contract.is_tagged(self._route.rule):
            found["304"] = self._shared("NotModified", NOT_MODIFIED)
        return found

    def _success(self, status: str, made: Schema, schema: Schema | None) -> Schema:
        names = ["X-Request-ID", *contract.headers_of(*self._route)]
        if status == str(int(HTTPStatus.OK)) and "Location" in names:  # of what is new
            names.remove("Location")
        if contract.spec_of(self._route.view).get("auth"):
            names += RATE_LIMIT
        response = {
            "description": made["description"],
            "headers": _headers(dict.fromkeys(names, True)),
        }
        if schema is None:
            return response
        if made["description"] == "Successful response":
            name = schema["$ref"].rpartition("/")[2]
            response["description"] = self._schemas[name]["description"]
        changes = made["content"][JSON].get("example", {})
        example = {**example_of(schema, self._schemas), **changes}
        return {**response, "content": {JSON: {"schema": schema, "example": example}}}

    def _problems(self) -> dict[str, Schema]:
        """Each error status, with the codes that it may have."""
        codes: dict[int, dict[str, Schema]] = {}
        for status in contract.statuses_of(*self._route):
            example = problems.example_of_status(status)
            codes.setdefault(int(status), {})[example["code"]] = example
        for error in sorted(contract.errors_of(self._route.view), key=lambda error: error.code):
            example = problems.example_of(error)
            codes.setdefault(example["status"], {})[error.code] = example
        return {str(status): self._problem(status, found) for status, found in codes.items()}

    def _problem(self, status: int, codes: dict[str, Schema]) -> Schema:
        """A response with a problem; what has only one code is shared."""
        response = _problem_response(status, codes)
        if len(codes) > 1:
            return response
        [code] = codes
        return self._shared("".join(word.capitalize() for word in code.split("_")), response)

    def _shared(self, name: str, response: Schema) -> Schema:
        self._components["responses"][name] = response
        return {"$ref": f"#/components/responses/{name}"}


def _path_schema(name: str) -> Schema:
    if name in PATH_PARAMETERS:
        return _tidy(TypeAdapter(PATH_PARAMETERS[name]).json_schema())
    if not name.endswith("_id"):
        raise Incomplete(f"{name} is not in PATH_PARAMETERS")
    thing = name.removesuffix("_id")
    article = "an" if thing[0] in "aeiou" else "a"
    return {**TypeAdapter(Id).json_schema(), "description": f"The id of {article} {thing}."}


def _problem_response(status: int, codes: dict[str, Schema]) -> Schema:
    schema = {
        "$ref": f"#/components/schemas/{ProblemOut.__name__}",
        "properties": {"status": {"const": status}, "code": {"enum": [*codes]}},
    }
    examples = {
        code: {"summary": example.get("detail", example["title"]), "value": example}
        for code, example in codes.items()
    }
    return {
        "description": problems.NAMES[status][1],
        "headers": _headers(
            {"X-Request-ID": True, **problems.headers_of(status, codes), **LIMITED}
        ),
        "content": {PROBLEM: {"schema": schema, "examples": examples}},
    }


def _headers(names: dict[str, bool]) -> Schema:
    """Headers of a response, by whether every such response has them."""
    return {
        name: {"$ref": f"#/components/headers/{name}"}
        if always
        else {**HEADERS[name], "required": False}
        for name, always in names.items()
    }


NOT_MODIFIED = {
    "description": "The version you have is current.",
    "headers": _headers({"X-Request-ID": True, "ETag": True, **LIMITED}),
}


# -- webhooks ------------------------------------------------------------------------------


def _webhooks(schemas: dict[str, Schema]) -> Schema:
    """What is sent to the clients that subscribed to it, by the type of the event."""
    message = {"$ref": f"#/components/schemas/{MessageOut.__name__}"}
    example = example_of(message, schemas)
    headers = TypeAdapter(WebhookHeaders).json_schema()["properties"]
    parameters = [
        _parameter(name, "header", {**headers[name]}, required=True) for name in SIGNATURE
    ]
    return {
        kind: {
            "post": {
                "operationId": f"on_{kind.replace('.', '_')}",
                "tags": ["Webhooks"],
                "summary": f"The event {kind}",
                "description": "Sent at least once, until any 2xx comes back; 410 pauses the subscription.",
                "parameters": parameters,
                "requestBody": {
                    "required": True,
                    "content": {
                        JSON: {
                            "schema": {**message, "properties": {"type": {"const": kind}}},
                            "example": {**example, "type": kind},
                        }
                    },
                },
                "responses": {
                    "2XX": {"description": "The message was accepted."},
                    "410": {"description": "Send no more: the subscription is paused."},
                },
            }
        }
        for kind in WEBHOOK_TYPES
    }
