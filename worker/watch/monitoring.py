"""The port on which a process reports its metrics and its health to Prometheus and to a supervisor.

The server has its own threads, so that it answers while all others are busy. It is for a private network:
it has neither authentication nor TLS.
"""

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from ..errors import FATAL, WorkerError
from ..log import log

#: How long a client may take to send its request, and to read the response.
CLIENT_SECONDS = 5.0
#: How long `ask` waits for an answer, which takes milliseconds.
ASK_SECONDS = 5.0

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class PortUnavailable(WorkerError):
    """The port for metrics and health cannot be used."""


class Reply(NamedTuple):
    """A response."""

    body: bytes
    content_type: str = TEXT
    status: int = HTTPStatus.OK


#: Makes the response, given the request's Accept header.
Page = Callable[[str], Reply]


def json_reply(body: object, status: int = HTTPStatus.OK) -> Reply:
    return Reply(json.dumps(body).encode() + b"\n", JSON, status)


class MonitoringServer:
    """Serves some pages by GET until it is closed."""

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Page], *, shared: bool = False
    ) -> None:
        """Port 0 means any free port. If ``shared``, other processes of this user may serve the same port, and
        the kernel chooses one of them for each request.

        Raises PortUnavailable.
        """
        try:
            self._server = _server(host, port, pages, shared=shared)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PortUnavailable(f"{host}:{port}: {reason}.") from error
        #: The port that is served, also where 0 was asked for.
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="monitoring", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _server(
    host: str, port: int, pages: Mapping[str, Page], *, shared: bool
) -> socketserver.ThreadingTCPServer:
    [(family, _, _, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    numeric_host = str(address[0])

    class PageServer(socketserver.ThreadingTCPServer):
        address_family = family
        # Lets a restart use the port at once; a port that somebody listens on is still refused.
        allow_reuse_address = True
        allow_reuse_port = shared
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore clients that disconnect."""

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS
        server_version = "monitoring"
        sys_version = ""

        def do_GET(self) -> None:
            _send(self, _reply(pages, self.path.partition("?")[0], self.headers.get("Accept", "")))

        def log_message(self, *_: object) -> None:
            """Log nothing: there is a request every few seconds."""

    return PageServer((numeric_host, port), Handler)


def _reply(pages: Mapping[str, Page], path: str, accept: str) -> Reply:
    page = pages.get(path)
    if page is None:
        return Reply(
            f"This port has {' and '.join(pages)}.\n".encode(), status=HTTPStatus.NOT_FOUND
        )
    try:
        return page(accept)
    except FATAL:
        raise
    except BaseException:  # an application's own metrics may raise anything
        log.exception("a monitoring page fails", path=path)
        return Reply(b"It failed; the log says why.\n", status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
    with suppress(OSError):  # the client is gone
        handler.send_response(reply.status)
        handler.send_header("Content-Type", reply.content_type)
        handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body)


def ask(url: str) -> tuple[int, str]:
    """The status and the body of a response. Raises OSError if there is no answer.

    Raises ValueError for anything but an HTTP URL.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http:// URL")
    # Without a proxy, because the process is on this machine or nearby.
    opener = build_opener(ProxyHandler({}))
    try:
        try:
            with opener.open(url, timeout=ASK_SECONDS) as response:
                return response.status, response.read().decode(errors="replace")
        except HTTPError as error:
            with error:
                return error.code, error.read().decode(errors="replace")
    except HTTPException as error:
        raise OSError(f"{url} does not speak HTTP: {error!r}") from error
