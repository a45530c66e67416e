"""JSON in and out: what a request may say, and how a response looks."""

import base64
import hashlib
import json
import math
import re
from datetime import UTC, datetime
from operator import itemgetter
from typing import Annotated, Any, Literal, NoReturn

from flask import Request
from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge, UnsupportedMediaType

from orders.domain import (
    MAX_MINOR,
    CancelReason,
    Order,
    OrderStatus,
    Payment,
    PaymentStatus,
    Position,
    is_order_id,
)
from orders.errors import SkuNotFound

MAX_INT = 2**31 - 1  # what the columns for quantities hold
PAGE_SIZE = 50


# -- reading JSON --------------------------------------------------------------------------

#: How many levels deep a body may be nested. Valid ones have three: an order, its items, an item.
#: The rest lets an invalid body reach validation, which names the wrong field. Python's parser has
#: a limit too, but a different one in each version.
MAX_DEPTH = 20
#: A bracket, or a whole string, whose brackets do not count. An unterminated string extends to the
#: end of the text; otherwise the search would start again at each quote in it.
STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[][{}]', re.DOTALL)


class StrictRequest(Request):
    """A request whose JSON has exactly one meaning: RFC 8259, in UTF-8, an object, no key twice."""

    def get_json(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Raises UnsupportedMediaType, RequestEntityTooLarge or BadRequest."""
        if self.mimetype != "application/json":
            raise UnsupportedMediaType("Send application/json.")
        body = self.get_data()
        length = self.content_length
        # Werkzeug cuts a body that comes in chunks off at the limit, and says nothing.
        if length is None and len(body) == self.max_content_length:
            raise RequestEntityTooLarge
        # Nor does it when a connection ends early, where half a body may be a whole one.
        if length is not None and len(body) < length:
            raise BadRequest(f"The body has {len(body)} of {length} bytes.")
        return parse_object(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises BadRequest for anything else."""
    try:
        text = body.decode()
        _check_depth(text)
        value = STRICT.decode(text)
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: byte {error.start}.") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadRequest(f"The body is not JSON: {place}.") from error
    except _NotStrict as error:
        raise BadRequest(f"The body is not JSON: {error}.") from error
    except ValueError as error:  # of an integer whose digits Python will not count
        raise BadRequest("The body is not JSON: a number is too long.") from error
    if not isinstance(value, dict):
        raise BadRequest("The body is not a JSON object.")
    return value


def _check_depth(text: str) -> None:
    """Raises BadRequest for more than `MAX_DEPTH` levels, JSON or not.

    To be called before the parser, which recurses. Up to the first syntax error both see the same
    strings and brackets, so the parser never goes deeper than what is counted here.
    """
    depth = 0
    for found in STRING_OR_BRACKET.finditer(text):
        if found[0] in "[{":
            depth += 1
        elif found[0] in "]}":
            depth -= 1
        if depth > MAX_DEPTH:
            raise BadRequest(f"The body is nested more than {MAX_DEPTH} levels deep.")


class _NotStrict(ValueError):
    """What RFC 8259 leaves open, or forbids, and Python's parser takes."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _NotStrict("an object has the same key twice")
    return result


def _refuse(constant: str) -> NoReturn:
    raise _NotStrict(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _NotStrict("a number is too large")
    return number


STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)


# -- in ------------------------------------------------------------------------------------

Sku = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
SKU = TypeAdapter(Sku)
Currency = Annotated[
    str, StringConstraints(pattern=r"^[A-Z]{3}$"), Field(description="ISO 4217", examples=["EUR"])
]


class _In(BaseModel):
    """Takes JSON's own types only, and no field that it does not know."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LineIn(_In):
    """Some of one SKU."""

    sku: Sku
    quantity: Annotated[int, Field(ge=1, le=MAX_INT)]


class OrderIn(_In):
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


Reference = Annotated[
    str,
    StringConstraints(pattern=r"^[!-~]{1,255}$"),
    Field(description="The provider's own name for it: unique, printable ASCII."),
]


class PaymentIn(_In):
    """Money that a provider took."""

    provider: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,50}$")]
    reference: Reference
    amount_minor: Annotated[int, Field(ge=1, le=MAX_MINOR)]
    currency: Currency


class RefundIn(_In):
    """Money that a provider sent back."""

    reference: Reference


class StockIn(_In):
    """A SKU's stock, what orders hold included, and its price."""

    on_hand: Annotated[int, Field(ge=0, le=MAX_INT)]
    price_minor: Annotated[int, Field(ge=0, le=MAX_MINOR)]
    currency: Currency


class IdempotencyIn(BaseModel):
    """Makes a repeated create harmless."""

    model_config = ConfigDict(populate_by_name=True)

    idempotency_key: Annotated[
        str, Field(alias="Idempotency-Key"), StringConstraints(pattern=r"^[ -~]{1,255}$")
    ]


