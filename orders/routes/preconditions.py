"""Conditional requests: entity tags and If-Match, RFC 9110 section 13."""

from flask import request

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
