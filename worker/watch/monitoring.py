"""The port on which a process reports its metrics and its health to Prometheus and to a supervisor.

The server has its own threads, so that it answers while all others are busy. It is for a private network:
it has neither authentication nor TLS.
"""

import socket
import threading
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from http.client import HTTPException
from socketserver import TCPServer, ThreadingMixIn
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..errors import WorkerError
from ..log import Reminder, log

#: How long a client may take to send its request, and to read the response.
CLIENT_SECONDS = 5.0
#: How long `ask` waits for an answer, which takes milliseconds.
ASK_SECONDS = 5.0

TEXT = "text/plain; charset=utf-8"


class PortUnavailable(WorkerError):
    """The port for metrics and health cannot be used."""


class Handler(WSGIRequestHandler):
    timeout = CLIENT_SECONDS

    def log_message(self, *_: object) -> None:
        """Log nothing: there is a request every few seconds."""


class MonitoringServer(ThreadingMixIn, WSGIServer):
    """Serves some pages until it is closed."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, pages: Mapping[str, WSGIApplication], *, shared: bool = False
    ) -> None:
        """Port 0 means any free port. If ``shared``, other processes of this user may serve the same port, and
        the kernel chooses one of them for each request.

        Raises PortUnavailable.
        """
        self.allow_reuse_port = shared
        try:
            [(self.address_family, _, _, _, address), *_] = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            super().__init__((str(address[0]), port), Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PortUnavailable(f"{host}:{port}: {reason}.") from error
        self.set_app(_chosen(pages))
        threading.Thread(target=self.serve_forever, name="monitoring", daemon=True).start()

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host's name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""

    def close(self) -> None:
        """Free the port."""
        self.shutdown()
        self.server_close()


def respond(
    start_response: StartResponse, body: str, status: HTTPStatus, content_type: str = TEXT
) -> list[bytes]:
    """A whole response of a page."""
    start_response(f"{status.value} {status.phrase}", [("Content-Type", content_type)])
    return [f"{body}\n".encode()]


def _chosen(pages: Mapping[str, WSGIApplication]) -> WSGIApplication:
    """The page that a request's path names."""
    failure = Reminder()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path not in pages:
            there = f"This port has {' and '.join(pages)}."
            return respond(start_response, there, HTTPStatus.NOT_FOUND)
        try:
            return pages[path](environ, start_response)
        except Exception:  # an application's own metrics may raise anything
            if failure.is_due():
                log.exception("a monitoring page fails", path=path)
            failed = "It failed; the log says why."
            return respond(start_response, failed, HTTPStatus.INTERNAL_SERVER_ERROR)

    return app


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