def _like(pattern: str, what: str) -> BeforeValidator:
    """Text in a query that reads so. Pydantic alone takes "1_0" and " 10" for 10, and 0.5 for a time."""
    known = re.compile(pattern)

    def check(value: object) -> object:
        if isinstance(value, str) and not known.fullmatch(value):
            raise ValueError(f"it is not {what}")
        return value

    return BeforeValidator(check)


Limit = Annotated[int, Field(ge=1, le=100), _like("[0-9]{1,3}", "a whole number")]
Instant = Annotated[AwareDatetime, _like("[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].+", "a time of RFC 3339")]


class _Query(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Limit = PAGE_SIZE
    cursor: Annotated[str | None, Field(description="next_cursor of the page before")] = None

    def _position(self, of: str) -> Position | None:
        """Where the page before ended, if it was of such a list. Raises BadRequest."""
        if self.cursor is None:
            return None
        word, _, position = _decoded(self.cursor).partition(" ")
        at, _, last_id = position.partition(" ")
        if word != of or not MOMENT.fullmatch(at) or not is_order_id(last_id):
            raise BadRequest("This cursor is not from a list with these filters.")
        try:
            return Position(datetime.fromisoformat(at), last_id)
        except ValueError as error:
            raise BadRequest("This cursor is none of ours.") from error


class OrdersQuery(_Query):
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
        return self._position(self.sorted_by)

    def cursor_after(self, order: Order) -> str:
        """The cursor of the page that follows this order."""
        return _cursor(self.sorted_by, getattr(order, self.sorted_by), order.id)


class PaymentsOfOrderQuery(_Query):
    """Which of an order's payments."""

    @property
    def after(self) -> Position | None:
        """Where the page before ended. Raises BadRequest."""
        return self._position("payments")

    def cursor_after(self, payment: Payment) -> str:
        """The cursor of the page that follows this payment."""
        return _cursor("payments", payment.created_at, payment.id)


class PaymentsQuery(PaymentsOfOrderQuery):
    """Which of one's payments."""

    status: Literal["applied", "refund_due", "refunded"]


class EventsQuery(_Query):
    """Which of an order's events."""

    @property
    def after_id(self) -> int:
        """Where the page before ended. Raises BadRequest."""
        text = "0" if self.cursor is None else _decoded(self.cursor)
        if not (text.isascii() and text.isdecimal() and len(text) < 19):  # noqa: PLR2004  a bigint
            raise BadRequest("This cursor is none of ours.")
        return int(text)


def _cursor(of: str, at: datetime, last_id: str) -> str:
    return encoded(f"{of} {rfc3339(at)} {last_id}")


def encoded(position: str | int) -> str:
    """A cursor: opaque, so that nobody builds on what is in it."""
    return base64.urlsafe_b64encode(str(position).encode()).decode().rstrip("=")


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except ValueError as error:
        raise BadRequest("This cursor is none of ours.") from error


def checked_sku(text: str) -> str:
    """A SKU from a path. Raises SkuNotFound for what can be none."""
    try:
        return SKU.validate_python(text)
    except ValidationError as error:
        raise SkuNotFound("A SKU is 1 to 64 of A-Z a-z 0-9 . _ -") from error


# -- out -----------------------------------------------------------------------------------


#: What `rfc3339` writes.
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def rfc3339(moment: datetime) -> str:
    """In UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Moment = Annotated[datetime, PlainSerializer(rfc3339, when_used="json")]


class _Out(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class LineOut(_Out):
    """Some of one SKU, at its price when the order was placed."""

    sku: str
    quantity: int
    unit_price_minor: int


class OrderOut(_Out):
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


class OrdersOut(_Out):
    """A page of orders."""

    data: list[OrderOut]
    next_cursor: str | None


class PaymentOut(_Out):
    """A payment, and whether the order took it."""

    id: str
    order_id: str
    provider: str
    reference: str
    amount_minor: int
    currency: str
    status: PaymentStatus
    reason: str | None
    created_at: Moment
    refunded_at: Moment | None
    refund_reference: str | None


class PaymentsOut(_Out):
    """A page of payments, oldest first."""

    data: list[PaymentOut]
    next_cursor: str | None


class StockOut(_Out):
    """A SKU's stock; on_hand includes reserved."""

    sku: str
    on_hand: int
    reserved: int
    price_minor: int
    currency: str


class EventOut(_Out):
    """Something that happened to an order."""

    type: str
    at: Moment
    data: OrderOut | dict[str, Any]


class EventsOut(_Out):
    """A page of events, oldest first."""

    data: list[EventOut]
    next_cursor: str | None


class ProblemOut(_Out):
    """An error, as RFC 9457 has it. ``code`` is stable."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str | None = None
