"""What a consumer refuses, before it asks Redis anything."""

from collections.abc import Sequence
from typing import Any

import pytest

from worker import Consumer, ConsumerClosed, Task
from worker.runtime.isolation import BatchResult

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("queues", [[], ["a", "a"]])
def test_a_consumer_needs_queues_each_of_them_once(queues: Sequence[str]) -> None:
    with pytest.raises(ValueError, match="at least one queue"):
        Consumer(NOWHERE, queues)


@pytest.mark.parametrize(
    "settings", [{"lease_seconds": 0}, {"max_failures": 0}, {"max_deliveries": 1}]
)
def test_a_consumer_refuses_what_a_flow_refuses(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Consumer(NOWHERE, "a", **settings)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e9])
def test_a_time_out_is_one_that_can_be_waited_for(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout_seconds"), Consumer(NOWHERE, "a").take(seconds):
        raise AssertionError


def test_a_consumer_closes_although_redis_never_took_what_it_did() -> None:
    consumer = Consumer(NOWHERE, "a")
    [station] = consumer._lane.stations
    assert not station.settler.settle(BatchResult(done=[Task("a")]))
    consumer.close()
    with pytest.raises(ConsumerClosed), consumer.take():
        raise AssertionError


def test_a_single_queue_may_be_named_by_itself() -> None:
    [station] = Consumer(NOWHERE, "orders")._lane.stations
    assert station.queue.name == "orders"
