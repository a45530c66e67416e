"""The requests of the page's script."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints

from orders.freezes.domain import MAX_SECONDS
from orders.http.schemas.freezes import Reason
from orders.http.schemas.paging import Query, TimeQuery, encoded
from orders.http.schemas.types import In
from orders.ops.queues import DeadPosition
from orders.queues import QueueName

MAX_TASK_ID = 1000
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

    reason: Reason


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


class LettersQuery(Query):
    """Which dead letters of a queue."""

    queue: QueueName
    #: It has the id of a task, of which each character may take up four bytes.
    cursor: Annotated[str, StringConstraints(max_length=6 * MAX_TASK_ID)] | None = None
    #: What the id, reason or error contains, in upper or lower case.
    text: Annotated[str, StringConstraints(max_length=200)] = ""
    #: Only ids, on larger pages.
    ids: bool = False

    @property
    def after(self) -> DeadPosition | None:
        """Where the page before ended. Raises BadRequest."""
        found = self.name(self.queue, f"(?s)[0-9]{{1,15}} .{{1,{MAX_TASK_ID}}}")
        at, _, task_id = (found or "").partition(" ")
        return DeadPosition(int(at), task_id) if found else None

    def cursor_from(self, end: DeadPosition | None) -> str | None:
        """The cursor of the page that follows one that ended here."""
        return end and encoded(f"{self.queue} {end.died_at_ms} {end.id}")


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
