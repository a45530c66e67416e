"""How tests settle what they have claimed."""

from collections.abc import Sequence

from worker import DelayQueue, Settlement, Task, Verb


def ack(queue: DelayQueue, tasks: Sequence[Task]) -> None:
    queue.settle([Settlement(tasks, Verb.DONE)])


def release(queue: DelayQueue, tasks: Sequence[Task]) -> None:
    queue.settle([Settlement(tasks, Verb.RELEASED)])


def retry(
    queue: DelayQueue,
    retries: Sequence[tuple[Task, float]],
    verb: Verb = Verb.AGAIN,
    *,
    now_ms: int | None = None,
) -> None:
    """Each after its own delay in ms."""
    queue.settle([Settlement([task], verb, delay) for task, delay in retries], now_ms=now_ms)


def dead_letter(
    queue: DelayQueue,
    burials: Sequence[tuple[Task, str, BaseException | None]],
    *,
    now_ms: int | None = None,
) -> None:
    """Each with its reason and its error."""
    rows = [Settlement([task], Verb.DEAD, 0, error, reason) for task, reason, error in burials]
    queue.settle(rows, now_ms=now_ms)
