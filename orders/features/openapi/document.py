"""The API's description, OpenAPI 3.1.

    make openapi          writes docs/openapi.json

Whatever can be derived is: operations from the routes' contracts and docstrings, schemas from the models,
errors from `orders.http.problems`.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from http import HTTPStatus
from inspect import getdoc
from typing import Any, NamedTuple, TypeVar

from flask import Flask
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from werkzeug.routing import Rule

from orders import errors
from orders.errors import OrderError
from orders.feature import features
from orders.features.openapi.problem import ProblemOut
from orders.features.openapi.texts import DESCRIPTION, HEADERS, KEY, TAKEN, Schema
from orders.features.parts import Sent
from orders.http import problems
from orders.http.routing import Contract, Routes
from orders.http.schemas.types import Id, Sku

JSON = "application/json"
PROBLEM = "application/problem+json"
REFERENCE = "#/components/schemas/{model}"
RESPONSE = "#/components/responses/{name}"
SCHEME = "BearerAuth"
#: The paths that begin with it come first; and the order of methods.
ORDERS = "/v1/orders"
METHODS = ("get", "post", "put", "patch", "delete")

Node = TypeVar("Node")


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
    sent = [each for feature in features() for each in feature.sent]
    schemas = _schemas(routes) | _schemas_of((each.body, "serialization") for each in sent)
    return {
        "openapi": "3.1.0",
        "info": {"description": DESCRIPTION, "title": "Orders", "version": "1"},
        "tags": [tag for name, tag in groups.items() if name in shown],
        "paths": paths,
        "webhooks": {kind: {"post": _message(each, kind)} for each in sent for kind in each.types},
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": dict(sorted(shared.items())),
            "headers": HEADERS,
            "securitySchemes": {SCHEME: KEY},
        },
    }


def _routes(app: Flask) -> Iterator[Route]:
    """Every route of the public API."""
    for rule in app.url_map.iter_rules():
        contract: Contract | None = getattr(app.view_functions[rule.endpoint], "contract", None)
        # Those below another group's are for the operators' page.
        if contract and contract.is_public and rule.endpoint.count(".") == 1:
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                yield Route(method.lower(), rule, contract)


# -- schemas -------------------------------------------------------------------------------


def _schemas(routes: Iterable[Route]) -> dict[str, Schema]:
    """The schema of every model that a route takes or returns, and of problems."""
    # A problem is not made by its model: what does not apply is absent.
    models: dict[tuple[type[BaseModel], Any], None] = {(ProblemOut, "validation"): None}
    for _, _, contract in routes:
        for model, mode in (
            (_body_of(contract), "validation"),
            (contract.returns, "serialization"),
        ):
            if model is not None:
                models[model, mode] = None
    schemas = _schemas_of(models)
    problem = schemas[ProblemOut.__name__]
    problem["properties"] = {
        name: _never_null(schema) for name, schema in problem["properties"].items()
    }
    return schemas


def _schemas_of(models: Iterable[tuple[type[BaseModel], Any]]) -> dict[str, Schema]:
    """The schemas of models, each validated or serialized, and of what they consist of."""
    _, found = models_json_schema([*models], ref_template=REFERENCE)
    return {name: _tidy(schema) for name, schema in found.get("$defs", {}).items()}


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
    body = _body_of(contract)
    return {
        "operationId": contract.view.__name__,
        "tags": [group],
        "summary": summary.removesuffix("."),
        "description": "\n\n".join(filter(None, texts)),
        # One alternative for each scope, as any of them will do.
        **({} if contract.scopes is None else {"security": _alternatives(contract.scopes)}),
        "parameters": [*_parameters(route)],
        **({"requestBody": _body(_reference(body))} if body else {}),
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
    for name in getattr(route.contract.view, "takes", ()):
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
    names = ["X-Request-ID", *getattr(route.contract.view, "sends", ())]
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
        for status in _statuses(route)
    }
    meanings[500] = {problems.INTERNAL: problems.title_of(500)}
    raised = sorted(errors_of(route.contract), key=lambda error: error.code)
    for error in raised:
        meanings.setdefault(problems.status_of(error), {})[error.code] = str(error())
    later = {error.code for error in raised if error.retry_after}
    for status, codes in meanings.items():
        found[str(status)] = _problem(status, codes, later)
        if len(codes) == 1:
            [code] = codes
            shared[code] = found[str(status)]
            found[str(status)] = {"$ref": RESPONSE.format(name=code)}
    return found


def _body_of(contract: Contract) -> type[BaseModel] | None:
    return contract.inputs.get("body", contract.reads)


def errors_of(contract: Contract) -> set[type[OrderError]]:
    """The errors that the view may raise, declared or implied."""
    found = {*getattr(contract.view, "raises", ())}
    if contract.scopes is not None:  # the key is looked up in SQL, and counted
        found |= {errors.Unauthorized, errors.StorageUnavailable, errors.TooManyRequests}
    if contract.scopes:
        found |= {errors.Forbidden}
    if _body_of(contract):
        found |= {errors.ServerBusy}
    for feature in features():
        found |= {*feature.refusals.get(contract.view.__name__, ())}
    return found


def _statuses(route: Route) -> list[HTTPStatus]:
    """The statuses with which any such route may answer before its view is called."""
    found = [HTTPStatus.BAD_REQUEST]
    if route.rule.arguments:
        found += [HTTPStatus.NOT_FOUND]
    if _body_of(route.contract):
        found += [HTTPStatus.LENGTH_REQUIRED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE]
    if "body" in route.contract.inputs:
        found += [HTTPStatus.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.UNPROCESSABLE_ENTITY]
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


def _message(sent: Sent, kind: str) -> Schema:
    """A message about an event of this kind."""
    headers = sent.headers.model_json_schema()["properties"]
    body = {**_reference(sent.body), "properties": {"type": {"const": kind}}}
    return {
        "operationId": f"on_{kind.replace('.', '_')}",
        "tags": [sent.group],
        "summary": f"The event {kind}",
        "description": sent.description,
        "parameters": [
            _parameter(name, "header", headers[name], required=True) for name in headers
        ],
        "requestBody": _body(body),
        "responses": {status: {"description": each} for status, each in sent.answers.items()},
    }


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
