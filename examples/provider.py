# <providers/>
"""A minimal payment provider: it takes money, and reports that until the report is acknowledged.

provider = PaymentProvider("http://127.0.0.1:8000/v1/providers/ID/webhook", "whsec_...")
provider.deliver(provider.charge(order))    # an order as the API shows it
"""

import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

from orders.features.signing.signatures import signed

#: Seconds after each failed attempt. A real provider keeps trying for days.
DELAYS = (0.2, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Message:
    """A webhook: every attempt sends the same bytes with the same id."""

    id: str
    body: bytes


class PaymentProvider:
    """Sends webhooks to one endpoint, whose path and secret ``providers add`` prints."""

    def __init__(self, url: str, secret: str) -> None:
        self._url = url
        self._secret = secret

    def charge(self, order: dict[str, Any]) -> Message:
        """Take the order's total from a customer; return the message that reports it."""
        money = {"amount_minor": order["total_minor"], "currency": order["currency"]}
        data = {"order_id": order["id"], "reference": f"tx_{uuid4().hex}", **money}
        body = json.dumps({"type": "payment.succeeded", "data": data})
        return Message(f"msg_{uuid4().hex}", body.encode())

    def deliver(self, message: Message) -> str:
        """Send until it is acknowledged; return the outcome. Raises OSError after the last attempt."""
        delays = iter(DELAYS)
        while True:
            # Signed again, because the signature covers the time of the attempt.
            headers = signed(message.id, message.body, [self._secret], now_seconds=time.time())
            headers["Content-Type"] = "application/json"
            request = Request(self._url, message.body, headers)  # noqa: S310  whoever runs it names the URL
            try:
                with urlopen(request, timeout=5) as response:  # noqa: S310
                    return str(json.load(response)["outcome"])
            except OSError:  # any status but 2xx, no connection, no answer in time
                if (delay := next(delays, None)) is None:
                    raise
                time.sleep(delay)
