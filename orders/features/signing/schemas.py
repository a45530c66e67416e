"""The headers of signed messages."""

from pydantic import BaseModel, ConfigDict, Field


class WebhookHeaders(BaseModel):
    """The headers of Standard Webhooks."""

    model_config = ConfigDict(populate_by_name=True)

    webhook_id: str = Field(
        alias="webhook-id",
        description="The message's id, the same for every attempt.",
        examples=["msg-1"],
        json_schema_extra={"maxLength": 255},
    )
    webhook_timestamp: str = Field(
        alias="webhook-timestamp",
        description="Seconds since the epoch, at most five minutes from now.",
        examples=["1795339800"],
        json_schema_extra={"maxLength": 15, "pattern": "^[0-9]+$"},
    )
    webhook_signature: str = Field(
        alias="webhook-signature",
        description="v1, and the base64 of an HMAC-SHA256 of id.timestamp.body; several, "
        "separated by spaces, during a rotation.",
        examples=["v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="],
        json_schema_extra={"maxLength": 600},
    )
