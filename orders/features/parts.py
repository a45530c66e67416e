"""What features bring for each other, and the core does not look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

from pydantic import BaseModel

if TYPE_CHECKING:
    from orders.db.files import Statement


#: Other methods, which a client may make up, are counted as one.
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


def named_id(owner_id: str, name: str) -> str:
    """A UUIDv5 of an owner and a name, the same every time."""
    return str(uuid5(UUID(owner_id), name))


def time_of(moment: datetime) -> str:
    """For people to read."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def up_to(count: int, most: int) -> str:
    """A count that stops at ``most``."""
    return f"{count:,}+" if count >= most else f"{count:,}"


class Figure(NamedTuple):
    """A gauge of the metrics: its values by those of its labels."""

    name: str
    help: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


class Counted(NamedTuple):
    """What a metric counts: events of one type; or of a family, by what they are called in it."""

    event: str
    name: str
    help: str
    #: Its value is the rest of a family's event, or the event's reason.
    label: str = ""
    #: Zero, rather than absent, before the first of them: otherwise a rate misses that event.
    known: Sequence[str] = ()


class Problem(NamedTuple):
    """Something that an operator should know of: bad or warn, a sentence, and its entry of the runbook."""

    level: str
    text: str
    entry: str = ""


def not_known(what: str) -> Problem:
    """What could not be read while the database answers otherwise."""
    text = f"It is not known {what}: the database takes too long to say it."
    return Problem("warn", text, "DatabaseUnavailable")


class Panel(NamedTuple):
    """A feature's part of the operators' page, as its template shows it."""

    shown: Any
    problems: Sequence[Problem] = ()
    #: How bad it is, and what to call it where the page says that all is on time.
    status: tuple[str, str] | None = None


class Step(NamedTuple):
    """Something that happened to an order: a line of its timeline on the operators' page."""

    at: datetime
    #: event, payment or sent
    kind: str
    title: str
    text: str = ""
    #: A time that follows the text.
    then: datetime | None = None
    is_bad: bool = False


class Cause(NamedTuple):
    """Why an order is not cancelled, and the tasks that end that: what they do, in which queue."""

    said: str
    queue: str = ""
    what: str = ""
    task_ids: Sequence[str] = ()


class Sent(NamedTuple):
    """Messages about events that go to whoever wants them, and the answers to them, by status."""

    group: str
    types: Sequence[str]
    headers: type[BaseModel]
    body: type[BaseModel]
    description: str
    answers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class OrderData:
    """What a feature stores about orders: statements of its ``sql/``, run when orders are deleted, exported and erased."""

    #: Where its rows stand in the JSON of an export.
    name: str
    #: Of an order (``order_id``): the rows with what may be about a person. See `orders.db.base.PERSONAL`.
    export: "Statement"
    #: What belongs to deleted orders (``ids``), in their transaction.
    delete: "Statement"
    #: Those of some locked orders (``ids``) that must stay: something is left to do, or happened after ``since``.
    needed: "Statement | None" = None
    #: The rows that were exported (``ids``), but for those that wait for a person. None: a change of the order's own
    #: details erases them.
    erase: "Statement | None" = None
