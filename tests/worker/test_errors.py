"""How errors are described, in logs and with dead letters."""

import time

import pytest
import sqlalchemy as sa

from tests.kit.clock import bound
from worker.errors import described, without_statements

STATEMENT = "SELECT x\nFROM y WHERE z = ANY (array[1])]\n" * 400


def failure() -> sa.exc.ProgrammingError:
    return sa.exc.ProgrammingError(STATEMENT, {"a": 1}, Exception("no such table: y"))


def test_a_description_has_no_sql() -> None:
    assert STATEMENT in str(failure())
    assert described(failure()) == "ProgrammingError: (builtins.Exception) no such table: y"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\nb", "a\nb"),
        (f"one: {failure()}\nmore\ntwo: {failure()}", "one: E\nmore\ntwo: E"),
        ("a\n[SQL: without its end", "a\n[SQL: without its end"),
    ],
)
def test_statements_are_left_out_wherever_they_are(text: str, left: str) -> None:
    assert without_statements(text) == left.replace("E", "(builtins.Exception) no such table: y")


def test_many_beginnings_take_no_longer_than_their_length() -> None:
    began = time.monotonic()
    assert without_statements("\n[SQL: " * 400_000)
    assert time.monotonic() - began < bound(2)
