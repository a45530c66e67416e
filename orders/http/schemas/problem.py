"""Errors."""

from typing import Annotated, Literal

from pydantic import Field

from orders.http.schemas.types import Out, Sku
from orders.stock.domain import MAX_INT


class ProblemOut(Out):
    """An error in the format of RFC 9457. ``code`` is stable, for programs; the rest is for people."""

    type: Annotated[
        Literal["about:blank"],
        Field(description="about:blank: the status says what kind of error it is."),
    ]
    title: Annotated[
        str, Field(description="The status in words.", max_length=50, examples=["Conflict"])
    ]
    status: Annotated[int, Field(description="The status.", ge=400, le=599, examples=[409])]
    code: Annotated[
        str,
        Field(
            description="What went wrong.",
            max_length=50,
            pattern="^[a-z_]+$",
            examples=["out_of_stock"],
        ),
    ]
    detail: Annotated[
        str | None,
        Field(
            description="What went wrong, in a sentence.",
            max_length=2000,
            examples=["There is too little stock. mug"],
        ),
    ] = None
    errors: Annotated[
        dict[str, Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=100)]]
        | None,
        Field(
            description="What is wrong with each field that does not validate.",
            examples=[{"quantity": ["Input should be greater than or equal to 1"]}],
        ),
    ] = None
    sku: Annotated[Sku | None, Field(description="Which SKU it is about.")] = None
    limit: Annotated[
        int | None, Field(description="How many there may be.", ge=0, le=MAX_INT, examples=[10])
    ] = None
    retry_after: Annotated[
        int | None, Field(description="As Retry-After says.", ge=0, le=86_400, examples=[1])
    ] = None
    available: Annotated[
        int | None,
        Field(description="How many pieces there are.", ge=0, le=MAX_INT, examples=[1]),
    ] = None
