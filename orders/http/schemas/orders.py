"""Orders and their events."""

import hashlib
import json
import re
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    RootModel,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from orders.http.schemas.paging import Instant, NumberQuery, TimeQuery, page_of
from orders.http.schemas.types import (
    WHOLE,
    ChangeIn,
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
    text,
)
from orders.order.domain import CancelReason, OrderStatus
from orders.stock.domain import MAX_INT

#: How many items an order may have.
MAX_ITEMS = 100
#: The size of metadata, as compact JSON in UTF-8.
MAX_METADATA_BYTES = 4096
#: A NUL in JSON, which is escaped, unlike a backslash before the same characters.
NUL = re.compile(r"(?<!\\)(\\\\)*\\u0000")

LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
ClientReference = Annotated[
    str, text("A-17", "Your own name for the order. Several may have the same.", LINE, 255)
]
ClientName = Annotated[
    str, text("shop", "The name of the client that it belongs to.", r"^[^\x00]+$", 100)
]
Metadata = Field(
    description="Anything you want to keep with the order: up to 4 KB of compact JSON.",
    examples=[{"basket": 17}],
)


def _can_be_stored(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError("it has a surrogate without its other half") from error
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"it has {size} bytes as JSON, and may have {MAX_METADATA_BYTES}")
    if NUL.search(text):
        raise ValueError("it has a NUL character")
    return metadata


MetadataIn = Annotated[dict[str, Any] | None, Metadata, AfterValidator(_can_be_stored)]
ReferenceIn = Annotated[
    ClientReference | None, Field(examples=["A-17"], description="Your own name for the order.")
]


#: Documents what any server may accept; each server's settings have its own bounds.
Timeout = Annotated[int, WHOLE, Field(json_schema_extra={"minimum": 1, "maximum": MAX_INT})]


class LineIn(In):
    """A quantity of one SKU."""

    sku: Sku
    quantity: Quantity


class OrderIn(In):
    """An order to place. Prices and the total are the server's."""

    items: list[LineIn] = Field(
        min_length=1, max_length=MAX_ITEMS, description="What is ordered, each SKU once."
    )
    timeout_seconds: Timeout | None = Field(
        default=None,
        description="How long it may stay unpaid, within the server's bounds. Default: the shortest of its "
        "SKUs', where one without has the server's.",
        examples=[1800],
    )
    client_reference: ReferenceIn = None
    metadata: MetadataIn = None

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


class DeadlineIn(In):
    """A new deadline for an unpaid order."""

    expires_at: Deadline


class DetailsIn(ChangeIn):
    """Your own names for an order, in any state; null erases one."""

    client_reference: ReferenceIn = None
    metadata: MetadataIn = None


def _tag(change: Any) -> str:
    return "deadline" if isinstance(change, dict) and "expires_at" in change else "details"


class OrderChangeIn(
    RootModel[
        Annotated[
            Annotated[DeadlineIn, Tag("deadline")] | Annotated[DetailsIn, Tag("details")],
            Discriminator(_tag),
        ]
    ]
):
    """A change of an order: of its deadline, or of your own names for it."""


#: Printable ASCII but for the comma: two headers of one name reach us as one, joined by it. No space
#: at its ends, which HTTP strips.
IDEMPOTENCY_KEY = r"^[!-+\--~]([ -+\--~]*[!-+\--~])?$"


IdempotencyKey = Annotated[
    str,
    text(
        "cart-4711",
        "Your own name for this request: repeating it with the same key returns the original response and does nothing "
        "a second time; another body gets 422 `key_reused`. It lasts as long as what it made, so do not use a counter "
        "that may restart: add a date or a random part. Printable ASCII, no comma.",
        IDEMPOTENCY_KEY,
        255,
    ),
]


class IdempotencyIn(BaseModel):
    """Makes a repeated create harmless."""

    model_config = ConfigDict(populate_by_name=True)

    idempotency_key: Annotated[IdempotencyKey, Field(alias="Idempotency-Key")]


class OptionalKeyIn(BaseModel):
    """An Idempotency-Key that may be left out."""

    model_config = ConfigDict(populate_by_name=True)

    idempotency_key: Annotated[IdempotencyKey | None, Field(alias="Idempotency-Key")] = None


