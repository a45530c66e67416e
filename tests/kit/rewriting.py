"""Has an engine send other statements than it is told to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa


@contextmanager
def rewriting(engine: sa.Engine, rewritten: Callable[[str], str]) -> Iterator[None]:
    def rewrite(*arguments: Any) -> tuple[str, Any]:
        _, _, text, parameters, *_ = arguments
        return rewritten(text), parameters

    sa.event.listen(engine, "before_cursor_execute", rewrite, retval=True)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", rewrite)


def with_clock(text: str, of: str) -> str:
    """A statement with another clock, in which {} is PostgreSQL's."""
    for clock in ("statement_timestamp()", "clock_timestamp()"):
        text = text.replace(clock, of.format(clock))
    return text
