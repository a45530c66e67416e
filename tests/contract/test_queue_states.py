"""Every operation in a random order, against a model of the queue."""

import redis

from tests.contract.model import Machine, play


def test_the_queue_does_what_its_model_says_in_any_order(client: redis.Redis) -> None:
    play(lambda: Machine(client), 25, 150)
