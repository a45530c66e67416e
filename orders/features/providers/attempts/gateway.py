"""A payment provider that closes attempts over HTTP: a signed request out, JSON back.

The request is signed, and its address checked, as those of webhooks are. A provider that has an API of
its own, such as Stripe, is asked through a small service of the shop's: see `examples/gateway.py`.
"""

import json
from typing import Protocol
from uuid import uuid4

from pydantic import ValidationError
from werkzeug.exceptions import BadRequest

from orders.features.providers.attempts.domain import (
    COMPARED,
    Closed,
    Closer,
    DueAttempt,
    Paid,
    Reply,
    Unknown,
)
from orders.features.providers.errors import GatewayUnavailable
from orders.features.providers.schemas import CloseReply, PaidReply
from orders.features.signing.sender import Answer
from orders.features.signing.signatures import signed
from orders.http.strict_json import parse_object

#: What is asked for.
CLOSE = "payment.close"


class Poster(Protocol):
    """Sends over HTTP, such as `orders.features.signing.sender.HttpSender`."""

    def post(self, url: str, headers: dict[str, str], body: bytes, /) -> Answer: ...


class HttpGateway:
    """Asks at one URL, with the secrets of the provider's endpoint. It is for one request."""

    def __init__(self, sender: Poster, closer: Closer) -> None:
        self._sender = sender
        self._closer = closer

    def close(self, attempt: DueAttempt, /) -> Reply:
        """Ask to close an attempt. Raises GatewayUnavailable if no answer comes that is of use."""
        data = {name: getattr(attempt, name) for name in COMPARED}
        body = json.dumps({"type": CLOSE, "data": data}).encode()
        url, secrets, at = self._closer
        headers = signed(f"close_{uuid4().hex}", body, secrets, now_seconds=at.timestamp())
        answer = self._sender.post(url, headers, body)
        if answer.is_success:
            return _reply(answer.body or "")
        raise GatewayUnavailable(answer.error or f"HTTP {answer.status}")


def _reply(body: str) -> Reply:
    """Raises GatewayUnavailable."""
    try:
        reply = CloseReply.model_validate(parse_object(body.encode())).root
    except (BadRequest, ValidationError) as error:
        # Not what it says, which may be about a person: errors are kept with their tasks.
        wrong = error.errors(include_url=False) if isinstance(error, ValidationError) else []
        where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in wrong)
        raise GatewayUnavailable(f"It makes no sense: {where or 'no JSON object'}"[:200]) from None
    if isinstance(reply, PaidReply):
        return Paid(**reply.model_dump(exclude={"outcome"}))
    return (
        Closed(**reply.model_dump(exclude={"outcome"})) if reply.outcome == "closed" else Unknown()
    )