class OrdersQuery(TimeQuery):
    """Which of a client's orders."""

    status: OrderStatus | None = Field(
        default=None, description="Only those with this status.", examples=["unpaid"]
    )
    created_after: Instant | None = Field(
        default=None, description="Only those placed after this moment."
    )
    created_before: Instant | None = Field(
        default=None, description="Only those placed before this moment. Not with expires_before."
    )
    expires_before: Instant | None = Field(
        default=None,
        description="Only those whose deadline is before this moment. Not with client_reference or created_before.",
    )
    client_reference: ClientReference | None = Field(
        default=None, description="Only those with this reference."
    )
    client: ClientName | None = Field(
        default=None,
        description="Only the orders of the client with this name. Needs the scope ops.",
    )

    @model_validator(mode="after")
    def _one_order_of_the_list(self) -> Self:
        for name in ("client_reference", "created_before"):
            if self.expires_before is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} and expires_before do not go together")
        return self

    @property
    def filters(self) -> dict[str, Any]:
        """The filters on one client's orders."""
        return self.model_dump(exclude={"limit", "cursor", "client"}, exclude_none=True)

    @property
    def list_name(self) -> str:  # type: ignore[override]
        """Newest first; among deadlines, the latest first."""
        return "created_at" if self.expires_before is None else "expires_at"

    @property
    def sorted_by(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.list_name, "id"


class EventsQuery(NumberQuery):
    """Which of an order's events."""

    list_name: ClassVar[str] = "events"


class LineOut(Out):
    """A quantity of one SKU, at its price when the order was placed."""

    sku: SkuOut
    quantity: QuantityOut
    unit_price_minor: PriceOut


class OrderOut(Out):
    """An order."""

    id: Id
    client: Annotated[str, Shown(ClientName)]
    client_reference: Annotated[str, Shown(ClientReference)] | None = Field(
        description="Your own name for it.", examples=["A-17"]
    )
    status: OrderStatus
    currency: CurrencyOut
    total_minor: PriceOut = Field(description="In minor units.", examples=[2500])
    items: list[LineOut] = Field(
        description="What was ordered, sorted by SKU.",
        json_schema_extra={"minItems": 1, "maxItems": MAX_ITEMS},
    )
    created_at: Moment = Field(description="When it was placed.")
    expires_at: Moment = Field(
        description="When it is cancelled unless it is paid.", examples=["2026-11-22T10:00:00.000Z"]
    )
    paid_at: Moment | None = Field(description="When it was paid.")
    cancelled_at: Moment | None = Field(description="When it was cancelled.")
    cancel_reason: CancelReason | None
    refunded_minor: PriceOut = Field(
        description="How much of the money that paid it was sent back.", examples=[0]
    )
    metadata: Annotated[dict[str, Any] | None, Metadata]
    version: Version


Cause = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
Causes = Annotated[list[Annotated[str, Shown(Cause)]], Field(json_schema_extra={"maxItems": 150})]


class OrderWhyOut(OrderOut):
    """An order, and why it is still unpaid."""

    why_unpaid: Causes | None = Field(
        default=None,
        exclude_if=lambda why: why is None,
        description="Whatever keeps it from being cancelled, for people to read. Only with the scope `ops`, while it "
        "is unpaid.",
        examples=[["not due yet: its deadline is 2026-11-22 10:00:00 UTC, in 29 min"]],
    )


OrdersOut = page_of("OrdersOut", OrderOut, "A page of orders.")


class EventOut(Out):
    """Something that happened to an order."""

    type: str = Field(
        description="order.created, order.extended, order.paid, order.cancelled, order.refunded, "
        "payment.refund_due, payment.refunded, payment.refund_failed or payment.disputed. More types may "
        "come: ignore those that you do not know.",
        examples=["order.cancelled"],
        json_schema_extra={"pattern": "^[a-z]+\\.[a-z_]+$", "maxLength": 30},
    )
    at: Moment = Field(description="When it happened.")
    key_id: Id | None = Field(
        description="The id of the API key that it was done with; null if there was none: it expired, or a "
        "provider reported it."
    )
    data: OrderOut | dict[str, Any] = Field(
        description="For order.created, the order as it was placed; for the others, details "
        "such as the payment or the reason.",
        examples=[{"reason": "expired"}],
        union_mode="left_to_right",
    )


EventsOut = page_of("EventsOut", EventOut, "A page of events, oldest first.")
