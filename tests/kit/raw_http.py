"""HTTP/1.1 written to a socket by hand: what no client would send."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

ORDER = json.dumps({"items": [{"sku": "tea", "quantity": 1}]}).encode()


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Server(NamedTuple):
    port: int
    keys: dict[str, str]

    def send(self, request: bytes, *, ends: bool = False) -> Reply:
        """Send bytes as they are, and perhaps that no more will come; read the one reply."""
        address = ("127.0.0.1", self.port)
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as stream:
                status = int(stream.readline().split()[1])
                headers = {}
                while line := stream.readline().strip():
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                text = stream.read()  # to the end: the connection is closed after one reply
        is_json = headers.get("content-type", "").endswith("json")
        return Reply(status, headers, json.loads(text) if is_json and text else text)

    @contextmanager
    def connected(self, count: int, request: bytes = b"") -> Iterator[None]:
        """So many connections, each of which sends this and then nothing."""
        with ExitStack() as stack:
            for _ in range(count):
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
                stack.enter_context(connection).sendall(request)
            yield

    def slow_body(self) -> bytes:
        """An order of which half has arrived."""
        lines = ["POST /v1/orders HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {self.keys['customer']}", "Idempotency-Key: slow"]
        lines += [f"Content-Length: {len(ORDER)}", "", ""]
        return "\r\n".join(lines).encode() + ORDER[: len(ORDER) // 2]

    def seconds(self, line: str) -> float:
        """How long an answer takes."""
        began = time.monotonic()
        assert self.request(line).status == 200
        return time.monotonic() - began

    def request(
        self,
        line: str,
        *headers: str,
        body: bytes = b"",
        key: str = "customer",
        ends: bool = False,
    ) -> Reply:
        lines = [f"{line} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {self.keys[key]}", "Connection: close", *headers]
        return self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body, ends=ends)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])


CHUNKED = chunked(ORDER[:5], ORDER[5:])
