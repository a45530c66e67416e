"""Two or three of the orders' operations on one order, stepped at their locks.

However they meet, what comes of it is what would have come of one after the other.
"""

import random
from itertools import product

import pytest
from structlog.testing import capture_logs

from tests.interleavings.meetings import CASES, OPERATIONS, at, search
from tests.kit.length import quick_first, rounds
from tests.kit.shop import Shop

NAMES = [*OPERATIONS][: rounds(7, len(OPERATIONS))]
PAIRS = [*product(NAMES, repeat=2)]
#: Of those that change the deadline, the stock or the attempts: the same ones in each run, so many in each case.
TRIPLES, SEED, SAMPLE = [*product([*OPERATIONS][:11], repeat=3)], 1, 80


@pytest.mark.parametrize(("begin", "gate"), quick_first(CASES))
def test_two_operations_do_what_they_would_in_turn(
    patient_shop: Shop, begin: str, gate: str
) -> None:
    with capture_logs():
        search(patient_shop, begin, gate, at(gate, PAIRS))


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "gate"), CASES)
def test_three_operations_do_what_they_would_in_turn(
    patient_shop: Shop, begin: str, gate: str
) -> None:
    with capture_logs():
        search(patient_shop, begin, gate, random.Random(SEED).sample(at(gate, TRIPLES), SAMPLE))
