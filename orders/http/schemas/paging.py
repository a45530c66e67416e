"""Pages of a list: keyset cursors, and the query parameters that all lists take."""

import base64
import re
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
)
from werkzeug.exceptions import BadRequest

from orders.db.ids import UUID
from orders.db.statements import Position
from orders.http.schemas.types import Out, Shown, rfc3339, text

T = TypeVar("T")

PAGE_SIZE = 50
MAX_PAGE_SIZE = 100
#: Longer than any of our cursors.
MAX_CURSOR = 200

#: What `rfc3339` writes.
MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"


def like(pattern: str, what: str) -> BeforeValidator:
    """Accepts only text of this form. Pydantic alone takes "1_0" and " 10" for 10, and 0.5 for a time."""
    known = re.compile(pattern)

    def check(value: object) -> object:
        if isinstance(value, str) and not known.fullmatch(value):
            raise ValueError(f"it is not {what}")
        return value

    return BeforeValidator(check)


Limit = Annotated[
    int,
    Field(ge=1, le=MAX_PAGE_SIZE, description="How many to return at most.", examples=[20]),
    like("[0-9]{1,3}", "a whole number"),
]
Instant = Annotated[
    AwareDatetime,
    like("[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].+", "an RFC 3339 time"),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-11-22T09:30:00Z"]}),
]


# Without an example, because the documentation page would send it.
FROM_PAGE = (
    "The next_cursor of the previous page, with the same filters. Opaque: anything else gets 400."
)
Cursor = Annotated[str, text(None, FROM_PAGE, "^[A-Za-z0-9_-]+$", MAX_CURSOR)]
#: What a list returns.
Page = Annotated[
    list[T], Field(description="The page.", json_schema_extra={"maxItems": MAX_PAGE_SIZE})
]
NextCursor = Annotated[
    Annotated[str, Shown(Cursor)] | None,
    Field(description="The cursor of the page that follows; null on the last one."),
]


def page_of(name: str, row: type[Out], description: str) -> type[Out]:
    """The schema of a list's pages."""
    fields: Any = {"data": (Page[row], ...), "next_cursor": (NextCursor, ...)}  # type: ignore[valid-type]
    return create_model(name, __base__=Out, __doc__=description, __module__=__name__, **fields)


class Parameters(BaseModel):
    """A query string."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Query(Parameters):
    """What every list takes."""

    limit: Limit = PAGE_SIZE
    cursor: Cursor | None = None

    #: What its cursors begin with, and by which of a row's values it is sorted.
    list_name: ClassVar[str]
    sorted_by: ClassVar[tuple[str, ...]]

    def _read(self, name: str, pattern: str) -> str | None:
        """The position in a cursor of this list. Raises BadRequest."""
        if self.cursor is None:
            return None
        given, _, position = decoded(self.cursor).partition(" ")
        if given != name or not re.fullmatch(pattern, position):
            raise BadRequest("This cursor is not from a list with these filters.")
        return position

    def cursor_after(self, row: Any) -> str:
        """The cursor of the page that follows this row."""
        values = (getattr(row, name) for name in self.sorted_by)
        texts = (rfc3339(each) if isinstance(each, datetime) else str(each) for each in values)
        return encoded(" ".join([self.list_name, *texts]))


class TimeQuery(Query):
    """A list sorted by a time of its rows."""

    sorted_by: ClassVar[tuple[str, ...]] = ("created_at", "id")

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        found = self._read(self.list_name, f"{MOMENT} {UUID.pattern}")
        if found is None:
            return None
        at, _, last_id = found.partition(" ")
        try:
            return Position(datetime.fromisoformat(at), last_id)
        except ValueError as error:
            raise BadRequest("This cursor is not one of ours.") from error


class NumberQuery(Query):
    """A list sorted by a number of its rows."""

    sorted_by: ClassVar[tuple[str, ...]] = ("id",)

    @property
    def after_id(self) -> int | None:
        """Where the page before ended. Raises BadRequest."""
        number = self._read(self.list_name, "[0-9]{1,18}")  # as a bigint holds
        return None if number is None else int(number)


def encoded(position: str | int) -> str:
    """A cursor: opaque, so that no client relies on its content."""
    raw = str(position).encode(errors="surrogateescape")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decoded(cursor: str) -> str:
    """What `encoded` was given. Raises BadRequest."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        return raw.decode(errors="surrogateescape")
    except ValueError as error:
        raise BadRequest("This cursor is not one of ours.") from error
