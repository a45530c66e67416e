"""What each route may answer. Its errors are declared beside it, or follow from its inputs.

The OpenAPI document is made from this. In tests, an error that it does not name fails the request.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from flask import current_app, request
from pydantic import BaseModel
from werkzeug.routing import Rule

from orders.errors import Forbidden, OrderError, ServerBusy, StorageUnavailable, TooManyRequests
from orders.http import headers

View = TypeVar("View", bound=Callable[..., Any])
Errors = frozenset[type[OrderError]]


class Undeclared(AssertionError):
    """A route answered with an error that it does not declare."""


def raises(*errors: type[OrderError]) -> Callable[[View], View]:
    """Declare the errors of a route, except those that follow from its key, its scopes and its body."""
    return _noting("errors", frozenset(errors))


def sends(*headers: str) -> Callable[[View], View]:
    """Declare the headers of a route's success, by their names in `orders.http.openapi.HEADERS`."""
    return _noting("headers", headers)


def reads(schema: type[BaseModel]) -> Callable[[View], View]:
    """Declare the JSON body of a route that refuses none, and makes of it what it can."""

    def decorator(view: View) -> View:
        spec = {"body": schema, "body_example": None, "body_examples": None}
        view.__dict__.setdefault("_spec", {}).update(spec, content_type="application/json")
        return _noting("reads", schema)(view)

    return decorator


def takes(*headers: str) -> Callable[[View], View]:
    """Declare request headers that are in no schema, by their names in `orders.http.openapi.TAKEN`."""
    return _noting("taken", headers)


def also(status: HTTPStatus, description: str, example: dict[str, Any]) -> dict[int, Any]:
    """Another status of a route with the same schema, for its ``doc(responses=...)``; ``example``
    has what differs.
    """
    return {
        int(status): {
            "description": description,
            "content": {"application/json": {"example": example}},
        }
    }


def headers_of(rule: Rule, view: Callable[..., Any]) -> list[str]:
    """The headers of a route's success."""
    declared = getattr(view, "_contract", {}).get("headers", ())
    return [*declared, *(["ETag"] if is_tagged(rule) and "ETag" not in declared else [])]


def taken_by(rule: Rule, view: Callable[..., Any]) -> list[str]:
    """The request headers that a route reads, besides those in its schemas."""
    declared = getattr(view, "_contract", {}).get("taken", ())
    return [*declared, *(["If-None-Match"] if is_tagged(rule) else [])]


def is_tagged(rule: Rule) -> bool:
    """Whether `orders.http.headers` compares the route's responses with the version that the caller has."""
    return "GET" in (rule.methods or ()) and headers.tags(rule.endpoint.rpartition(".")[0])


def errors_of(view: Callable[..., Any]) -> Errors:
    """The errors that a view may raise, declared or implied."""
    declared: Errors = getattr(view, "_contract", {}).get("errors", frozenset())
    spec = spec_of(view)
    if spec.get("auth"):  # the key is looked up in SQL, and counted
        declared |= {StorageUnavailable, TooManyRequests}
    if spec.get("body"):
        declared |= {ServerBusy}
    if spec.get("roles"):
        declared |= {Forbidden}
    return declared


def statuses_of(rule: Rule, view: Callable[..., Any]) -> list[HTTPStatus]:
    """The statuses with which any such route may answer before its view is called."""
    spec = spec_of(view)
    statuses = [HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR]
    if spec.get("auth"):
        statuses += [HTTPStatus.UNAUTHORIZED]
    if rule.arguments:
        statuses += [HTTPStatus.NOT_FOUND]
    if spec.get("body"):
        statuses += [
            HTTPStatus.LENGTH_REQUIRED,
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        ]
        if "reads" not in getattr(view, "_contract", {}):
            statuses += [HTTPStatus.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.UNPROCESSABLE_ENTITY]
    return statuses


def spec_of(view: Callable[..., Any]) -> dict[str, Any]:
    """What APIFlask noted of a view: what it takes, who may call it, what it returns."""
    return getattr(view, "_spec", {})


def check(error: OrderError) -> None:
    """Raises Undeclared for an error that the request's route does not declare."""
    view = current_app.view_functions[request.endpoint or ""]
    if type(error) not in errors_of(view):
        raise Undeclared(f"{request.endpoint} does not declare {type(error).__name__}") from error


def _noting(name: str, value: object) -> Callable[[View], View]:
    def decorator(view: View) -> View:
        # Beside APIFlask's own notes: its decorators hand a view's attributes on to what they wrap
        # it in, so that the order of decorators does not matter.
        view.__dict__.setdefault("_contract", {})[name] = value
        return view

    return decorator
