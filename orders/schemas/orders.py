"""Orders and their events."""

import hashlib
import json
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator
from werkzeug.exceptions import BadRequest

from orders.domain import CancelReason, Order, OrderStatus, Position
from orders.schemas.paging import Instant, Query, cursor, decoded
from orders.schemas.types import MAX_INT, In, Moment, Out, Sku


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


class IdempotencyIn(BaseModel):
    """Makes a repeated create harmless."""

    model_config = ConfigDict(populate_by_name=True)

    idempotency_key: Annotated[
        str, Field(alias="Idempotency-Key"), StringConstraints(pattern=r"^[ -~]{1,255}$")
    ]


class OrdersQuery(Query):
    """Which of one's orders."""

    status: Literal["unpaid", "paid", "cancelled"] | None = None
    created_after: Instant | None = None
    expires_before: Instant | None = None

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
    status: OrderStatus
    currency: str
    total_minor: int
    items: list[LineOut]
    created_at: Moment
    expires_at: Moment
    paid_at: Moment | None
    cancelled_at: Moment | None
    cancel_reason: CancelReason | None
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
