"""A payment provider that closes attempts over HTTP: a signed request out, JSON back.

The request is signed, and its address checked, as those of webhooks are. A provider that has an API of
its own, such as Stripe, is asked through a small service of the shop's: see `examples/gateway.py`.
"""

import json
from collections.abc import Callable
from uuid import uuid4

from pydantic import ValidationError
from werkzeug.exceptions import BadRequest

from orders.features.providers.attempts.domain import Closer, DueAttempt
from orders.features.providers.errors import GatewayUnavailable
from orders.features.providers.schemas import CloseReply, OtherReply, PaidReply
from orders.features.signing.sender import HttpSender
from orders.features.signing.signatures import signed
from orders.http.strict_json import parse_object

#: What is asked for.
CLOSE = "payment.close"
#: What a provider is asked about.
COMPARED = ("provider", "order_id", "reference", "amount_minor", "currency")

Reply = PaidReply | OtherReply
#: Closes an attempt, or says which order was paid, and how much. Repeating it is harmless. Raises GatewayUnavailable if
#: it said nothing of use about this attempt.
Gateway = Callable[[DueAttempt], Reply]


def close(sender: HttpSender, closer: Closer, attempt: DueAttempt) -> Reply:
    """Ask at one URL, with the secrets of the provider's endpoint, as a `Gateway` does."""
    data = {name: getattr(attempt, name) for name in COMPARED}
    body = json.dumps({"type": CLOSE, "data": data}).encode()
    url, secrets, at = closer
    headers = signed(f"close_{uuid4().hex}", body, secrets, now_seconds=at.timestamp())
    answer = sender.post(url, headers, body)
    if answer.is_success:
        return _reply(answer.body or "")
    raise GatewayUnavailable(answer.error or f"HTTP {answer.status}")


def check(reply: Reply, attempt: DueAttempt) -> None:
    """Raises GatewayUnavailable if a reply names something else than what was asked about.

    A client may give an attempt any provider and reference: also those of a payment for another order.
    """
    for name in COMPARED:
        if getattr(reply, name, None) not in (None, getattr(attempt, name)):
            raise GatewayUnavailable(f"It names another {name}.")


def _reply(body: str) -> Reply:
    """Raises GatewayUnavailable."""
    try:
        return CloseReply.model_validate(parse_object(body.encode())).root
    except (BadRequest, ValidationError) as error:
        # Not what it says, which may be about a person: errors are kept with their tasks.
        wrong = error.errors(include_url=False) if isinstance(error, ValidationError) else []
        where = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in wrong)
        raise GatewayUnavailable(f"It makes no sense: {where or 'no JSON object'}"[:200]) from None
