"""What the page's script sends."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints

from orders.domain import Position
from orders.schemas.paging import Query
from orders.schemas.queue import MAX_TASK_ID, QueueName
from orders.schemas.types import In, Reference

#: Dead letters that one request requeues or purges.
MOST_IDS = 300


def _task_id(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TASK_ID:
        raise ValueError(f"a task's id is text of 1 to {MAX_TASK_ID} characters")
    return value


#: Other programs may have written ids that are not UTF-8, which pydantic's own text refuses.
TaskId = Annotated[str, PlainValidator(_task_id)]


class LoginIn(In):
    """An API key, to log in with."""

    key: Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]


class QueueIn(In):
    """A queue to pause or resume."""

    queue: QueueName


class LettersIn(In):
    """Dead letters to requeue or purge."""

    queue: QueueName
    ids: Annotated[list[TaskId], Field(min_length=1, max_length=MOST_IDS)]


class RefundDoneIn(In):
    """Money that was sent back."""

    reference: Reference


class Asked(BaseModel):
    """What a query may ask for."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LettersQuery(Asked):
    """Which dead letters of a queue, newest first."""

    queue: QueueName
    #: Part of the id, the reason or the error, upper or lower case alike.
    text: Annotated[str, StringConstraints(max_length=200)] = ""
    #: Entries of the list to skip.
    passed: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    #: Ids only, and of more letters at a time.
    ids: bool = False


class LetterQuery(Asked):
    """One dead letter."""

    queue: QueueName
    id: TaskId


class SearchQuery(Asked):
    """An order's id, or its client's reference for it."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=255, strip_whitespace=True)]


class RefundsQuery(Query):
    """Which page of the refunds that are due."""

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self.position("refunds")
