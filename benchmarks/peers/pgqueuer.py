"""PgQueuer on PostgreSQL. Its tasks are coroutines; the work is done in threads.

    python -m benchmarks.peers.pgqueuer

PgQueuer has a command for this, but version 1.6.0 of it does not start with the current typer.
"""

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import time

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers import work

THREADS = 4
#: The fastest size measured.
BATCH_SIZE = 100
#: How often it polls for tasks that have become due; 30 s by default.
LOOK_EVERY = timedelta(seconds=0.1)


async def run() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    queue = PgQueuer(AsyncpgDriver(await _connect()))

    queue.entrypoint("cancel")(cancel)
    queue.entrypoint("note")(note)
    await queue.run(dequeue_timeout=LOOK_EVERY, batch_size=BATCH_SIZE)


async def cancel(job: Job) -> None:
    await asyncio.to_thread(work.cancel, job.payload.decode())


async def note(job: Job) -> None:
    work.note(float(job.payload))


async def _connect() -> asyncpg.Connection:
    return await asyncpg.connect(os.environ["DATABASE_URL"])


def prepare() -> None:
    """Create its tables anew."""

    async def install() -> None:
        connection = await _connect()
        queries = Queries(AsyncpgDriver(connection))
        if await queries.schema_is_installed():
            await queries.uninstall()
        await queries.install()
        await connection.close()

    asyncio.run(install())


def enqueue(order_ids: Iterable[str]) -> None:
    _send("cancel", [order_id.encode() for order_id in order_ids], None)


def schedule(due_ms: Iterable[float]) -> None:
    due = list(due_ms)
    now_ms = time() * 1000
    delays: list[timedelta | None] = [timedelta(milliseconds=each - now_ms) for each in due]
    _send("note", [str(each).encode() for each in due], delays)


def _send(name: str, payloads: list[bytes | None], delays: list[timedelta | None] | None) -> None:
    async def send() -> None:
        connection = await _connect()
        count = len(payloads)
        queries = Queries(AsyncpgDriver(connection))
        await queries.enqueue([name] * count, payloads, [0] * count, delays)
        await connection.close()

    asyncio.run(send())


if __name__ == "__main__":
    asyncio.run(run())
