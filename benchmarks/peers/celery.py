"""Celery on Redis."""

import os
from collections.abc import Iterable
from datetime import UTC, datetime

from celery import Celery

from benchmarks.peers import work

app = Celery("peers", broker=os.environ["REDIS_URL"])
app.conf.update(
    task_acks_late=True,  # a crash loses no task
    task_ignore_result=True,
    worker_enable_remote_control=False,
)
cancel = app.task(work.cancel, name="cancel")
note = app.task(work.note, name="note")


def enqueue(order_ids: Iterable[str]) -> None:
    for order_id in order_ids:
        cancel.delay(order_id)


def schedule(due_ms: Iterable[float]) -> None:
    for due in due_ms:
        note.apply_async([due], eta=datetime.fromtimestamp(due / 1000, UTC))
