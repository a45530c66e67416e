"""The sending of webhooks, in every order of its statements, and the turns of those who wait to be sent."""

import pytest

from tests.kit.explorer import explore
from tests.kit.length import quick_first
from tests.kit.shop import Shop
from tests.webhooks.scenarios import SENDING_PAIRS, SENDINGS, TURNS
from tests.webhooks.turns import TurnsWorld
from tests.webhooks.world import webhook_world

#: A database is made for each test.
PARTS = 10
LONGER = [pytest.param(line, marks=pytest.mark.slow) for line in SENDINGS[3:]]


@pytest.mark.parametrize("line", [*SENDINGS[:3], *LONGER])
def test_no_order_of_two_senders_statements_does(patient_shop: Shop, line: str) -> None:
    with webhook_world(patient_shop) as world:
        assert explore(world, line).complete


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_order_of_two_moves_beside_a_sender_does(patient_shop: Shop, part: int) -> None:
    for line in SENDING_PAIRS[part::PARTS]:
        with webhook_world(patient_shop) as world:
            assert explore(world, line).complete


@pytest.mark.parametrize("threads", quick_first([2, 3, 4, 8]))
def test_nobody_waits_for_ever_for_a_turn(threads: int) -> None:
    for line in TURNS:
        assert explore(TurnsWorld(threads), line).complete
