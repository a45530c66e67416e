"""Mistakes in Python and in SQL, each planted to see that a search finds it."""

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.kit.rewriting import rewriting


class PythonMistake(NamedTuple):
    """A piece of a function."""

    function: Any
    right: str
    wrong: str

    def is_in(self, package: str) -> bool:
        return str(self.function.__module__).startswith(package)

    def describe(self) -> str:
        return f"{self.function.__qualname__}: {self.wrong!r} for {self.right!r}"


class SqlMistake(NamedTuple):
    """A piece of the statements that have it, and where it is found: what a scene begins with, what is locked, and
    who meets; in those of webhooks, in any of their scenarios.
    """

    right: str
    wrong: str
    where: tuple[str, ...] = ()
    #: Only in statements with this.
    only: str = ""

    def describe(self) -> str:
        return f"SQL: {self.wrong!r} for {self.right!r}"


FUNCTIONS = """
    SELECT pg_get_functiondef(oid) FROM pg_proc
    WHERE prorettype = 'trigger'::regtype AND pronamespace = current_schema()::regnamespace
"""


@contextmanager
def planted_in_python(mistake: PythonMistake) -> Iterator[None]:
    """Have a function do this instead."""
    function = inspect.unwrap(mistake.function)
    source, scope = textwrap.dedent(inspect.getsource(function)), dict[str, Any]()
    assert mistake.right in source, f"{mistake.function} has no {mistake.right!r}"
    wrong = source.replace(mistake.right, mistake.wrong or "pass")
    exec(wrong, function.__globals__, scope)  # noqa: S102  it is this project's own
    right, function.__code__ = function.__code__, scope[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right


@contextmanager
def planted_in_sql(engine: sa.Engine, mistake: SqlMistake) -> Iterator[list[str]]:
    """Have the engine send this instead. Yields the statements that had it."""
    changed: list[str] = []

    def rewritten(statement: str) -> str:
        text = " ".join(statement.split())
        if mistake.only not in text or mistake.right not in text:
            return statement
        changed.append(text)
        return text.replace(mistake.right, mistake.wrong)

    with _planted_in_triggers(engine, mistake), rewriting(engine, rewritten):
        yield changed


@contextmanager
def _planted_in_triggers(engine: sa.Engine, mistake: SqlMistake) -> Iterator[None]:
    """Have the functions of triggers do this instead."""

    def define(functions: Iterable[str]) -> None:
        with engine.begin() as connection:
            for function in functions:
                connection.exec_driver_sql(function)

    with engine.connect() as connection:
        found = connection.exec_driver_sql(FUNCTIONS).scalars().all()
    functions = [each for each in found if mistake.right in each and mistake.only in each]
    define(each.replace(mistake.right, mistake.wrong) for each in functions)
    try:
        yield
    finally:
        define(functions)
