"""What schemathesis is told about this service beyond its description."""

import os
import re
import time
import zlib
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import schemathesis
from requests import PreparedRequest
from requests.auth import AuthBase
from schemathesis import Case, CheckContext, Response
from schemathesis.core.failures import Failure
from schemathesis.core.parameters import ParameterLocation

from orders.features.signing.signatures import signed  # <providers/>
from tests.openapi.fuzz import SKUS

SKU = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"
CURSOR = r"[A-Za-z0-9_-]{1,200}"
#: The codes of a request that is not as documented.
NOT_AS_DOCUMENTED = {"bad_request", "unprocessable_entity"}
#: What a schema cannot say of a value, in the service's words.
BEYOND_A_SCHEMA = (
    "This cursor is",
    "two items have the same SKU",
    "do not go together",
    "send status, or provider and reference",
    "name a client too",
    "or If-None-Match with *",
    "it changes nothing",
    "and may have 4096",
    "it has a NUL character",
    "it has a surrogate without its other half",
)


@schemathesis.hook  # type: ignore[untyped-decorator]
def map_body(context: Any, body: Any) -> Any:  # noqa: ARG001  its name is how it is recognised
    """A body that means the same to the schema, and more to the service."""
    return _meaningful(body)


@schemathesis.hook  # type: ignore[untyped-decorator]
def map_query(context: Any, query: Any) -> Any:  # noqa: ARG001
    """Without most of the cursors that look like one: none of them is."""
    cursor = query.get("cursor") if isinstance(query, dict) else None
    if isinstance(cursor, str) and re.fullmatch(CURSOR, cursor) and len(cursor) % 4:
        return {name: value for name, value in query.items() if name != "cursor"}
    return query


def _meaningful(value: Any) -> Any:
    """Most SKUs as one that is in stock."""
    if isinstance(value, list):
        return [_meaningful(each) for each in value]
    if isinstance(value, dict):
        return {
            name: _stocked(each) if name == "sku" else _meaningful(each)
            for name, each in value.items()
        }
    return value


def _stocked(sku: Any) -> Any:
    if not isinstance(sku, str) or not re.fullmatch(SKU, sku) or sku in SKUS:
        return sku
    return [*SKUS, sku][zlib.crc32(sku.encode()) % (len(SKUS) + 1)]


# <providers>
class Signed(AuthBase):  # type: ignore[misc]
    """Signs a report of a payment, as its provider does, for its endpoint."""

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        address = urlsplit(str(request.url))
        request.url = urlunsplit(address._replace(path=os.environ["FUZZ_ENDPOINT"]))
        keys = [os.environ["FUZZ_SECRET"]]
        request.headers.update(signed("fuzz", body, keys, now_seconds=time.time()))
        return request


# </providers>


@schemathesis.hook  # type: ignore[untyped-decorator]
def before_call(context: Any, case: Case, kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    """Signs what takes a signature in place of a key, unless it is wrong in what is signed.

    An empty Content-Length goes: the HTTP server refuses it before the application sees it.
    """
    if case.headers and case.headers.get("Content-Length") == "":
        del case.headers["Content-Length"]
    # <providers>
    if case.operation.label != "POST /v1/providers/{endpoint_id}/webhook" or case.meta is None:
        return
    wrong = map(case.meta.is_negative_at, (ParameterLocation.HEADER, ParameterLocation.PATH))
    if not any(wrong):
        kwargs["auth"] = Signed()
    # </providers>


@schemathesis.check  # type: ignore[untyped-decorator]
def refusal_has_a_reason(ctx: CheckContext, response: Response, case: Case) -> None:  # noqa: ARG001
    """Only a request that is not as documented gets the code of one."""
    generation = case.meta.generation if case.meta else None
    if generation is None or not generation.mode.is_positive:
        return
    if response.status_code not in (400, 422):
        return
    problem = response.json()
    said = f"{problem.get('detail')} {problem.get('errors')}"
    if problem["code"] in NOT_AS_DOCUMENTED and not any(each in said for each in BEYOND_A_SCHEMA):
        raise Failure(
            operation=case.operation.label,
            title="A request that is as documented is refused",
            message=said,
        )
