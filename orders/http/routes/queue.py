"""The service's queues and their dead letters."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from apiflask import APIBlueprint

from orders.errors import DeadLetterNotFound, QueueUnavailable
from orders.http.auth import auth, current_client, log_operator, services
from orders.http.contract import raises
from orders.http.schemas.queue import DeadLetterQuery, DeadLettersOut, DeadLettersQuery, QueuesOut

queue = APIBlueprint(
    "queue",
    __name__,
    url_prefix="/v1",
    tag={
        "name": "Queue",
        "description": "The queues of the service's workers, and their dead letters: tasks that are not tried again.",
    },
)


@queue.get("/queue")
@queue.auth_required(auth, roles=["ops"])
@queue.output(QueuesOut)
@raises(QueueUnavailable)
def list_queues() -> Any:
    """The service's queues, and how many tasks are in each place."""
    stats = services().queues.stats()
    return {"data": [{"queue": name, **asdict(each)} for name, each in stats.items()]}


@queue.get("/queue/dead")
@queue.auth_required(auth, roles=["ops"])
@queue.input(DeadLettersQuery, location="query", arg_name="query")
@queue.output(DeadLettersOut)
@raises(QueueUnavailable)
def list_dead_letters(query: DeadLettersQuery) -> Any:
    """A queue's dead letters, newest first.

    A page may have fewer than `limit` and still not be the last. Pages shift when letters are added,
    requeued or deleted; start again from the first page after that.
    """
    found, following = services().queues.dead_letters(query.queue, query.passed, most=query.limit)
    return {"data": found, "next_cursor": query.cursor_from(following)}


@queue.post("/queue/dead/<task_id>/requeue")
@queue.auth_required(auth, roles=["ops"])
@queue.input(DeadLetterQuery, location="query", arg_name="query")
@queue.output({}, HTTPStatus.NO_CONTENT, description="It is scheduled again.")
@raises(DeadLetterNotFound, QueueUnavailable)
def requeue_dead_letter(task_id: str, query: DeadLetterQuery) -> Any:
    """Schedule a dead task again, due now.

    Its counters are reset. A 404 after a 503 most likely means that the first request succeeded.
    """
    services().queues.requeue_one(query.queue, task_id)
    _log("requeue", task_id, query)
    return "", HTTPStatus.NO_CONTENT


@queue.delete("/queue/dead/<task_id>")
@queue.auth_required(auth, roles=["ops"])
@queue.input(DeadLetterQuery, location="query", arg_name="query")
@queue.output({}, HTTPStatus.NO_CONTENT, description="It is deleted.")
@raises(DeadLetterNotFound, QueueUnavailable)
def delete_dead_letter(task_id: str, query: DeadLetterQuery) -> Any:
    """Delete a dead task for good.

    Its order stays as it is. A 404 after a 503 most likely means that the first request succeeded.
    """
    services().queues.purge_one(query.queue, task_id)
    _log("purge", task_id, query)
    return "", HTTPStatus.NO_CONTENT


def _log(action: str, task_id: str, query: DeadLetterQuery) -> None:
    key_id, _, _ = auth.get_auth().token.partition(".")
    log_operator(action, current_client(), key_id, queue=query.queue, task_id=task_id)
