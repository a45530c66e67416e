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

from orders.http.schemas.paging import Instant, NextCursor, Page, Query, cursor, decoded, encoded
from orders.http.schemas.types import (
    CurrencyOut,
    Deadline,
    Id,
    In,
    Moment,
    Out,
    PriceOut,
    Quantity,
    QuantityOut,
    Shown,
    Sku,
    SkuOut,
    Version,
)
from orders.order.domain import CancelReason, Order, OrderEvent, OrderStatus
from orders.sql.statements import Position
from orders.stock.domain import MAX_INT

#: How many items an order may have.
MAX_ITEMS = 100
#: The size of metadata, as compact JSON in UTF-8.
MAX_METADATA_BYTES = 4096

ClientReference = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
    ),
    Field(description="Your own name for the order. Several may have the same.", examples=["A-17"]),
]
ClientName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00]+$"),
    Field(description="The name of the client that it belongs to.", examples=["shop"]),
]
Metadata = Field(
    description="Anything you want to keep with the order: up to 4 KB of compact JSON.",
    examples=[{"basket": 17}],
)


def _timeout_bounds(schema: dict[str, Any]) -> None:
    """Documents what any server may accept; each server's settings have its own bounds."""
    schema["anyOf"][0] |= {"minimum": 1, "maximum": MAX_INT}


class LineIn(In):
    """A quantity of one SKU."""

    sku: Sku
    quantity: Quantity


class OrderIn(In):
    """An order to place. Prices and the total are the server's."""

    items: Annotated[
        list[LineIn],
        Field(min_length=1, max_length=MAX_ITEMS, description="What is ordered, each SKU once."),
    ]
    timeout_seconds: Annotated[
        int | None,
        Field(
            description="How long it may stay unpaid, within the server's bounds. Default: the server's.",
            examples=[1800],
            json_schema_extra=_timeout_bounds,
        ),
    ] = None
    client_reference: Annotated[
        ClientReference | None, Field(examples=["A-17"], description="Your own name for the order.")
    ] = None
    metadata: Annotated[dict[str, Any] | None, Metadata] = None

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
        """The same for requests that mean the same, prefixed with the version of its algorithm.

        The order of items does not matter. Absent options are left out, so an option that is added
        later does not change the fingerprints of requests without it.
        """
        content = self.model_dump(exclude_none=True)
        content["items"].sort(key=itemgetter("sku"))
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
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


#: Printable ASCII but for the comma: two headers of one name reach us as one, joined by it. No space
#: at its ends, which HTTP strips.
IDEMPOTENCY_KEY = r"^[!-+\--~]([ -+\--~]*[!-+\--~])?$"


class IdempotencyIn(BaseModel):
    """Makes a repeated create harmless."""

    model_config = ConfigDict(populate_by_name=True)

    idempotency_key: Annotated[
        str,
        Field(
            alias="Idempotency-Key",
            description="Your own name for this request: repeating it with the same key returns "
            "the original response and does nothing a second time. Printable ASCII, no comma.",
            examples=["cart-4711"],
        ),
        StringConstraints(min_length=1, max_length=255, pattern=IDEMPOTENCY_KEY),
    ]


class OrdersQuery(Query):
    """Which of a client's orders."""

    status: Annotated[
        OrderStatus | None,
        Field(description="Only those with this status.", examples=["unpaid"]),
    ] = None
    created_after: Annotated[
        Instant | None, Field(description="Only those placed after this moment.")
    ] = None
    expires_before: Annotated[
        Instant | None,
        Field(
            description="Only those whose deadline is before this moment. Not with client_reference."
        ),
    ] = None
    client_reference: Annotated[
        ClientReference | None, Field(description="Only those with this reference.")
    ] = None
    client: Annotated[
        ClientName | None,
        Field(description="Only the orders of the client with this name. Needs the scope ops."),
    ] = None

    @model_validator(mode="after")
    def _one_order_of_the_list(self) -> Self:
        if self.client_reference is not None and self.expires_before is not None:
            raise ValueError("client_reference and expires_before do not go together")
        return self

    @property
    def filters(self) -> dict[str, Any]:
        """The filters on one client's orders."""
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
            raise BadRequest("This cursor is not one of ours.")
        return int(text)

    def cursor_after(self, event: OrderEvent) -> str:
        """The cursor of the page that follows this event."""
        return encoded(event.id)


class LineOut(Out):
    """A quantity of one SKU, at its price when the order was placed."""

    sku: SkuOut
    quantity: QuantityOut
    unit_price_minor: PriceOut


class OrderOut(Out):
    """An order."""

    id: Id
    client: Annotated[str, Shown(ClientName)]
    client_reference: Annotated[
        Annotated[str, Shown(ClientReference)] | None,
        Field(description="Your own name for it.", examples=["A-17"]),
    ]
    status: OrderStatus
    currency: CurrencyOut
    total_minor: Annotated[PriceOut, Field(description="In minor units.", examples=[2500])]
    items: Annotated[
        list[LineOut],
        Field(
            description="What was ordered, sorted by SKU.",
            json_schema_extra={"minItems": 1, "maxItems": MAX_ITEMS},
        ),
    ]
    created_at: Annotated[Moment, Field(description="When it was placed.")]
    expires_at: Annotated[
        Moment,
        Field(
            description="When it is cancelled unless it is paid.",
            examples=["2026-11-22T10:00:00.000Z"],
        ),
    ]
    paid_at: Annotated[Moment | None, Field(description="When it was paid.")]
    cancelled_at: Annotated[Moment | None, Field(description="When it was cancelled.")]
    cancel_reason: CancelReason | None
    metadata: Annotated[dict[str, Any] | None, Metadata]
    version: Version


class OrdersOut(Out):
    """A page of orders."""

    data: Page[OrderOut]
    next_cursor: NextCursor


class EventOut(Out):
    """Something that happened to an order."""

    type: Annotated[
        str,
        Field(
            description="order.created, order.extended, order.paid, order.cancelled, "
            "payment.refund_due or payment.refunded. More types may come: ignore those that you do not know.",
            examples=["order.cancelled"],
            json_schema_extra={"pattern": "^[a-z]+\\.[a-z_]+$", "maxLength": 30},
        ),
    ]
    at: Annotated[Moment, Field(description="When it happened.")]
    data: Annotated[
        OrderOut | dict[str, Any],
        Field(
            description="For order.created, the order as it was placed; for the others, details "
            "such as the payment or the reason.",
            examples=[{"reason": "expired"}],
        ),
    ]


class EventsOut(Out):
    """A page of events, oldest first."""

    data: Page[EventOut]
    next_cursor: NextCursor
