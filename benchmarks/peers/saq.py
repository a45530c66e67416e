"""SAQ on Redis. It runs plain functions in threads; coroutines were no faster here."""

import asyncio
import os
from collections.abc import Iterable

from saq import Queue

from benchmarks.peers import work

queue = Queue.from_url(os.environ["REDIS_URL"])


def cancel(_context: object, *, order_id: str) -> None:
    work.cancel(order_id)


def note(_context: object, *, due_ms: float) -> None:
    work.note(due_ms)


settings = {"queue": queue, "functions": [cancel, note]}


def enqueue(order_ids: Iterable[str]) -> None:
    async def send() -> None:
        for order_id in order_ids:
            # With only one attempt, a task whose worker crashed would be given up.
            await queue.enqueue("cancel", order_id=order_id, retries=3)
        await queue.disconnect()

    asyncio.run(send())


def schedule(due_ms: Iterable[float]) -> None:
    """Schedule to the millisecond: SAQ asks for whole seconds, which would be early."""

    async def send() -> None:
        for due in due_ms:
            await queue.enqueue("note", due_ms=due, scheduled=due / 1000)
        await queue.disconnect()

    asyncio.run(send())
