"""The types that the schemas are made of.

Each kind of value is described once, with its bounds and an example. Requests are checked against
it. Responses are only documented by it (`Shown`): a stored value was checked when it arrived, and
is shown even if the bounds are narrower now.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from orders.errors import SkuNotFound
from orders.http.schemas.currencies import CURRENCIES
from orders.stock.domain import MAX_INT, MAX_MINOR
from worker.pauses import MAX_REASON, PRINTABLE

#: A list of entity tags, or * for any: RFC 9110.
IF_MATCH = r'^(\*|(W/)?"[!#-~]*"([ \t]*,[ \t]*(W/)?"[!#-~]*")*)$'
MAX_IF_MATCH = 1000

#: Matches every SKU that exists.
SKU_PATTERN = "[A-Za-z0-9._-]{1,64}"
#: A new SKU must not be "." or "..", which clients resolve in a URL before they send it.
NEW_SKU = r"^([A-Za-z0-9_-]|\.[A-Za-z0-9_-]|\.\.[A-Za-z0-9._-])[A-Za-z0-9._-]*$"


def text(example: str | None, description: str, pattern: str, most: int, least: int = 1) -> Any:
    """What a text is that matches, and has at most so many characters, to pydantic and in the document."""
    return Field(
        min_length=least,
        max_length=most,
        pattern=pattern,
        description=description,
        examples=None if example is None else [example],
    )


Sku = Annotated[str, text("mug", "The shop's own name for what it sells.", NEW_SKU, 64)]
SKU = TypeAdapter(Sku)


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: For an integer as JSON Schema has it: 144.0 is one. It stands after the bounds.
WHOLE = BeforeValidator(_whole)


def whole(example: int, description: str, *, ge: int, le: int) -> tuple[Any, ...]:
    """What an integer within these bounds is, to pydantic and in the document."""
    return Field(ge=ge, le=le, description=description, examples=[example]), WHOLE


def line(most: int = MAX_REASON) -> StringConstraints:
    """A line of text for people; as it is, a reason."""
    return StringConstraints(min_length=1, max_length=most, pattern=PRINTABLE)


Quantity = Annotated[int, *whole(2, "How many pieces.", ge=1, le=MAX_INT)]
Count = Annotated[int, *whole(0, "How many pieces.", ge=0, le=MAX_INT)]
_IN_MINOR = "In the currency's minor units: {} is EUR {}."
Amount = Annotated[int, *whole(2500, _IN_MINOR.format(2500, "25.00"), ge=1, le=MAX_MINOR)]
Price = Annotated[int, *whole(1250, _IN_MINOR.format(1250, "12.50"), ge=0, le=MAX_MINOR)]
Currency = Annotated[str, text("EUR", "ISO 4217", "^[A-Z]{3}$", 3, least=3)]


def _known(currency: str) -> str:
    if currency not in CURRENCIES:
        raise ValueError("it is not a currency of ISO 4217")
    return currency


#: The currencies of prices. Orders and payments may be in a currency that has been withdrawn since.
PriceCurrency = Annotated[
    Currency, AfterValidator(_known), Field(json_schema_extra={"enum": sorted(CURRENCIES)})
]
Provider = Annotated[
    str,
    text("bank", "Who took the money, in lower or upper case.", "^[A-Za-z0-9._-]+$", 50),
    StringConstraints(to_lower=True),
]
NAMED_BY_PROVIDER = "The provider's own name for it: unique, printable ASCII."
Reference = Annotated[str, text("tx-1", NAMED_BY_PROVIDER, "^[!-~]+$", 255)]


class Shown:
    """Documents a field as another type does, and checks nothing."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), **TypeAdapter(self._kind).json_schema()}


SkuOut = Annotated[str, Shown(Sku)]
QuantityOut = Annotated[int, Shown(Quantity)]
CountOut = Annotated[int, Shown(Count)]
AmountOut = Annotated[int, Shown(Amount)]
PriceOut = Annotated[int, Shown(Price)]
CurrencyOut = Annotated[str, Shown(Currency)]
ProviderOut = Annotated[str, Shown(Provider)]
ReferenceOut = Annotated[str, Shown(Reference)]

#: Ids are ours, so they need no check.
Id = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "format": "uuid",
            "description": "Its id.",
            "examples": ["01936d5e-7c1a-7b3e-9f04-2a6b8c0d1e2f"],
        }
    ),
]
Sequence = Annotated[
    int,
    Field(
        description="The event's number: the later of two events of an order has the greater one. The "
        "webhook messages about an event and the list of all events have the same.",
        examples=[4711],
        json_schema_extra={"minimum": 1, "maximum": 2**63 - 1},
    ),
]
Version = Annotated[
    int,
    Field(
        json_schema_extra={"minimum": 1, "maximum": MAX_INT},
        description="Increases by one with each change; refunds do not count.",
        examples=[1],
    ),
]


class In(BaseModel):
    """Accepts JSON's own types only, and no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ChangeIn(In):
    """What to change of something: one thing or more."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("it changes nothing")
        return self


class Out(BaseModel):
    """Made of the attributes of a domain object."""

    model_config = ConfigDict(from_attributes=True)


def rfc3339(moment: datetime) -> str:
    """In UTC, to the millisecond."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: RFC 3339, whose fractions of a second may have any number of digits.
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _timestamp(value: object) -> object:
    if not (isinstance(value, str) and TIMESTAMP.fullmatch(value)):
        raise ValueError("it is not an RFC 3339 time")
    return value


def _to_the_millisecond(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _as_stored(moment: datetime) -> datetime:
    """A moment in UTC, as it is stored.

    Raises ValueError for one that has no year from 1 to 9999 there: it could be stored, and not read.
    """
    try:
        utc = moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("it is not in the years 1 to 9999, in UTC") from error
    return _to_the_millisecond(utc)


#: A moment in a body, rounded down to the millisecond.
MomentIn = Annotated[
    AwareDatetime, BeforeValidator(_timestamp), AfterValidator(_to_the_millisecond)
]
Deadline = Annotated[
    MomentIn,
    Field(
        strict=False,
        description="When the order is cancelled unless it is paid, rounded down to the millisecond.",
        examples=["2030-01-31T12:30:00Z"],
    ),
]
PaidAt = Annotated[
    MomentIn,
    AfterValidator(_as_stored),
    Field(
        strict=False,
        description="When the money was taken, by the provider's clock.",
        examples=["2026-11-22T09:29:59Z"],
    ),
]

Moment = Annotated[
    datetime,
    PlainSerializer(rfc3339, when_used="json"),
    WithJsonSchema(
        {
            "type": "string",
            "format": "date-time",
            "description": "RFC 3339, in UTC, to the millisecond.",
            "examples": ["2026-11-22T09:30:00.000Z"],
        }
    ),
]


def checked_sku(text: str) -> str:
    """A SKU from a path. Raises SkuNotFound for what cannot be one."""
    try:
        return SKU.validate_python(text)
    except ValidationError as error:
        raise SkuNotFound("A SKU is 1 to 64 of A-Z a-z 0-9 . _ -") from error
