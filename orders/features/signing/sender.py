"""Sends messages over HTTP to endpoints that clients choose, and which may therefore do anything.

The address that is connected to is checked, not the name: what a name resolves to may change
between two look-ups. One deadline covers everything, so an endpoint that sends a byte a second
holds a thread no longer than any other. Proxies in the environment are ignored, redirects are not
followed, and at most `MAX_BODY_BYTES` of a response are read.
"""

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from time import monotonic
from typing import Any, NamedTuple

import certifi
import httpcore

from orders.config import MAX_BODY_BYTES
from orders.features.signing.errors import WebhookUrlNotAllowed
from orders.features.signing.urls import Target, is_public, parsed

#: Sent in pieces, each of which is checked against the deadline.
PIECE_BYTES = 4096

#: ``resolve(host, port)`` returns the addresses of a host. Raises OSError.
Resolve = Callable[[str, int], list[str]]
Sockets = Iterable[Any]


def resolved(host: str, port: int) -> list[str]:
    """What the system's resolver says."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [*dict.fromkeys(str(address[0]) for *_, address in found)]


@cache
def _trusting_public_authorities() -> ssl.SSLContext:
    """Loaded once in a process, which takes a tenth of a second."""
    context = ssl.create_default_context(cafile=certifi.where())
    context.load_default_certs()
    return context


class Answer(NamedTuple):
    """The outcome of sending a message: a status and the beginning of the body, or an error."""

    status: int | None
    error: str | None
    body: str | None
    #: The header of this name.
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004

    def asked_seconds(self, at: datetime) -> float:
        """For how long from this moment on the endpoint asks not to be called: in seconds, or until a date."""
        asked = self.retry_after or ""
        if asked.isascii() and asked.isdigit():
            return float(asked)
        with suppress(ValueError, OverflowError):
            until = parsedate_to_datetime(asked)
            return (until.replace(tzinfo=until.tzinfo or UTC) - at).total_seconds()
        return 0.0


class HttpSender:
    """Posts messages, one connection for each."""

    def __init__(
        self, timeout_seconds: float, *, allow_private: bool = False, resolve: Resolve = resolved
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._allow_private = allow_private
        self._resolve = resolve
        self._tls = _trusting_public_authorities()

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a message and return the outcome. Raises nothing that an endpoint could cause."""
        deadline = _Deadline(self._timeout_seconds)
        try:
            target = parsed(url, allow_private=self._allow_private)
            return self._post(target, headers, body, deadline)
        except (httpcore.TimeoutException, _TooLate):
            return Answer(None, f"no answer within {self._timeout_seconds:g} s", None)
        except httpcore.ProtocolError:  # which quotes the answer
            return Answer(None, "the answer is not complete, or is not HTTP", None)
        except (WebhookUrlNotAllowed, httpcore.NetworkError) as error:
            return Answer(None, f"{error}"[:200] or type(error).__name__, None)

    def _post(
        self, target: Target, headers: Mapping[str, str], body: bytes, deadline: "_Deadline"
    ) -> Answer:
        backend = _Backend(self._addresses, deadline)
        sent = {
            "Host": target.authority,
            "User-Agent": "order-timeout-webhooks/1",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **headers,
        }
        url = httpcore.URL(
            scheme=target.scheme.encode(),
            host=target.host.encode(),
            port=target.port,
            target=target.target.encode(),
        )
        with (
            httpcore.ConnectionPool(
                ssl_context=self._tls, network_backend=backend, http2=False, retries=0
            ) as pool,
            pool.stream("POST", url, headers=[*sent.items()], content=body) as response,
        ):
            beginning = bytearray()
            for chunk in response.iter_stream():
                beginning += chunk
                deadline.left()  # raises _TooLate; data that has already arrived is read without waiting
                if len(beginning) >= MAX_BODY_BYTES:
                    break
        text = bytes(beginning[:MAX_BODY_BYTES]).decode(errors="replace").replace("\0", "")
        headers_of = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        return Answer(response.status, None, text, headers_of.get(b"retry-after"))

    def _addresses(self, host: str, port: int, deadline: "_Deadline") -> list[str]:
        """The addresses of a host, all of which may be called. Raises WebhookUrlNotAllowed."""
        found: list[str] = []

        def resolve() -> None:
            with suppress(OSError, UnicodeError):  # an unknown host, or no name at all
                found.extend(self._resolve(host, port))

        # The system's resolver has no timeout, so it runs in a thread that can be left behind.
        thread = threading.Thread(target=resolve, name=f"resolve {host}", daemon=True)
        thread.start()
        thread.join(deadline.left())
        if thread.is_alive():
            raise _TooLate
        if not found:
            raise httpcore.ConnectError(f"{host} has no address")
        # All of them: a private address among public ones is there on purpose.
        if not self._allow_private and not all(map(is_public, found)):
            raise WebhookUrlNotAllowed("Its address is not public.")
        return found


class _TooLate(Exception):
    """The deadline is over."""


class _Deadline:
    """One deadline for everything that sending a message waits for."""

    def __init__(self, seconds: float) -> None:
        self._at = monotonic() + seconds

    def left(self) -> float:
        """Seconds, more than 0. Raises _TooLate."""
        seconds = self._at - monotonic()
        if seconds <= 0:
            raise _TooLate
        return seconds


class _Backend(httpcore.NetworkBackend):
    """Connects to addresses that were checked."""

    def __init__(
        self, addresses: Callable[[str, int, _Deadline], list[str]], deadline: _Deadline
    ) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002  the deadline is shorter
        local_address: str | None = None,
        socket_options: Sockets | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address that accepts the connection."""
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in self._addresses(host, port, self._deadline):
            try:
                stream = self._plain.connect_tcp(
                    address,
                    port,
                    timeout=self._deadline.left(),
                    local_address=local_address,
                    socket_options=socket_options,
                )
            except httpcore.ConnectError as error:
                failure = error
                continue
            return _Stream(stream, self._deadline)
        raise failure


class _Stream(httpcore.NetworkStream):
    """A connection on which no wait outlasts the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._stream.read(max_bytes, timeout=self._deadline.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        for start in range(0, len(buffer), PIECE_BYTES):
            piece = buffer[start : start + PIECE_BYTES]
            self._stream.write(piece, timeout=self._deadline.left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        """The certificate is checked for the host's name, whatever address was connected to."""
        left = self._deadline.left()
        stream = self._stream.start_tls(ssl_context, server_hostname, timeout=left)
        return _Stream(stream, self._deadline)
