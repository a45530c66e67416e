"""Customers who place orders over HTTP and pay them in time, late, or not at all.

Some move their deadline first. Money that came too late goes back.
"""

import json
import random
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.kit.checker import Response

#: A request is repeated, with the same key, while it is answered with one of these or not at all.
PASSING = {409, 503}
PASSING_CODES = {"storage_unavailable", "key_in_flight", "stock_busy", "server_busy"}


class Load:
    """``customers`` threads against several API processes, until `stop`."""

    def __init__(
        self,
        base_urls: Sequence[str],
        api_key: str,
        skus: Sequence[str],
        *,
        customers: int,
        seed: int,
    ) -> None:
        #: Everything that customers were told, in no order.
        self.responses: list[Response] = []
        self._base_urls = base_urls
        self._api_key = api_key
        self._skus = skus
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._shop, args=(f"{seed}-{n}", random.Random(f"{seed}-{n}")))
            for n in range(customers)
        ]

    def placed(self) -> int:
        """How many answers said that an order was placed."""
        told = [*self.responses]
        return sum(response.request == "create" and response.status == 201 for response in told)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every customer finish what it is at."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _shop(self, name: str, chance: random.Random) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            self._buy(f"{name}-{number}", chance)

    def _buy(self, key: str, chance: random.Random) -> None:
        timeout: float = chance.choice((1, 2, 3))
        body = {
            "items": [
                {"sku": sku, "quantity": chance.randint(1, 3)}
                for sku in chance.sample(list(self._skus), chance.randint(1, 3))
            ],
            "timeout_seconds": timeout,
        }
        placed = self._insist("create", "/v1/orders", body, key, chance)
        if placed.status != 201:
            return
        order = placed.body
        if chance.random() < 0.3:
            timeout = self._extend(order, key, chance) or timeout
        # In time, in the instant of the deadline, too late, or not at all.
        wait = chance.choice((0.1, 0.5, timeout, timeout, timeout + 0.5, None, None))
        if wait is None:
            return
        self._stopping.wait(wait)
        if chance.random() < 0.2:
            self._insist("cancel", f"/v1/orders/{order['id']}/cancel", None, key, chance)
            return
        payment = {
            "provider": "load",
            "reference": key,
            "amount_minor": order["total_minor"],
            "currency": order["currency"],
        }
        paid = self._insist("pay", f"/v1/orders/{order['id']}/payments", payment, key, chance)
        if paid.body.get("status") == "refund_due" and chance.random() < 0.7:
            refund = {"reference": f"refund-{key}"}
            self._insist("refund", f"/v1/payments/{paid.body['id']}/refund", refund, key, chance)

    def _extend(self, order: Mapping[str, Any], key: str, chance: random.Random) -> float | None:
        """Move the deadline, later or earlier, at once or when it is near; the new timeout if it was."""
        self._stopping.wait(chance.choice((0, 0, 0.5, 1)))
        timeout = chance.choice((1.5, 2, 4))
        deadline = datetime.fromisoformat(order["created_at"]) + timedelta(seconds=timeout)
        body = {"expires_at": deadline.isoformat()}
        extended = self._insist("extend", f"/v1/orders/{order['id']}", body, key, chance)
        return timeout if extended.status == HTTPStatus.OK else None

    def _insist(
        self, request: str, path: str, body: object, key: str, chance: random.Random
    ) -> Response:
        """Send until there is an answer that time does not mend."""
        method = "PATCH" if request == "extend" else "POST"
        while True:
            status, answer = self._send(method, chance.choice(self._base_urls) + path, body, key)
            response = Response(request, key, status, answer)
            if status:
                self.responses.append(response)
            passing = status == 0 or (status in PASSING and answer.get("code") in PASSING_CODES)
            if not passing or self._stopping.is_set():
                return response
            self._stopping.wait(0.2)

    def _send(self, method: str, url: str, body: object, key: str) -> tuple[int, Mapping[str, Any]]:
        """Status and body; status 0 when there was no answer."""
        headers = {
            "Authorization": f"Bearer {self._api_key}",
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "If-Match": '"1"',  # as it was placed
        }
        data = b"" if body is None else json.dumps(body).encode()
        request = Request(url, method=method, data=data, headers=headers)  # noqa: S310  our own
        try:
            with urlopen(request, timeout=10) as response:  # noqa: S310  our own
                return response.status, json.load(response)
        except HTTPError as error:
            return error.code, json.load(error)
        except (URLError, OSError, HTTPException, ValueError):
            return 0, {}
