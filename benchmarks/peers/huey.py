"""Huey on Redis."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime

from huey import RedisHuey

from benchmarks.peers import work

app = RedisHuey("peers", url=os.environ["REDIS_URL"], results=False)
cancel = app.task()(work.cancel)
note = app.task()(work.note)


def enqueue(order_ids: Iterable[str]) -> None:
    for order_id in order_ids:
        cancel(order_id)


def schedule(due_ms: Iterable[float]) -> None:
    for due in due_ms:
        note.schedule((due,), eta=datetime.fromtimestamp(due / 1000, UTC))
