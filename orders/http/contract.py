"""What each route takes and may answer: declared beside its view, or following from that.

The OpenAPI document is made from this.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel

from orders import errors
from orders.errors import OrderError

View = TypeVar("View", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What a route takes and may answer."""

    view: Callable[..., Any]
    #: Whether the document has it.
    is_public: bool
    #: What the view's parameters `header`, `query` and `body` are annotated with.
    inputs: Mapping[str, type[BaseModel]]
    returns: type[BaseModel] | None = None
    status: int = HTTPStatus.OK
    #: Of the success, unless the schema's own will do.
    description: str = ""
    #: Other statuses with the same schema, and their descriptions.
    also: Mapping[int, str] = field(default_factory=dict)
    #: Any of these scopes will do, or any key if it is empty; None: it needs no key.
    scopes: Collection[str] | None = None
    #: The body of a route that refuses none, and makes of it what it can.
    reads: type[BaseModel] | None = None

    @property
    def body(self) -> type[BaseModel] | None:
        return self.inputs.get("body", self.reads)

    def noted(self, name: str) -> tuple[Any, ...]:
        """What a decorator has noted of the view."""
        found: tuple[Any, ...] = getattr(self.view, name, ())
        return found

    def errors(self) -> set[type[OrderError]]:
        """The errors that the view may raise, declared or implied."""
        found = {*self.noted("raises")}
        if self.scopes is not None:  # the key is looked up in SQL, and counted
            found |= {errors.Unauthorized, errors.StorageUnavailable, errors.TooManyRequests}
        if self.scopes:
            found |= {errors.Forbidden}
        if self.body:
            found |= {errors.ServerBusy}
        return found

    def statuses(self, arguments: Collection[str]) -> list[HTTPStatus]:
        """The statuses with which any such route may answer before its view is called."""
        found = [HTTPStatus.BAD_REQUEST]
        if arguments:
            found += [HTTPStatus.NOT_FOUND]
        if self.body:
            found += [HTTPStatus.LENGTH_REQUIRED, HTTPStatus.REQUEST_ENTITY_TOO_LARGE]
        if "body" in self.inputs:
            found += [HTTPStatus.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.UNPROCESSABLE_ENTITY]
        return found


def raises(*errors: type[OrderError]) -> Callable[[View], View]:
    """Declare the errors of a route, except those that follow from its key, its scopes and its body."""
    return _noting("raises", errors)


def sends(*headers: str) -> Callable[[View], View]:
    """Declare the headers of a route's success, by their names in `orders.http.openapi.HEADERS`."""
    return _noting("sends", headers)


def takes(*headers: str) -> Callable[[View], View]:
    """Declare request headers that are in no schema, by their names in `orders.http.openapi.TAKEN`."""
    return _noting("takes", headers)


def contract_of(view: Callable[..., Any]) -> Contract | None:
    """The contract of a route; None for a page."""
    found: Contract | None = getattr(view, "contract", None)
    return found


def _noting(name: str, values: tuple[Any, ...]) -> Callable[[View], View]:
    def decorator(view: View) -> View:
        setattr(view, name, values)
        return view

    return decorator
