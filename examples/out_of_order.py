"""Deadlines fire in order of time, in whatever order they were added.

python -m examples out_of_order
"""

import time
from collections.abc import Sequence
from itertools import accumulate

from worker import Consumer, DelayQueue, connect

SECONDS = [0.5, 0.4, 0.3, 0.2, 0.1]  # the longest is added first


def fired_by_a_ttl_queue(delays: Sequence[float]) -> list[float]:
    """When messages with a TTL each leave a RabbitMQ queue for its dead-letter exchange.

    RabbitMQ checks only the message at the head, so none leaves before those added earlier.
    """
    return [*accumulate(delays, max)]


def play(redis_url: str) -> None:
    """Compare both with the same delays."""
    print("added      ", SECONDS)
    print("a TTL queue", fired_by_a_ttl_queue(SECONDS))
    with connect(redis_url) as client, Consumer(redis_url, "hello") as consumer:
        queue = DelayQueue(client, "hello")
        now_ms = time.time() * 1000
        for seconds in SECONDS:
            queue.schedule(f"{seconds}", now_ms + 1000 * seconds)
        fired = []
        for _ in SECONDS:
            with consumer.take() as task:
                fired.append(float(task.id))
        print("this queue ", fired)
