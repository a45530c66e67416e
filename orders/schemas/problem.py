"""Errors."""

from orders.schemas.types import Out


class ProblemOut(Out):
    """An error, as RFC 9457 has it. ``code`` is stable."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str | None = None
