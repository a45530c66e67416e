# <providers/>
"""Closes payments at Stripe when the order service asks for it: what a ``--close-url`` leads to.

python -m examples.gateway 9000 whsec_... sk_test_...

An attempt's reference is the id of a Checkout session, as is that of the payment reported for it. The
session's ``client_reference_id`` is the order's id.
"""

import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from orders.features.signing.errors import SignatureInvalid
from orders.features.signing.signatures import verify

#: Less than the order service waits for an answer.
TIMEOUT_SECONDS = 4


class Stripe:
    """The two calls that it takes."""

    def __init__(self, key: str, url: str = "https://api.stripe.com", name: str = "stripe") -> None:
        #: As in ``providers add shop stripe``.
        self._name = name
        self._headers = {"Authorization": f"Bearer {key}"}
        self._sessions = f"{url}/v1/checkout/sessions"

    def close(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Expire a session, so that nobody can pay any more; or say how it ended.

        Raises OSError, and ValueError if the session is not for what the order service asks about: a
        reference is whatever a client says that it is.
        """
        path = quote(asked["reference"], safe="")
        session = self._find(path)
        for name, theirs in (
            ("provider", self._name),
            ("reference", session["id"]),
            ("order_id", session["client_reference_id"]),
            ("amount_minor", session["amount_total"]),
            ("currency", (session["currency"] or "").upper()),
        ):
            if asked[name] != theirs:
                raise ValueError(f"{path} has another {name}")
        if session["status"] == "open":
            with suppress(HTTPError):  # Stripe refuses to expire what was paid meanwhile
                self._call("POST", f"{path}/expire")
            session = self._find(path)
        found = {
            "provider": self._name,
            "order_id": session["client_reference_id"],
            "reference": session["id"],
        }
        if session["payment_status"] == "paid":
            charged = session["payment_intent"]["latest_charge"]["created"]
            return {
                **found,
                "outcome": "paid",
                "amount_minor": session["amount_total"],
                "currency": session["currency"],
                "paid_at": datetime.fromtimestamp(charged, UTC).isoformat(),
            }
        # A bank debit, for instance, is complete long before it is paid.
        return {**found, "outcome": "closed" if session["status"] == "expired" else "unknown"}

    def _find(self, path: str) -> Any:
        return self._call("GET", f"{path}?expand[]=payment_intent.latest_charge")

    def _call(self, method: str, path: str) -> Any:
        request = Request(f"{self._sessions}/{path}", method=method, headers=self._headers)  # noqa: S310  ours
        with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
            return json.load(response)


class Gateway(BaseHTTPRequestHandler):
    """Answers what the order service asks."""

    secret = ""
    stripe: Stripe

    def do_POST(self) -> None:
        """Verify the raw body before parsing it. An exception hangs up: the service leaves us alone for a while.

        So what is wrong with one attempt is answered, with a 4xx.
        """
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            verify(headers, body, [self.secret], now_seconds=time.time())
        except SignatureInvalid:
            self.send_error(401)
            return
        try:
            answer = json.dumps(self.stripe.close(json.loads(body)["data"])).encode()
        except HTTPError as error:
            self.send_error(error.code)
            return
        except (ValueError, LookupError, TypeError):
            self.send_error(422)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    port, Gateway.secret, key = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    Gateway.stripe = Stripe(key)
    ThreadingHTTPServer(("127.0.0.1", port), Gateway).serve_forever()
