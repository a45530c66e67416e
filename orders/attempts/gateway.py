"""A payment provider that closes attempts over HTTP: a signed request out, JSON back.

The request is signed, and its address checked, as those of webhooks are. A provider that has an API of
its own, such as Stripe, is asked through a small service of the shop's: see `examples/gateway.py`.
"""

import json
from typing import Annotated, Literal, Protocol
from uuid import uuid4

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, RootModel, ValidationError

from orders.attempts.domain import Closed, Closer, Paid, Reply, Unknown
from orders.errors import GatewayUnavailable
from orders.order.domain import as_stored
from orders.stock.domain import MAX_MINOR
from orders.webhooks.domain import Answer
from orders.webhooks.signatures import signed

#: What is asked for.
CLOSE = "payment.close"


class Poster(Protocol):
    """Sends over HTTP, such as `orders.webhooks.sender.WebhookSender`."""

    def post(self, url: str, headers: dict[str, str], body: bytes, /) -> Answer: ...


class _Closed(BaseModel):
    outcome: Literal["closed"]


class _Unknown(BaseModel):
    outcome: Literal["unknown"]


class _Paid(BaseModel):
    outcome: Literal["paid"]
    amount_minor: Annotated[int, Field(strict=True, ge=1, le=MAX_MINOR)]
    currency: Annotated[str, Field(pattern="^[A-Za-z]{3}$")]
    paid_at: Annotated[AwareDatetime, Field(strict=True), AfterValidator(as_stored)] | None = None


class _Reply(RootModel[Annotated[_Closed | _Paid | _Unknown, Field(discriminator="outcome")]]):
    """What a provider may answer, in JSON's own types; unknown fields are ignored."""


class HttpGateway:
    """Asks at one URL, with the secrets of the provider's endpoint. It is for one request."""

    def __init__(self, sender: Poster, closer: Closer) -> None:
        self._sender = sender
        self._closer = closer

    def close(self, reference: str, /) -> Reply:
        """Ask to close an attempt. Raises GatewayUnavailable."""
        body = json.dumps({"type": CLOSE, "data": {"reference": reference}}).encode()
        url, secrets, at = self._closer
        headers = signed(f"close_{uuid4().hex}", body, secrets, now_seconds=at.timestamp())
        answer = self._sender.post(url, headers, body)
        if not answer.is_success:
            raise GatewayUnavailable(answer.error or f"HTTP {answer.status}")
        try:
            reply = _Reply.model_validate_json(answer.body or "").root
        except ValidationError as error:
            raise GatewayUnavailable(f"It makes no sense: {answer.body!r}"[:200]) from error
        if isinstance(reply, _Paid):
            return Paid(reply.amount_minor, reply.currency.upper(), reply.paid_at)
        return Closed() if isinstance(reply, _Closed) else Unknown()
