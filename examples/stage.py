"""What the examples share: each runs in one process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Debugging

from devtools.postgres import Postgres
from devtools.processes import free_port
from worker import DelayQueue, Flow, Worker


@contextmanager
def working(redis_url: str, *flows: Flow) -> Iterator[Worker]:
    """A worker in a thread of this process. A service starts ``python -m worker run`` instead."""
    worker = Worker(flows, redis_url)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def wait_until_empty(queue: DelayQueue) -> None:
    """Wait until every task is done."""
    while (stats := queue.stats()).scheduled + stats.leased:
        time.sleep(0.05)


@contextmanager
def scratch_database() -> Iterator[sa.Engine]:
    """A PostgreSQL server of its own, deleted afterwards."""
    server = Postgres(fsync=False)
    try:
        engine = sa.create_engine(server.start().url())
        yield engine
        engine.dispose()
    finally:
        server.remove()


@contextmanager
def printing_mail_server() -> Iterator[int]:
    """An SMTP server that prints what it receives. Yields its port."""
    server = Controller(Debugging(), hostname="127.0.0.1", port=free_port())
    server.start()
    yield server.port
    server.stop()
