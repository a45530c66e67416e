"""HTTP load from one thread: each connection sends its next request as soon as it has a response.

A request costs about 20 microseconds, creating it included, which leaves the cores to the server.
Of a response, only the status and Content-Length are parsed.
"""

import json
import math
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Self

#: How long to wait for a response.
PATIENCE_SECONDS = 30
#: A generator that is busy for a larger share of the time would measure itself.
BUSIEST = 0.9


class Measured(NamedTuple):
    """The result of a load. Latency is from the request's first byte to the response's last one."""

    answered: int
    per_s: float
    p99_ms: float


def measured(latencies: Sequence[float], seconds: float) -> Measured:
    """The result for these latencies in seconds, measured over ``seconds``."""
    slowest = sorted(latencies)[math.ceil(0.99 * len(latencies)) - 1]
    return Measured(len(latencies), len(latencies) / seconds, slowest * 1000)


def request(method: str, path: str, headers: Mapping[str, str], body: object = None) -> bytes:
    """The bytes of a request with a JSON body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    text = ""
    if body is not None:
        text = json.dumps(body)
        lines += ["Content-Type: application/json", f"Content-Length: {len(text)}"]
    return "\r\n".join([*lines, "", text]).encode()


class Client:
    """One connection, kept open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.asked_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, request: bytes) -> None:
        self._received = b""
        self.asked_at = time.perf_counter()
        self._socket.sendall(request)

    def read(self, expected: int) -> bool:
        """Read what has arrived. Returns whether the response is complete.

        Raises RuntimeError if its status is not the expected one, ConnectionError if the server
        closed the connection.
        """
        more = self._socket.recv(65536)
        if not more:
            raise ConnectionError("the server closed a connection")
        self._received += more
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank:
            return False
        _, _, length = head.lower().partition(b"content-length: ")
        if len(body) < int(length.partition(b"\r\n")[0]):
            return False
        if (status := int(head[9:12])) != expected:
            raise RuntimeError(f"{status}, not {expected}: {body.decode()}")
        return True


def load(
    port: int, requests: Iterator[bytes], expected: int, connections: int, seconds: float
) -> Measured:
    """Send requests for so many seconds, or until none are left.

    Raises RuntimeError if a response has an unexpected status, or if the generator is too busy to
    measure anything but itself.
    """
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(port)) for _ in range(connections)]
        worked, start = time.thread_time(), time.perf_counter()
        latencies = _play(clients, requests, expected, start + seconds)
        elapsed = time.perf_counter() - start
        if time.thread_time() - worked > BUSIEST * elapsed:
            raise RuntimeError("the load generator is the bottleneck")
    return measured(latencies, elapsed)


def _play(
    clients: Sequence[Client], requests: Iterator[bytes], expected: int, until: float
) -> list[float]:
    """The latency of each response in seconds."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        for client, first in zip(clients, requests, strict=False):
            selector.register(client, selectors.EVENT_READ, client)
            client.ask(first)
        while selector.get_map():
            ready = selector.select(PATIENCE_SECONDS)
            if not ready:
                raise TimeoutError(f"no answer within {PATIENCE_SECONDS} s")
            for key, _ in ready:
                client = key.data
                if not client.read(expected):
                    continue
                now = time.perf_counter()
                latencies.append(now - client.asked_at)
                following = next(requests, None) if now < until else None
                if following is None:
                    selector.unregister(client)
                else:
                    client.ask(following)
    return latencies
