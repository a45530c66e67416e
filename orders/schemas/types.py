"""What the schemas are made of."""

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from orders.domain import MAX_MINOR
from orders.errors import SkuNotFound
from orders.schemas.currencies import CURRENCIES

SKU_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
Sku = Annotated[str, StringConstraints(pattern=SKU_PATTERN)]
SKU = TypeAdapter(Sku)
Currency = Annotated[
    str, StringConstraints(pattern=r"^[A-Z]{3}$"), Field(description="ISO 4217", examples=["EUR"])
]


def _known(currency: str) -> str:
    if currency not in CURRENCIES:
        raise ValueError("it is not a currency of ISO 4217")
    return currency


#: What a price may be in. Orders and payments may still be in a currency that was withdrawn since.
PriceCurrency = Annotated[
    Currency, AfterValidator(_known), Field(json_schema_extra={"enum": sorted(CURRENCIES)})
]


Reference = Annotated[
    str,
    StringConstraints(pattern=r"^[!-~]{1,255}$"),
    Field(description="The provider's own name for it: unique, printable ASCII."),
]


#: The name of a payment provider.
Provider = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,50}$")]
Amount = Annotated[int, Field(ge=1, le=MAX_MINOR)]


class In(BaseModel):
    """Takes JSON's own types only, and no field that it does not know."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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
        raise ValueError("it is not a time of RFC 3339")
    return value


def _to_the_millisecond(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


#: A moment in a body, rounded down to the millisecond.
Deadline = Annotated[
    AwareDatetime,
    BeforeValidator(_timestamp),
    AfterValidator(_to_the_millisecond),
    Field(strict=False, examples=["2030-01-31T12:30:00Z"]),
]

Moment = Annotated[datetime, PlainSerializer(rfc3339, when_used="json")]


def checked_sku(text: str) -> str:
    """A SKU from a path. Raises SkuNotFound for what can be none."""
    try:
        return SKU.validate_python(text)
    except ValidationError as error:
        raise SkuNotFound("A SKU is 1 to 64 of A-Z a-z 0-9 . _ -") from error
