"""Conditional requests: entity tags and If-Match, RFC 9110 section 13."""

from flask import request
from werkzeug.exceptions import BadRequest

from orders.domain import Expected
from orders.errors import PreconditionRequired


def etag(version: object) -> dict[str, str]:
    """The header that names this version of a resource."""
    return {"ETag": f'"{version}"'}


def expected_versions() -> frozenset[str] | None:
    """The versions that If-Match names; None for ``*``, any. Weak tags match nothing.

    Raises PreconditionRequired without the header.
    """
    if "If-Match" not in request.headers:
        raise PreconditionRequired
    if request.if_match.star_tag:
        return None
    return frozenset(request.if_match.as_set())


def expected() -> Expected:
    """What If-Match or If-None-Match expects; without either, that there is nothing yet.

    Raises BadRequest for what this server does not compare.
    """
    if "If-None-Match" not in request.headers:
        exists = "If-Match" in request.headers
        return Expected(expected_versions() if exists else frozenset(), exists=exists or None)
    if "If-Match" in request.headers or not request.if_none_match.star_tag:
        raise BadRequest("Send If-Match, or If-None-Match with *.")
    return Expected(frozenset(), exists=False)
