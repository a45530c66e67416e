"""High, medium and low: due tasks of a higher queue go first.

python -m examples priorities
"""

from worker import Consumer, DelayQueue, Flow, Task, connect, one_at_a_time

PRIORITIES = ["high", "medium", "low"]


def handle(task: Task) -> None:
    print("handled", task.id)


def flows() -> list[Flow]:
    """For a worker: flows of one pool share threads, and the first one that has work goes first."""
    return [Flow(name=name, handler=one_at_a_time(handle), pool="all") for name in PRIORITIES]


def play(redis_url: str) -> None:
    """In your own loop: a consumer serves its queues in the order given."""
    with connect(redis_url) as client, Consumer(redis_url, PRIORITIES) as consumer:
        for name in reversed(PRIORITIES):
            for n in (1, 2):
                DelayQueue(client, name).schedule(f"{name} {n}", delay_ms=0)
        for _ in range(6):
            with consumer.take() as task:
                handle(task)
