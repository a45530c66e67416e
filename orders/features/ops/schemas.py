"""The requests of the page's script."""

from typing import Annotated

from pydantic import AfterValidator, Field, PlainValidator, StringConstraints

from orders.features.ops.queues import MOST
from orders.http.schemas.paging import Parameters
from orders.http.schemas.types import In, line
from orders.queues import QUEUE, queue_names

MAX_TASK_ID = 1000


def _queue(name: str) -> str:
    if name not in queue_names():
        raise ValueError(f"there is no such queue: {', '.join(queue_names())}")
    return name


QueueName = Annotated[str, AfterValidator(_queue)]


def _task_id(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TASK_ID:
        raise ValueError(f"a task's id is text of 1 to {MAX_TASK_ID} characters")
    value.encode(errors="surrogateescape")  # as the queue does; its error is a ValueError
    return value


#: Ids that other programs wrote may not be UTF-8; pydantic's strings would refuse them.
TaskId = Annotated[str, PlainValidator(_task_id)]


class QueueIn(In):
    """A queue to resume."""

    queue: QueueName


class PauseIn(QueueIn):
    """A queue to pause, and why."""

    reason: Annotated[str, line()]


class LettersIn(In):
    """Dead letters to requeue or purge."""

    queue: QueueName
    ids: Annotated[list[TaskId], Field(min_length=1, max_length=MOST)]


class LettersQuery(Parameters):
    """Which queue's dead letters."""

    queue: QueueName = QUEUE


class GuideQuery(Parameters):
    """Which entry of the runbook; "": all of it."""

    entry: str = ""


class SearchQuery(Parameters):
    """An order's id or client reference."""

    text: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=255, strip_whitespace=True, pattern=r"^[^\x00]+$"
        ),
    ]
