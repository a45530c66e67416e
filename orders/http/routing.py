"""Routes whose views say what they take, which is checked before they are called, and may answer.

The API's description is made from that.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from http import HTTPStatus
from inspect import get_annotations
from typing import Any, TypeVar
from wsgiref.types import WSGIEnvironment

from flask import Blueprint, Request, Response, request
from pydantic import BaseModel, RootModel, ValidationError
from werkzeug.datastructures import Headers

from orders.errors import OrderError
from orders.http.auth import authenticate
from orders.http.problems import InvalidInput

View = TypeVar("View", bound=Callable[..., Any])
#: How each input is read, given the names of its fields, and the status of one that is not valid. In a header or a
#: query, that makes the whole request malformed.
INPUTS: dict[str, tuple[Callable[[Request, Iterable[str]], Any], int]] = {
    "header": (lambda sent, names: _headers(sent.headers, names), 400),
    "query": (lambda sent, _names: sent.args.to_dict(), 400),
    "body": (lambda sent, _names: sent.get_json(), 422),
}
Arguments = Mapping[str, Any]


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


def answers(
    *raises: type[OrderError], takes: Sequence[str] = (), sends: Sequence[str] = ()
) -> Callable[[View], View]:
    """Declare the errors of a route, except those that follow from its key, its scopes and its body; the request headers
    that are in no schema, and the headers of its success: both by their names in the API's description.
    """

    def decorator(view: View) -> View:
        vars(view).update(raises=raises, takes=takes, sends=sends)
        return view

    return decorator


class Routes(Blueprint):
    """The routes for one kind of thing.

    A view returns what its schema renders; or that and headers; or both and a status.
    """

    def __init__(
        self, name: str, title: str = "", description: str = "", *, prefix: str = "/v1"
    ) -> None:
        """Without a title, they are not in the document."""
        super().__init__(name, __name__, url_prefix=prefix)
        #: How the document groups them.
        self.tag = {"name": title, "description": description}

    def route(
        self,
        rule: str,
        *,
        methods: Collection[str] = ("GET",),
        strict_slashes: bool | None = None,
        guard: Callable[..., Arguments] | None = None,
        **contract: Any,
    ) -> Callable[[View], View]:
        """Serve a view. ``guard`` checks a request without a key, before anything else of it is read: it
        gets the view's arguments and returns them, with its own. The rest is of `Contract`.
        """

        def decorator(view: View) -> View:
            named = get_annotations(view)
            inputs = {name: named[name] for name in INPUTS if _is_schema(named.get(name))}
            made = Contract(view=view, is_public=bool(self.tag["name"]), inputs=inputs, **contract)
            self.add_url_rule(
                rule,
                view.__name__,
                _served(made, guard),
                methods=[*methods],
                strict_slashes=strict_slashes,
            )
            return view

        return decorator


def _is_schema(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _served(contract: Contract, guard: Callable[..., Arguments] | None) -> Callable[..., Any]:
    view, scopes, inputs = contract.view, contract.scopes, [*contract.inputs.items()]

    @wraps(view)
    def served(**arguments: Any) -> Any:
        if guard is not None:
            arguments = {**guard(**arguments)}
        if scopes is not None:
            authenticate(scopes)
        for name, schema in inputs:
            arguments[name] = _read(name, schema)
        return _rendered(view(**arguments), contract)

    served.contract = contract  # type: ignore[attr-defined]
    return served


def _read(name: str, schema: type[BaseModel]) -> BaseModel:
    """Raises InvalidInput, and what reading a body raises."""
    read, status = INPUTS[name]
    try:
        return schema.model_validate(read(request, schema.model_fields))
    except ValidationError as error:
        wrong: dict[str, list[str]] = {}
        # The place of what is wrong begins with the tag of a union, which is in no body.
        tags = int(issubclass(schema, RootModel))
        for each in error.errors():
            place = ".".join(map(str, each["loc"][tags:]))
            wrong.setdefault(place or "_schema", []).append(each["msg"])
        raise InvalidInput(status, wrong) from error


def _headers(sent: Headers, names: Iterable[str]) -> dict[str, str]:
    given = ((name, sent.get(name.replace("_", "-"))) for name in names)
    return {name: value for name, value in given if value is not None}


class Json(Response):
    """Its headers are complete, unless it may have no body, or a prefix of its paths has to be encoded."""

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:
        if self.status_code == HTTPStatus.NO_CONTENT or environ.get("SCRIPT_NAME"):
            return super().get_wsgi_headers(environ)
        return self.headers


def _rendered(result: Any, contract: Contract) -> Any:
    status, headers = contract.status, {}
    if isinstance(result, tuple):
        result, headers, *other = result
        status = other[0] if other else status
    if result is not None and contract.returns is None:
        return result
    text = (
        contract.returns.model_validate(result).model_dump_json() + "\n" if contract.returns else ""
    )
    return Json(text, status, headers, mimetype="application/json")
