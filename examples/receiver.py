# <webhooks/>
"""Receives webhooks, and prints those with a valid signature.

python -m examples.receiver 9000 whsec_...
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from orders.features.signing.errors import SignatureInvalid
from orders.features.signing.signatures import verify


class Receiver(BaseHTTPRequestHandler):
    """Answers at once. A real receiver stores the message, and processes it later."""

    secret = ""

    def do_POST(self) -> None:
        """Verify the raw body before parsing it."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            message_id = verify(headers, body, [self.secret], now_seconds=time.time())
        except SignatureInvalid:
            self.send_error(401)
            return
        message = json.loads(body)
        # A message may come twice: a real receiver stores the ids it has processed.
        order = message["data"].get("order", {})  # a ping is about none
        print(message["type"], order.get("id", "-"), message_id, flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print messages only."""


if __name__ == "__main__":
    port, Receiver.secret = int(sys.argv[1]), sys.argv[2]
    ThreadingHTTPServer(("127.0.0.1", port), Receiver).serve_forever()
