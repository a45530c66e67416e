"""High, medium and low: what is due in a higher queue goes first.

python -m examples priorities
"""

from worker import Consumer, DelayQueue, Flow, Task, connect, one_at_a_time

PRIORITIES = ["high", "medium", "low"]


def handle(task: Task) -> None:
    print("handled", task.id)


def flows() -> list[Flow]:
    """For a worker: flows of one pool share their threads, and the first that has work goes first."""
    return [Flow(name=name, handler=one_at_a_time(handle), pool="all") for name in PRIORITIES]


def play(redis_url: str) -> None:
    """For a loop of one's own: a consumer names its queues in order."""
    with connect(redis_url) as client, Consumer(redis_url, PRIORITIES) as consumer:
        for name in reversed(PRIORITIES):
            for n in (1, 2):
                DelayQueue(client, name).schedule(f"{name} {n}", delay_ms=0)
        for _ in range(6):
            with consumer.take() as task:
                handle(task)
