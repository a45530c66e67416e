"""RQ on Redis."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime

import redis
from rq import Queue, Retry

from benchmarks.peers import work

queue = Queue(connection=redis.Redis.from_url(os.environ["REDIS_URL"]), serializer="json")


def enqueue(order_ids: Iterable[str]) -> None:
    for order_id in order_ids:
        # Without a retry, a task whose worker crashed would be given up. No result is kept.
        queue.enqueue(work.cancel, order_id, retry=Retry(max=3), result_ttl=0)


def schedule(due_ms: Iterable[float]) -> None:
    for due in due_ms:
        queue.enqueue_at(datetime.fromtimestamp(due / 1000, UTC), work.note, due, result_ttl=0)
