"""Whether the process runs, and whether it can work."""

from typing import Literal

from pydantic import Field

from orders.http.schemas.types import Out


class HealthOut(Out):
    """The process runs."""

    status: Literal["ok"] = Field(description="Always ok.")


class ReadinessOut(Out):
    """Whether the service can work, and what is missing."""

    status: Literal["ready", "degraded", "unavailable"] = Field(
        description="Degraded without Redis: the service works, but orders are cancelled a little later."
    )
    database: str = Field(
        description="ok, or what is wrong with it.",
        examples=["ok"],
        json_schema_extra={"maxLength": 200},
    )
    redis: Literal["ok", "unavailable"] = Field(description="Whether Redis answers.")
