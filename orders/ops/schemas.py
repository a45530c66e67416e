"""The requests of the page's script."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints

from orders.freezes.domain import MAX_SECONDS
from orders.http.schemas.paging import TimeQuery
from orders.http.schemas.queue import MAX_TASK_ID, DeadLettersQuery
from orders.http.schemas.types import In
from orders.queues import QueueName

#: Dead letters that one request requeues or purges.
MOST_IDS = 300


def _task_id(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TASK_ID:
        raise ValueError(f"a task's id is text of 1 to {MAX_TASK_ID} characters")
    value.encode(errors="surrogateescape")  # as the queue does; its error is a ValueError
    return value


#: Ids that other programs wrote may not be UTF-8; pydantic's strings would refuse them.
TaskId = Annotated[str, PlainValidator(_task_id)]


class LoginIn(In):
    """An API key, to log in with."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]


class QueueIn(In):
    """A queue to resume."""

    queue: QueueName


class PauseIn(QueueIn):
    """A queue to pause, and why."""

    reason: Annotated[str, StringConstraints(max_length=500, strip_whitespace=True)] = ""


class Parameters(BaseModel):
    """A query string."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ConcernedQuery(Parameters):
    """How many orders a freeze of everything for so many seconds would concern."""

    seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)]


class LettersIn(In):
    """Dead letters to requeue or purge."""

    queue: QueueName
    ids: Annotated[list[TaskId], Field(min_length=1, max_length=MOST_IDS)]


class LettersQuery(DeadLettersQuery):
    """Which dead letters of a queue."""

    #: What the id, reason or error contains, in upper or lower case.
    text: Annotated[str, StringConstraints(max_length=200)] = ""
    #: Only ids, on larger pages.
    ids: bool = False


class LetterQuery(Parameters):
    """One dead letter."""

    queue: QueueName
    id: TaskId


class SearchQuery(Parameters):
    """An order's id or client reference."""

    text: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=255, strip_whitespace=True, pattern=r"^[^\x00]+$"
        ),
    ]


class RefundsQuery(TimeQuery):
    """Which page of the refunds that are due."""

    list_name: ClassVar[str] = "refunds"
