"""Orders and their events."""

import hashlib
import json
from collections.abc import Iterator
from operator import itemgetter
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from werkzeug.exceptions import BadRequest

from orders.domain import MAX_INT, CancelReason, Order, OrderStatus, Position
from orders.schemas.paging import Instant, Query, cursor, decoded
from orders.schemas.types import Deadline, In, Moment, Out, Sku

#: Of metadata, as compact JSON in UTF-8.
MAX_METADATA_BYTES = 4096

ClientReference = Annotated[
    str,
    StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,255}$"),
    Field(description="Your own name for the order. Several may have the same.", examples=["A-17"]),
]


class LineIn(In):
    """Some of one SKU."""

    sku: Sku
    quantity: Annotated[int, Field(ge=1, le=MAX_INT)]


class OrderIn(In):
    """An order to place. Prices and the total are the server's."""

    items: Annotated[list[LineIn], Field(min_length=1, max_length=100)]
    timeout_seconds: Annotated[
        int | None, Field(description="How long it may stay unpaid; the server's own by default.")
    ] = None
    client_reference: ClientReference | None = None
    metadata: Annotated[
        dict[str, Any] | None,
        Field(
            description="Anything you want to keep with the order: up to 4 KB of compact JSON.",
            examples=[{"basket": 17}],
        ),
    ] = None

    @field_validator("metadata")
    @classmethod
    def _can_be_stored(cls, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
        text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError("it has a surrogate without its other half") from error
        if size > MAX_METADATA_BYTES:
            raise ValueError(f"it has {size} bytes as JSON, and may have {MAX_METADATA_BYTES}")
        if any("\0" in each for each in _texts(metadata)):
            raise ValueError("it has a NUL character")
        return metadata

    @field_validator("items")
    @classmethod
    def _each_sku_once(cls, items: list[LineIn]) -> list[LineIn]:
        if len({item.sku for item in items}) != len(items):
            raise ValueError("two items have the same SKU")
        return items

    def fingerprint(self) -> str:
        """The same for requests that mean the same, after the number of the way it is made.

        Items count in any order, and an option that is absent does not count: one that is added
        later leaves the fingerprints of requests without it as they were.
        """
        said = self.model_dump(exclude_none=True)
        said["items"].sort(key=itemgetter("sku"))
        text = json.dumps(said, sort_keys=True, separators=(",", ":"))
        return f"2:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _texts(value: Any) -> Iterator[str]:
    """All text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)


class DeadlineIn(In):
    """A new deadline for an unpaid order."""

    expires_at: Deadline


#: Printable ASCII but for the comma: two headers of one name reach us as one, joined by it.
IDEMPOTENCY_KEY = r"^[ -+\--~]{1,255}$"


class IdempotencyIn(BaseModel):
    """Makes a repeated create harmless."""

    model_config = ConfigDict(populate_by_name=True)

    idempotency_key: Annotated[
        str, Field(alias="Idempotency-Key"), StringConstraints(pattern=IDEMPOTENCY_KEY)
    ]


class OrdersQuery(Query):
    """Which of one's orders."""

    status: Literal["unpaid", "paid", "cancelled"] | None = None
    created_after: Instant | None = None
    expires_before: Instant | None = None
    client_reference: ClientReference | None = None
    client: Annotated[
        str | None,
        StringConstraints(pattern=r"^[^\x00]{1,100}$"),
        Field(description="Whose orders, by name. It takes the scope ops."),
    ] = None

    @model_validator(mode="after")
    def _one_order_of_the_list(self) -> Self:
        if self.client_reference is not None and self.expires_before is not None:
            raise ValueError("client_reference and expires_before do not go together")
        return self

    @property
    def filters(self) -> dict[str, Any]:
        """What narrows one client's orders down."""
        names = {"status", "created_after", "expires_before", "client_reference"}
        return self.model_dump(include=names, exclude_none=True)

    @property
    def sorted_by(self) -> Literal["created_at", "expires_at"]:
        """Newest first; among deadlines, the latest first."""
        return "created_at" if self.expires_before is None else "expires_at"

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self.position(self.sorted_by)

    def cursor_after(self, order: Order) -> str:
        """The cursor of the page that follows this order."""
        return cursor(self.sorted_by, getattr(order, self.sorted_by), order.id)


class EventsQuery(Query):
    """Which of an order's events."""

    @property
    def after_id(self) -> int:
        """Where the page before ended. Raises BadRequest."""
        text = "0" if self.cursor is None else decoded(self.cursor)
        if not (text.isascii() and text.isdecimal() and len(text) < 19):  # noqa: PLR2004  a bigint
            raise BadRequest("This cursor is none of ours.")
        return int(text)


class LineOut(Out):
    """Some of one SKU, at its price when the order was placed."""

    sku: str
    quantity: int
    unit_price_minor: int


class OrderOut(Out):
    """An order."""

    id: str
    client: str
    client_reference: str | None
    status: OrderStatus
    currency: str
    total_minor: int
    items: list[LineOut]
    created_at: Moment
    expires_at: Moment
    paid_at: Moment | None
    cancelled_at: Moment | None
    cancel_reason: CancelReason | None
    metadata: dict[str, Any] | None
    version: int


class OrdersOut(Out):
    """A page of orders."""

    data: list[OrderOut]
    next_cursor: str | None


class EventOut(Out):
    """Something that happened to an order."""

    type: str
    at: Moment
    data: OrderOut | dict[str, Any]


class EventsOut(Out):
    """A page of events, oldest first."""

    data: list[EventOut]
    next_cursor: str | None
