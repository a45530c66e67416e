"""The service's queues and their dead letters."""

from dataclasses import asdict
from typing import Any

from orders.errors import DeadLetterNotFound, QueueUnavailable
from orders.http.auth import log_key, services
from orders.http.contract import raises
from orders.http.routing import Routes
from orders.http.schemas.queue import DeadLetterQuery, DeadLettersOut, DeadLettersQuery, QueuesOut

queue = Routes(
    "queue",
    "Queue",
    "The queues of the service's workers, and their dead letters: tasks that are not tried again.",
)


@queue.get("/queue", returns=QueuesOut, scopes=["ops"])
@raises(QueueUnavailable)
def list_queues() -> Any:
    """The service's queues, and how many tasks are in each place."""
    stats = services().queues.stats()
    return {"data": [{"queue": name, **asdict(each)} for name, each in stats.items()]}


@queue.get("/queue/dead", returns=DeadLettersOut, scopes=["ops"])
@raises(QueueUnavailable)
def list_dead_letters(query: DeadLettersQuery) -> Any:
    """A queue's dead letters, newest first.

    A page may have fewer than `limit` and still not be the last. No letter is skipped when others are
    added, requeued or deleted meanwhile; some may be listed again.
    """
    found, end = services().queues.dead_letters(query.queue, query.after, most=query.limit)
    return {"data": found, "next_cursor": query.cursor_from(end)}


@queue.post(
    "/queue/dead/<task_id>/requeue",
    status=204,
    description="It is scheduled again.",
    scopes=["ops"],
)
@raises(DeadLetterNotFound, QueueUnavailable)
def requeue_dead_letter(task_id: str, query: DeadLetterQuery) -> Any:
    """Schedule a dead task again, due now.

    Its counters are reset. A 404 after a 503 most likely means that the first request succeeded.
    """
    if not services().queues.requeue(query.queue, [task_id]):
        raise DeadLetterNotFound
    log_key("requeue", queue=query.queue, task_id=task_id)


@queue.delete(
    "/queue/dead/<task_id>",
    status=204,
    description="It is deleted.",
    scopes=["ops"],
)
@raises(DeadLetterNotFound, QueueUnavailable)
def delete_dead_letter(task_id: str, query: DeadLetterQuery) -> Any:
    """Delete a dead task for good.

    Its order stays as it is. A 404 after a 503 most likely means that the first request succeeded.
    """
    if not services().queues.purge(query.queue, [task_id]):
        raise DeadLetterNotFound
    log_key("purge", queue=query.queue, task_id=task_id)
