"""The service's queues and their dead letters."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import structlog
from apiflask import APIBlueprint

from orders.contract import raises
from orders.errors import DeadLetterNotFound, QueueUnavailable
from orders.routes.shared import auth, current_client, services
from orders.schemas.queue import (
    DeadLetterQuery,
    DeadLettersOut,
    DeadLettersQuery,
    QueuesOut,
)

log = structlog.get_logger("orders")
queue = APIBlueprint(
    "queue",
    __name__,
    url_prefix="/v1",
    tag={
        "name": "Queue",
        "description": "The queues that the service's workers work on, and the tasks they gave up.",
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
    requeued or deleted: after that, begin with the first one.
    """
    found, following = services().queues.dead_letters(
        query.queue, page_size=query.limit, passed=query.passed
    )
    return {"data": found, "next_cursor": query.cursor_from(following)}


@queue.post("/queue/dead/<task_id>/requeue")
@queue.auth_required(auth, roles=["ops"])
@queue.input(DeadLetterQuery, location="query", arg_name="query")
@queue.output({}, HTTPStatus.NO_CONTENT, description="It is scheduled again.")
@raises(DeadLetterNotFound, QueueUnavailable)
def requeue_dead_letter(task_id: str, query: DeadLetterQuery) -> Any:
    """Schedule a dead task again, due now.

    It starts afresh, with no failures. A 404 after a 503 most likely means that it was done.
    """
    services().queues.requeue_one(query.queue, task_id)
    _noted("requeue", task_id, query)
    return "", HTTPStatus.NO_CONTENT


@queue.delete("/queue/dead/<task_id>")
@queue.auth_required(auth, roles=["ops"])
@queue.input(DeadLetterQuery, location="query", arg_name="query")
@queue.output({}, HTTPStatus.NO_CONTENT, description="It is deleted.")
@raises(DeadLetterNotFound, QueueUnavailable)
def delete_dead_letter(task_id: str, query: DeadLetterQuery) -> Any:
    """Delete a dead task for good.

    The order stays as it is. A 404 after a 503 most likely means that it was done.
    """
    services().queues.purge_one(query.queue, task_id)
    _noted("purge", task_id, query)
    return "", HTTPStatus.NO_CONTENT


def _noted(action: str, task_id: str, query: DeadLetterQuery) -> None:
    """Who changed something is in the log."""
    key, _, _ = auth.get_auth().token.partition(".")
    facts = {"queue": query.queue, "task_id": task_id}
    log.info("operator", action=action, client=current_client().name, key=key, **facts)
