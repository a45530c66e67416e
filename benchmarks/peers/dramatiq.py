"""dramatiq on Redis."""

import os
import time
from collections.abc import Iterable

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers import work

broker = RedisBroker(url=os.environ["REDIS_URL"])
dramatiq.set_broker(broker)
cancel = dramatiq.actor(work.cancel)
note = dramatiq.actor(work.note)


def enqueue(order_ids: Iterable[str]) -> None:
    for order_id in order_ids:
        cancel.send(order_id)


def schedule(due_ms: Iterable[float]) -> None:
    for due in due_ms:
        note.send_with_options(args=(due,), delay=due - time.time() * 1000)
