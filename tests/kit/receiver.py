"""An endpoint that receives webhooks, as a client would run one."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from devtools.processes import free_port


@dataclass(frozen=True)
class Received:
    """A message as it came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.body))

    @property
    def type(self) -> str:
        return str(self.json["type"])


class Receiver:
    """Answers with `status`, or as `answer` says, and keeps what came."""

    def __init__(self, port: int | None = None) -> None:
        self.messages: list[Received] = []
        self.status = 200
        self.text = b"thanks"
        self.headers = {"Location": "/elsewhere"}
        #: Is called with each message before it is answered.
        self.before: Callable[[Received], object] = lambda _: None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                message = Received({**headers, ":path": self.path}, body)
                receiver.before(message)
                receiver.messages.append(message)
                self.send_response(receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(receiver.text)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Who hangs up before the end of an answer has a reason for it."""

        # Reserved: a test may close it, and open another there.
        self._server = Server(("127.0.0.1", port or free_port()), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def types(self) -> list[str]:
        return [message.type for message in self.messages]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def receiving(port: int | None = None) -> Iterator[Receiver]:
    """A receiver on a port of this machine."""
    receiver = Receiver(port)
    try:
        yield receiver
    finally:
        receiver.close()
