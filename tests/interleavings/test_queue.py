"""The queue's scripts in every order."""

import random

import pytest
import redis
from structlog.testing import capture_logs

from tests.interleavings.lanes import ConsumerWorld, LaneWorld, RecurringWorld, WorkerWorld
from tests.interleavings.mistakes import IN_PYTHON, MISTAKES, planted
from tests.interleavings.queue_world import QueueWorld
from tests.interleavings.scenarios import (
    BACKLOGS,
    CONSUMERS,
    LARGE,
    PAIRS,
    RECURRING,
    SCENARIOS,
    TRIPLES,
)
from tests.kit.explorer import explore
from tests.kit.length import quick_first
from tests.kit.mistakes import planted_in_python

#: The same triples in each run, so many steps of each; `make explore` has others.
SEED, SAMPLE, MOST_STEPS = 1, 20, 2000


@pytest.mark.parametrize("line", SCENARIOS)
def test_no_order_breaks_a_promise(server: redis.Redis, line: str) -> None:
    assert explore(QueueWorld(server), line).complete


@pytest.mark.slow
@pytest.mark.parametrize("line", [*LARGE, *PAIRS])
def test_no_order_of_more_moves_does(server: redis.Redis, line: str) -> None:
    assert explore(QueueWorld(server), line).complete


@pytest.mark.slow
def test_no_order_of_three_more_moves_is_found_that_does(server: redis.Redis) -> None:
    for line in random.Random(SEED).sample(TRIPLES, SAMPLE):
        explore(QueueWorld(server), line, MOST_STEPS)


@pytest.mark.parametrize("line", quick_first(CONSUMERS))
def test_no_order_of_two_consumers_calls_does(server: redis.Redis, line: str) -> None:
    search(ConsumerWorld(server), line)


@pytest.mark.parametrize("line", quick_first(RECURRING))
def test_no_order_of_two_recurring_workers_calls_does(server: redis.Redis, line: str) -> None:
    search(RecurringWorld(server), line)


@pytest.mark.parametrize("line", quick_first(BACKLOGS))
def test_no_order_of_two_workers_calls_does(server: redis.Redis, line: str) -> None:
    search(WorkerWorld(server), line)


def search(world: LaneWorld, line: str) -> None:
    with capture_logs():  # to write them would take longer than all the rest
        assert explore(world, line).complete


def test_each_mistake_to_plant_has_its_place_in_the_code(server: redis.Redis) -> None:
    for mistake in MISTAKES:
        with planted(QueueWorld(server), mistake):
            pass
    for each in IN_PYTHON:
        with planted_in_python(each):
            pass
