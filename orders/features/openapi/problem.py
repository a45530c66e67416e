"""Errors."""

from typing import Annotated, Literal

from pydantic import Field

from orders.http.schemas.types import Out, Sku
from orders.stock.domain import MAX_INT


class ProblemOut(Out):
    """An error in the format of RFC 9457. ``code`` is stable, for programs; the rest is for people."""

    type: Literal["about:blank"] = Field(
        description="about:blank: the status says what kind of error it is."
    )
    title: str = Field(description="The status in words.", max_length=50, examples=["Conflict"])
    status: int = Field(description="The status.", ge=400, le=599, examples=[409])
    code: str = Field(
        description="What went wrong.",
        max_length=50,
        pattern="^[a-z_]+$",
        examples=["out_of_stock"],
    )
    detail: str | None = Field(
        default=None,
        description="What went wrong, in a sentence.",
        max_length=2000,
        examples=["There is too little stock. mug"],
    )
    errors: (
        dict[str, Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=100)]]
        | None
    ) = Field(
        default=None,
        description="What is wrong with each field that does not validate.",
        examples=[{"quantity": ["Input should be greater than or equal to 1"]}],
    )
    sku: Sku | None = Field(default=None, description="Which SKU it is about.")
    limit: int | None = Field(
        default=None, description="How many there may be.", ge=0, le=MAX_INT, examples=[10]
    )
    retry_after: int | None = Field(
        default=None, description="As Retry-After says.", ge=0, le=86_400, examples=[1]
    )
    available: int | None = Field(
        default=None, description="How many pieces there are.", ge=0, le=MAX_INT, examples=[1]
    )
