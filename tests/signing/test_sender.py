"""Endpoints may do anything: where messages may go, and how little a hostile one gets of us."""

import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpcore
import pytest

from orders.config import MAX_BODY_BYTES
from orders.features.signing.errors import WebhookUrlNotAllowed
from orders.features.signing.sender import Answer, HttpSender
from orders.features.signing.urls import is_public, parsed
from tests.kit.receiver import Receiver, receiving

BODY = b'{"type":"order.paid"}'
#: Far more than a refusal takes, far less than what a hostile endpoint would take.
PATIENCE = 30

PRIVATE = [
    *("127.0.0.1", "127.255.255.255", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255"),  # noqa: S104
    *("192.168.1.1", "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200"),
    *("168.63.129.16", "192.0.0.192", "192.0.0.9", "192.0.2.1", "192.88.99.1", "198.18.0.1"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:8.8.8.8"),
    *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "fc00::1", "fd00:ec2::254"),
    *("fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2001::1", "2001:db8::1", "2002:7f00:1::1"),
    *("3fff::1", "2606:4700::1111%1", "localhost", "", "8.8.8.8.8", "0x7f.0.0.1", "127.1"),
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        *("", "https://", "https:///x", "ftp://a.example/", "HTTPS://a.example/", "//a.example"),
        *("https://user@a.example/", "https://u:p@a.example/", "https://a.example@127.0.0.1/"),
        *("https://a.example/#x", "https://a.example\\@b.example/", "https://a.example/ x"),
        *("https://a.example/\r\nX-Evil: 1", "https://a.example/\n", "https://a_b.example/"),
        *(
            "https://a.example:/",
            "https://a.example:0/",
            "https://a.example:65536/",
            "https://a..b/",
        ),
        *(
            "https://ä.example/",
            "https://a.example/ä",
            "file:///etc/passwd",
            "https://a.example/\0",
        ),
        *(
            "https://[::1",
            "https://[fe80::1%25eth0]/",
            " https://a.example/",
            "gopher://a.example/",
        ),
    ],
)
@pytest.mark.parametrize("allow_private", [False, True])
def test_what_is_no_plain_url_is_refused_whatever_is_allowed(
    url: str, *, allow_private: bool
) -> None:
    with pytest.raises(WebhookUrlNotAllowed):
        parsed(url, allow_private=allow_private)


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1/", "http://localhost/", "http://a.localhost./", "http://127.1/"),
        *("http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://[::1]/"),
        *("http://[::ffff:127.0.0.1]/", "http://169.254.169.254/latest/meta-data", "http://0/"),
        *("https://a.example:22/", "https://a.example:8443/", "http://a.example:6379/"),
        *("http://10.0.0.1.:80/", "http://[64:ff9b::7f00:1]/"),
    ],
)
def test_a_private_name_is_refused_at_once_unless_configured(url: str) -> None:
    with pytest.raises(WebhookUrlNotAllowed):
        parsed(url, allow_private=False)
    parsed(url, allow_private=True)


def test_a_url_is_taken_apart_as_it_was_written() -> None:
    assert parsed("https://shop.example", allow_private=False) == (
        *("https", "shop.example", 443, "/", "shop.example"),
    )
    assert parsed("http://[2606:4700::1111]:80?a=%20", allow_private=False) == (
        *("http", "2606:4700::1111", 80, "/?a=%20", "[2606:4700::1111]:80"),
    )


# -- the address that is connected to ------------------------------------------------------


