"""Notify a shop of a payment, repeatedly until it answers, as payment providers do.

python -m examples payment_notification
"""

import time
from collections.abc import Callable

from examples.stage import wait_until_empty, working
from worker import DelayQueue, Delays, Flow, Task, connect, one_at_a_time

MINUTE, HOUR = 60, 3600
#: Seconds after each failure: 15 attempts over a day.
SCHEDULE = (
    15,
    15,
    30,
    3 * MINUTE,
    *[10 * MINUTE] * 2,
    *[30 * MINUTE] * 3,
    HOUR,
    *[3 * HOUR] * 3,
    *[6 * HOUR] * 2,
)

#: Calls the shop; raises when it does not answer with success.
Call = Callable[[str, str], None]


def flow(call: Call, delays: tuple[float, ...] = SCHEDULE) -> Flow:
    """A call that still fails after all these delays becomes a dead letter, with the last traceback."""

    def notify(task: Task) -> None:
        call(task.payload.decode(), task.idempotency_key)

    return Flow(
        name="notifications",
        handler=one_at_a_time(notify),
        backoff=Delays(*delays),
        max_failures=len(delays) + 1,
        threads=4,
    )


def paid(queue: DelayQueue, order_id: str, url: str) -> None:
    queue.schedule(f"paid {order_id}", delay_ms=0, payload=url.encode())


def play(redis_url: str) -> None:
    """A shop that answers at the fourth attempt, with delays a hundredth as long."""
    attempts = []

    def call(url: str, idempotency_key: str) -> None:
        attempts.append(time.monotonic())
        print(f"{attempts[-1] - attempts[0]:.2f} s: {url}, key {idempotency_key}")
        if len(attempts) < 4:
            raise ConnectionError("the shop does not answer")

    with (
        connect(redis_url) as client,
        working(redis_url, flow(call, tuple(s / 100 for s in SCHEDULE))),
    ):
        queue = DelayQueue(client, "notifications")
        paid(queue, "7", "https://shop.example/paid")
        wait_until_empty(queue)
