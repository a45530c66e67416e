"""How long tests with many rounds go on: ``LONG=1``, which ``make test-all`` sets, asks for more.

A test that is never quick is marked ``slow`` instead.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = os.environ.get("LONG") == "1"


def rounds(short: int, long: int) -> int:
    """How many rounds a test plays in ``make test``, and in ``make test-all``."""
    return long if LONG else short


def quick_first(cases: Iterable[Any]) -> list[Any]:
    """Cases of one test: ``make test`` runs the first of them, ``make test-all`` every one.

    A case of several arguments is a plain tuple.
    """
    first, *others = cases
    arguments = [each if type(each) is tuple else (each,) for each in others]
    return [first, *(pytest.param(*each, marks=pytest.mark.slow) for each in arguments)]
