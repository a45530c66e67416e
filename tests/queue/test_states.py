"""Every operation in a random order, against a model of the queue."""

import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.length import rounds
from tests.kit.queue_model import Machine


def test_the_queue_does_what_its_model_says_in_any_order(client: redis.Redis) -> None:
    """Rounds of fifty random steps, the same in every run of the same tests."""
    run_state_machine_as_test(
        lambda: Machine(client),  # type: ignore[arg-type]  # any callable that makes one will do
        settings=settings(
            max_examples=rounds(60, 150),
            stateful_step_count=50,
            deadline=None,
            # Not to explain a failure, which takes longer than the test may.
            phases=(Phase.generate, Phase.shrink),
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
