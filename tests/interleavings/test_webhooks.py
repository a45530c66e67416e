"""The sending of webhooks, in every order of its statements, and the turns of those who wait to be sent."""

import pytest

from tests.conftest import Shop
from tests.interleavings.explorer import explore
from tests.interleavings.scenarios import SENDING_PAIRS, SENDINGS, TURNS
from tests.interleavings.turns_world import TurnsWorld
from tests.interleavings.webhook_world import webhook_world
from tests.length import quick_first

#: A database is made for each test.
PARTS = 10
LONGER = [pytest.param(line, marks=pytest.mark.slow) for line in SENDINGS[3:]]


@pytest.mark.parametrize("line", [*SENDINGS[:3], *LONGER])
def test_no_order_of_two_senders_statements_does(shop: Shop, line: str) -> None:
    with webhook_world(shop) as world:
        assert explore(world, line).complete


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_order_of_two_moves_beside_a_sender_does(shop: Shop, part: int) -> None:
    for line in SENDING_PAIRS[part::PARTS]:
        with webhook_world(shop) as world:
            assert explore(world, line).complete


@pytest.mark.parametrize("threads", quick_first([2, 3, 4, 8]))
def test_nobody_waits_for_ever_for_a_turn(threads: int) -> None:
    for line in TURNS:
        assert explore(TurnsWorld(threads), line).complete
