"""Redisson's delayed queue in Python: offer(element, delay), take(), destroy().

python -m examples redisson
"""

from uuid import uuid4

from worker import Consumer, DelayQueue, connect


class RDelayedQueue:
    """The same element may be offered several times, so each offer has its own id."""

    def __init__(self, redis_url: str, name: str) -> None:
        self._queue = DelayQueue(connect(redis_url), name)
        self._consumer = Consumer(redis_url, name)

    def offer(self, element: bytes, delay_ms: float) -> str:
        self._queue.schedule(offer_id := str(uuid4()), delay_ms=delay_ms, payload=element)
        return offer_id

    def cancel(self, offer_id: str) -> bool:
        """O(log n); Redisson's remove(element) searches a list."""
        return self._queue.cancel(offer_id).value == "removed"

    def take(self) -> bytes:
        """Block. As in Redisson, an element is lost if its taker dies now; `Consumer` alone avoids that."""
        with self._consumer.take() as task:
            return task.payload

    def destroy(self) -> None:
        self._consumer.close()
        self._queue.destroy()


def play(redis_url: str) -> None:
    """Two messages arrive on time, and the third is cancelled."""
    queue = RDelayedQueue(redis_url, "orders")
    queue.offer(b"msg2", 2000)
    queue.offer(b"msg1", 300)
    print("cancelled:", queue.cancel(queue.offer(b"msg3", 100)))
    print(queue.take(), queue.take())
    queue.destroy()
