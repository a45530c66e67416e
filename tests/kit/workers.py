"""Workers under test, and what they leave in their queues."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from devtools.processes import Process
from tests.kit.queue_state import State, state
from worker import DelayQueue, Worker, connect
from worker.queue.environment import Environment

#: What a queue stores of its workers and their claims, and not of its tasks.
OF_WORKERS = ("workers", "heard", "sweeper", "alone")


@contextmanager
def running(*workers: Worker) -> Iterator[None]:
    """Workers on threads of this process."""
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


@contextmanager
def frozen(*processes: Process) -> Iterator[None]:
    """Stop processes meanwhile, so that they get ahead of the test on no machine."""
    for process in processes:
        process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def tasks(queue: DelayQueue) -> State:
    """The queue's whole state, but for what it stores of its workers."""
    return {name: content for name, content in state(queue).items() if name not in OF_WORKERS}


def deliveries(queue: DelayQueue) -> dict[str, int]:
    """The tasks whose lease has ended, and how often."""
    counts = {
        task_id: int(kept[64:].split()[5])
        for task_id, kept in state(queue).get("tokens", {}).items()
    }
    return {task_id: count for task_id, count in counts.items() if count}


def with_connections(**settings: Any) -> Environment:
    """An environment whose connections have these settings, too."""

    def made(url: str, **options: Any) -> redis.Redis:
        client = connect(url, **options)
        client.connection_pool.connection_kwargs |= settings
        return client

    return Environment(connect=made)
