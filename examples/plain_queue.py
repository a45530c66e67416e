"""A queue without a handler or a worker: offer in one place, take in another, at once or after a delay.

python -m examples plain_queue
"""

import threading

from worker import Consumer, DelayQueue, connect


def play(redis_url: str) -> None:
    """One thread takes, and blocks meanwhile; this one offers, some with a delay."""
    with connect(redis_url) as client, Consumer(redis_url, "notify") as consumer:

        def take_four() -> None:
            for _ in range(4):
                with consumer.take() as task:  # woken when one is due; no polling
                    print("took", task.id)

        taking = threading.Thread(target=take_four)
        taking.start()
        # A server with `timeout` set closes idle connections. No code here has to handle that:
        # a consumer reconnects, and takes what became due in the meantime.
        client.client_kill_filter(_type="pubsub")
        queue = DelayQueue(client, "notify")
        queue.schedule("pear", delay_ms=1_000)
        for fruit in ("apple", "banana", "cherry"):
            queue.schedule(fruit, delay_ms=0)
        taking.join()
