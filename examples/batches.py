"""A batch in one call, such as one INSERT or one request, without doing any task twice.

python -m examples batches
"""

from collections.abc import Sequence

from worker import Consumer, DelayQueue, Flow, Outcome, Retry, Task, connect


def send(tasks: Sequence[Task]) -> dict[str, Outcome]:
    """Send the whole batch. Tasks that are not in the result are done.

    If this raised, the batch would be run again in halves: raise only before anything has taken effect.
    """
    refused = [task for task in tasks if task.payload == b"busy" and task.attempt == 1]
    print(f"{len(tasks)} in one call, {len(refused)} to be tried again")
    return {task.id: Retry(delay_ms=100) for task in refused}


def flow() -> Flow:
    """For a worker."""
    return Flow(name="messages", handler=send, batch_size=100)


def play(redis_url: str) -> None:
    """In your own loop: 250 tasks in three calls, then the three that were refused again."""
    with connect(redis_url) as client, Consumer(redis_url, "messages") as consumer:
        queue = DelayQueue(client, "messages")
        queue.schedule_many((f"m{n}", 0, b"busy" if n % 100 == 0 else b"") for n in range(250))
        while queue.stats().scheduled:
            with consumer.take_many(100) as tasks:
                tasks.outcomes.update(send(tasks))
