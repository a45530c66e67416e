"""Somebody else holds the lock: postpone the task, and continue with the others.

python -m examples lock_conflict
"""

import redis

from worker import Consumer, DelayQueue, Retry, Task, connect


def transfer(task: Task, client: redis.Redis) -> None:
    """Change an account under its lock, which expires if this process dies.

    A thread that finds the lock taken does not wait for it. `Retry` is not a failure, so a lock that is
    held for long never makes a dead letter.
    """
    account = task.payload.decode()
    lock = client.lock(f"account:{account}", timeout=10)
    if not lock.acquire(blocking=False):
        print(task.id, "finds the account locked")
        raise Retry(delay_ms=500)
    try:
        print(task.id, "done")
    finally:
        lock.release()


def play(redis_url: str) -> None:
    """The first transfer finds its account locked, the second overtakes it."""
    with connect(redis_url) as client, Consumer(redis_url, "transfers") as consumer:
        queue = DelayQueue(client, "transfers")
        queue.schedule("first", 1, b"ada")
        queue.schedule("second", 2, b"bob")
        other = client.lock("account:ada", timeout=10)
        other.acquire()
        for n in range(3):
            with consumer.take() as task:
                transfer(task, client)
            if n == 1:
                other.release()