def sender(
    seconds: float = PATIENCE, resolve: Callable[..., list[str]] | None = None
) -> HttpSender:
    """One for this machine; with a resolver, one for the internet."""
    if resolve is None:
        return HttpSender(seconds, allow_private=True)
    return HttpSender(seconds, resolve=resolve)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is connected to; nothing is."""
    seen: list[tuple[str, int]] = []

    def connect(_: object, host: str, port: int, **_more: Any) -> Any:
        seen.append((host, port))
        raise httpcore.ConnectError("not from here")

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    return seen


@pytest.mark.parametrize("address", [each for each in PRIVATE if each])
def test_a_name_for_a_private_address_is_not_connected_to(
    address: str, connections: list[tuple[str, int]]
) -> None:
    answer = sender(resolve=lambda *_: [address]).post("http://evil.example/", {}, BODY)
    assert (answer.status, connections) == (None, [])
    assert "public" in (answer.error or "")


def test_one_private_address_among_public_ones_is_enough(
    connections: list[tuple[str, int]],
) -> None:
    sender(resolve=lambda *_: ["8.8.8.8", "127.0.0.1"]).post("http://evil.example/", {}, BODY)
    assert connections == []


def test_a_name_is_connected_to_the_address_that_was_checked(
    connections: list[tuple[str, int]],
) -> None:
    """DNS rebinding: public when it is looked at, private a moment later."""
    addresses = [["8.8.8.8"], ["127.0.0.1"], ["10.0.0.1"]]
    posting = sender(resolve=lambda *_: addresses.pop(0))
    posting.post("http://evil.example/", {}, BODY)
    assert (connections, len(addresses)) == ([("8.8.8.8", 80)], 2)
    posting.post("http://evil.example/", {}, BODY)
    assert connections == [("8.8.8.8", 80)]


def test_the_next_address_is_tried_when_the_first_fails(connections: list[tuple[str, int]]) -> None:
    answer = sender(resolve=lambda *_: ["8.8.8.8", "1.1.1.1"]).post("https://a.example/", {}, BODY)
    assert connections == [("8.8.8.8", 443), ("1.1.1.1", 443)]
    assert (answer.status, answer.error) == (None, "not from here")


def test_a_local_receiver_gets_nothing_unless_configured(receiver: Receiver) -> None:
    port = receiver.port
    for url in (f"http://127.0.0.1:{port}/", f"http://localhost:{port}/"):
        assert HttpSender(PATIENCE).post(url, {}, BODY).status is None
    assert receiver.messages == []
    assert sender().post(receiver.url, {}, BODY) == Answer(200, None, "thanks")


def test_a_proxy_of_the_environment_is_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert sender().post(receiver.url, {}, BODY).status == 200
        assert proxy.messages == []


def test_a_message_arrives_as_it_was_given(receiver: Receiver) -> None:
    sender().post(f"{receiver.url}?a=1", {"webhook-id": "m-1"}, BODY)
    [message] = receiver.messages
    assert message.body == BODY
    assert message.headers[":path"] == "/hook?a=1"
    assert message.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert message.headers["webhook-id"] == "m-1"
    assert message.headers["content-type"] == "application/json"


# -- answers -------------------------------------------------------------------------------


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    for status in (301, 302, 303, 307, 308):
        receiver.status = status
        answer = sender().post(receiver.url, {}, BODY)
        assert (answer.status, answer.is_success) == (status, False)
    assert [message.headers[":path"] for message in receiver.messages] == ["/hook"] * 5


def test_of_a_huge_answer_a_little_is_read() -> None:
    sent = 0

    def flood(peer: socket.socket) -> None:
        nonlocal sent
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            sent += peer.send(b"x" * 65_536)

    with endpoint(flood) as url:
        answer = sender().post(url, {}, BODY)
    assert answer == Answer(200, None, "x" * MAX_BODY_BYTES)
    assert sent < 400 * MAX_BODY_BYTES  # what the sockets' buffers took


def test_an_answer_may_hold_anything(receiver: Receiver) -> None:
    receiver.text = b"\xff\0" + "ä".encode() * 3000
    assert sender().post(receiver.url, {}, BODY).body == "�" + "ä" * 3000


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *((None, 0), ("3600", 3600), ("0", 0), ("9" * 400, math.inf), ("-5", 0), ("1e3", 0)),
        *(("²", 0), ("soon", 0), ("", 0), ("99999999999 Nov 2026", 0), ("1 Jan 0001 24:61", 0)),
        *(("Tue, 24 Nov 2026 04:00:00 GMT", 3600), ("Tue, 24 Nov 2026 02:00:00 GMT", -3600)),
        *(("Tuesday, 24-Nov-26 04:00:00 GMT", 3600), ("Tue Nov 24 04:00:00 2026", 3600)),
    ],
)
def test_an_answer_asks_for_a_wait_in_seconds_or_until_a_date(
    header: str | None, seconds: float
) -> None:
    at = datetime(2026, 11, 24, 3, tzinfo=UTC)
    assert Answer(503, None, None, header).asked_seconds(at) == seconds


# -- time ----------------------------------------------------------------------------------


@contextmanager
def endpoint(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Whatever ``serve`` does with each connection, until the other end hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def handle(peer: socket.socket) -> None:
            with peer:
                try:
                    serve(peer)
                except OSError:
                    return

        def accept() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)


def drip(beginning: bytes, byte: bytes) -> Callable[[socket.socket], None]:
    """Always something, and never all of it."""

    def serve(peer: socket.socket) -> None:
        peer.recv(65_536)
        peer.sendall(beginning)
        while True:
            time.sleep(0.02)
            peer.sendall(byte)

    return serve


def silent(peer: socket.socket) -> None:
    while peer.recv(65_536):
        pass


@pytest.mark.parametrize(
    "serve",
    [
        silent,
        drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        drip(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x"),
        drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silence", "headers", "body", "chunks", "1xx"],
)
def test_a_slow_drip_holds_a_thread_until_the_deadline_at_most(
    serve: Callable[[socket.socket], None],
) -> None:
    with endpoint(serve) as url:
        began = time.monotonic()
        answer = sender(0.5).post(url, {}, BODY)
        assert (answer.status, answer.error) == (None, "no answer within 0.5 s")
        assert time.monotonic() - began < PATIENCE


def test_a_handshake_that_never_ends_has_the_same_deadline() -> None:
    with endpoint(silent) as url:
        answer = sender(0.5).post(url.replace("http:", "https:"), {}, BODY)
    assert answer.error == "no answer within 0.5 s"


def test_a_resolver_that_hangs_has_the_same_deadline() -> None:
    never = threading.Event()

    def resolve(*_: object) -> list[str]:
        never.wait(PATIENCE)
        return ["8.8.8.8"]

    answer = sender(0.2, resolve).post("http://slow.example/", {}, BODY)
    never.set()
    assert answer.error == "no answer within 0.2 s"


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x15\x03\x01\x00\x02\x02\x0a", b"HTTP/1.1 200 OK\r\nA\0: b\r\n\r\n", b"x" * 200_000],
)
def test_an_answer_that_is_none_is_a_failure(garbage: bytes) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(65_536)
        peer.sendall(garbage)

    with endpoint(serve) as url:
        answer = sender().post(url, {}, BODY)
    assert answer.status is None
    assert answer.error


def test_a_missing_address_and_a_closed_port_are_failures() -> None:
    def unknown(*_: object) -> list[str]:
        raise socket.gaierror("no such name")

    answer = sender(resolve=unknown).post("http://gone.example/", {}, BODY)
    assert answer.error == "gone.example has no address"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "refused" in (sender().post(f"http://127.0.0.1:{port}/", {}, BODY).error or "")


def test_a_certificate_is_checked_for_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str | None] = []

    class Stream(httpcore.NetworkStream):
        def start_tls(
            self,
            ssl_context: ssl.SSLContext,
            server_hostname: str | None = None,
            timeout: float | None = None,  # noqa: ARG002
        ) -> httpcore.NetworkStream:
            assert ssl_context.check_hostname
            assert ssl_context.verify_mode is ssl.CERT_REQUIRED
            names.append(server_hostname)
            raise httpcore.ConnectError("seen enough")

        def close(self) -> None:
            pass

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", lambda *_, **__: Stream())
    sender(resolve=lambda *_: ["8.8.8.8"]).post("https://shop.example/", {}, BODY)
    assert names == ["shop.example"]
