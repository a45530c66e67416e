"""Conditional requests: entity tags and If-Match, RFC 9110 section 13."""

import re

from flask import request
from werkzeug.exceptions import BadRequest

from orders.errors import PreconditionRequired
from orders.http.schemas.types import IF_MATCH, MAX_IF_MATCH
from orders.stock.domain import Expected

TAG = re.compile(r'(W/)?"([!#-~]*)"')


def etag(version: object) -> dict[str, str]:
    """The header that names this version of a resource."""
    return {"ETag": f'"{version}"'}


def expected_versions() -> list[str] | None:
    """The versions that If-Match names; None for ``*``, any. Weak tags match nothing.

    Raises PreconditionRequired without the header, BadRequest if it is malformed.
    """
    given = request.headers.get("If-Match")
    if given is None:
        raise PreconditionRequired
    given = given.strip()
    if len(given) > MAX_IF_MATCH or not re.fullmatch(IF_MATCH, given):
        raise BadRequest('If-Match is * or a list of ETags, as "1", "2".')
    if given == "*":
        return None
    return [tag for weak, tag in TAG.findall(given) if not weak]


def expected() -> Expected:
    """What If-Match or If-None-Match expects; without either, that there is nothing yet.

    Raises BadRequest for any other If-None-Match, and for both headers at once.
    """
    if "If-None-Match" not in request.headers:
        exists = "If-Match" in request.headers
        return Expected(expected_versions() if exists else [], exists=exists or None)
    if "If-Match" in request.headers or request.headers["If-None-Match"] != "*":
        raise BadRequest("Send If-Match, or If-None-Match with *.")
    return Expected([], exists=False)
