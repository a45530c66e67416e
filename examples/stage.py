"""What the examples share: each runs in one process."""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Debugging

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
    """An empty SQLite database, deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        engine = sa.create_engine(f"sqlite:///{folder}/scratch.db")
        yield engine
        engine.dispose()


@contextmanager
def printing_mail_server() -> Iterator[int]:
    """An SMTP server that prints what it receives. Yields its port."""
    server = Controller(Debugging(), hostname="127.0.0.1", port=free_port())
    server.start()
    yield server.port
    server.stop()
