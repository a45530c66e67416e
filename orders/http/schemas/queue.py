"""The service's queues and their dead letters."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from orders.http.schemas.paging import Page, Query, encoded, opaque
from orders.http.schemas.types import Moment, Out, Shown
from orders.queues import QUEUE, DeadPosition, QueueName

MAX_TASK_ID = 1000
#: More than any clock of Redis shows, or any queue holds.
MOST = 2**53 - 1
#: Of a reason or an error. The queue shortens errors; reasons can be of any length.
MAX_TEXT = 100_000

OfQueue = Annotated[
    QueueName,
    Field(
        description="order-timeout checks unpaid orders, webhooks sends webhooks.",
        examples=[QUEUE],
    ),
]
#: Ids that fit in a path: without a slash, and neither "." nor "..", which clients resolve.
TaskId = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=MAX_TASK_ID, pattern=r"^([^/.]|\.[^/.]|\.\.[^/])[^/]*$"
    ),
    Field(
        description="The id of a task, which is that of the order that it checks or the delivery that it sends.",
        examples=["01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f"],
    ),
]


def _readable(value: Any) -> Any:
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


#: Without lone surrogates, which UTF-8 cannot encode: ids that other programs wrote and errors may contain them.
Readable = BeforeValidator(_readable)
Text = Annotated[str, Readable, Field(json_schema_extra={"maxLength": MAX_TEXT})]


#: It has the id of a task, of which each character may take up four bytes.
LongCursor = Annotated[str, *opaque(6 * MAX_TASK_ID)]


class DeadLetterQuery(BaseModel):
    """Which queue a dead letter is in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue: OfQueue


class DeadLettersQuery(Query):
    """Which of a queue's dead letters."""

    queue: OfQueue

    cursor: LongCursor | None = None

    @property
    def after(self) -> DeadPosition | None:
        """Where the page before ended. Raises BadRequest."""
        found = self.name(self.queue, f"(?s)[0-9]{{1,15}} .{{1,{MAX_TASK_ID}}}")
        at, _, task_id = (found or "").partition(" ")
        return DeadPosition(int(at), task_id) if found else None

    def cursor_from(self, end: DeadPosition | None) -> str | None:
        """The cursor of the page that follows one that ended here."""
        return end and encoded(f"{self.queue} {end.died_at_ms} {end.id}")


def _number(description: str, example: int = 0) -> Any:
    limits: dict[str, Any] = {"minimum": 0, "maximum": MOST}
    return Field(description=description, examples=[example], json_schema_extra=limits)


class QueueOut(Out):
    """How many of a queue's tasks are in each place."""

    queue: OfQueue
    scheduled: int = _number("How many tasks are waiting, due or not.", 12)
    due: int = _number("How many of these are due.")
    leased: int = _number("How many tasks workers hold.")
    dead: int = _number("How many dead letters there are.", 1)
    paused: bool = Field(description="Whether it is paused.", examples=[False])
    next_due_in_ms: Annotated[int, _number("How long until the next task is due.")] | None = Field(
        description="How long until the next task is due; null if none is waiting.", examples=[1250]
    )
    oldest_due_age_ms: int = _number("How long the oldest task has been due; 0 if none is.")
    oldest_dead_age_ms: int = _number(
        "The age of the oldest dead letter; 0 if there is none.", 60_000
    )


class QueuesOut(Out):
    """The service's queues."""

    data: list[QueueOut] = Field(description="All of them.", json_schema_extra={"maxItems": 10})


class DeadLetterOut(Out):
    """A dead letter: a task that is not tried again, and why."""

    id: Annotated[str, Readable, Shown(TaskId)]
    reason: Text = Field(description="Why it is not tried again.", examples=["failed too often"])
    error: Text | None = Field(
        description="The last error; null if none was raised.",
        examples=["ValueError: no such order"],
    )
    failures: int = _number("How often it failed.", 10)
    deliveries: int = _number("How often its lease expired.")
    died_at: Moment = Field(description="When it died, by the clock of Redis.")


class DeadLettersOut(Out):
    """A page of dead letters, newest first."""

    data: Page[DeadLetterOut]
    next_cursor: Annotated[
        Annotated[str, Shown(LongCursor)] | None,
        Field(description="The cursor of the page that follows; null on the last one."),
    ]
