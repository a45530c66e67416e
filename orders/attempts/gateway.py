"""A payment provider that closes attempts over HTTP: a signed request out, JSON back.

The request is signed, and its address checked, as those of webhooks are. A provider that has an API of
its own, such as Stripe, is asked through a small service of the shop's: see `examples/gateway.py`.
"""

import json
from typing import Protocol
from uuid import uuid4

from orders.attempts.domain import Closer, DueAttempt, Reply
from orders.errors import GatewayUnavailable
from orders.http.reports import reply_of
from orders.webhooks.domain import Answer
from orders.webhooks.signatures import signed

#: What is asked for.
CLOSE = "payment.close"


class Poster(Protocol):
    """Sends over HTTP, such as `orders.webhooks.sender.WebhookSender`."""

    def post(self, url: str, headers: dict[str, str], body: bytes, /) -> Answer: ...


class HttpGateway:
    """Asks at one URL, with the secrets of the provider's endpoint. It is for one request."""

    def __init__(self, sender: Poster, closer: Closer) -> None:
        self._sender = sender
        self._closer = closer

    def close(self, attempt: DueAttempt, /) -> Reply:
        """Ask to close an attempt. Raises GatewayUnavailable."""
        names = ("order_id", "reference", "amount_minor", "currency")
        data = {name: getattr(attempt, name) for name in names}
        body = json.dumps({"type": CLOSE, "data": data}).encode()
        url, secrets, at = self._closer
        headers = signed(f"close_{uuid4().hex}", body, secrets, now_seconds=at.timestamp())
        answer = self._sender.post(url, headers, body)
        if not answer.is_success:
            raise GatewayUnavailable(answer.error or f"HTTP {answer.status}")
        return reply_of(answer.body or "")
