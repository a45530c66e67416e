"""The same application under the server that carries it: what only a real socket can send."""

import gc
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from flask import Flask

from devtools import processes
from devtools.processes import free_port, wait_until
from devtools.valkey import Valkey
from orders.app import create_app
from tests.kit.api import Api
from tests.kit.clock import bound
from tests.kit.raw_http import CHUNKED, ORDER, Reply, Server, chunked


@pytest.fixture(scope="module")
def server(
    shared_url: str, valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The API as it is deployed."""
    folder = Path(tmp_path_factory.mktemp("server"))
    env = {"DATABASE_URL": shared_url, "REDIS_URL": valkey.url}
    api = Api(env["DATABASE_URL"], valkey.url)
    api.make_keys()
    api.stock()
    server = Server(free_port(), api.keys)
    process = processes.api(env, server.port, folder / "api.log")
    wait_until(
        lambda: server.request("GET /readyz").status == 200, "the API to serve", ignoring=OSError
    )
    yield server
    api.close()
    assert process.stop() == 0
    log = (folder / "api.log").read_text()
    assert "unexpected error" not in log
    assert not [key for key in api.keys.values() if key.partition(".")[2] in log]


def frozen_app() -> Flask:
    """The application, and how many of its process's objects are never searched for garbage."""
    app = create_app()
    app.add_url_rule("/frozen", "frozen", lambda: str(gc.get_freeze_count()))
    return app


def test_no_request_waits_for_a_search_of_what_was_loaded(
    shared_url: str, valkey: Valkey, tmp_path: Path
) -> None:
    env = {"DATABASE_URL": shared_url, "REDIS_URL": valkey.url}
    server = Server(free_port(), {"customer": "nobody"})
    app = f"{__name__}:{frozen_app.__name__}"
    process = processes.api(env, server.port, tmp_path / "api.log", app=app)
    wait_until(lambda: server.request("GET /healthz"), "the API to serve", ignoring=OSError)
    assert int(server.request("GET /frozen").body) > 50_000
    assert process.stop() == 0


def test_an_order_is_created_over_a_real_socket(server: Server) -> None:
    length = f"Content-Length: {len(ORDER)}"
    created = server.request("POST /v1/orders", length, "Idempotency-Key: k", body=ORDER)
    assert created.status == 201
    shown = server.request(f"GET {created.headers['location']}")
    assert (shown.status, shown.body) == (200, created.body)
    again = server.request("POST /v1/orders", length, "idempotency-key: k", body=ORDER)
    assert (again.status, again.headers["idempotent-replayed"]) == (201, "true")


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        (CHUNKED, False),
        (CHUNKED.removesuffix(b"0\r\n\r\n"), True),
        (CHUNKED[:-20], True),
        (CHUNKED[:-20], False),
        (chunked(ORDER).removesuffix(b"0\r\n\r\n") + b"zz\r\nrubbish\r\n", False),
        (chunked(ORDER, *[b" " * 1024] * 17), False),
    ],
    ids=[
        "whole",
        "without its end",
        "cut in a chunk",
        "unfinished",
        "rubbish after a chunk",
        "too large",
    ],
)
def test_a_body_in_chunks_is_refused_unread(server: Server, body: bytes, ends: bool) -> None:  # noqa: FBT001
    """WSGI gives no sign of a body that was cut: half an order may look like a whole one."""
    before = server.request("GET /v1/stock/tea").body
    headers = ("Transfer-Encoding: chunked", f"Idempotency-Key: {uuid4()}")
    refused = server.request("POST /v1/orders", *headers, body=body, ends=ends)
    assert (refused.status, refused.body["code"]) == (411, "length_required")
    assert refused.headers["content-type"] == "application/problem+json"
    assert server.request("GET /v1/stock/tea").body == before


def test_two_idempotency_keys_are_none(server: Server) -> None:
    keys = ("Idempotency-Key: a", "Idempotency-Key: b")
    refused = server.request("POST /v1/orders", f"Content-Length: {len(ORDER)}", *keys, body=ORDER)
    assert (refused.status, [*refused.body["errors"]]) == (400, ["idempotency_key"])


def test_a_body_that_ends_early_is_not_read(server: Server) -> None:
    cut = ("POST /v1/orders", "Content-Length: 500", "Idempotency-Key: cut")
    refused = server.request(*cut, body=ORDER, ends=True)
    assert (refused.status, refused.body["code"]) == (400, "bad_request")
    assert refused.body["detail"] == f"The body has {len(ORDER)} of 500 bytes."


def test_a_body_with_two_lengths_is_never_read_in_two_ways(server: Server) -> None:
    """Otherwise what follows the shorter one would be another request: smuggling."""
    reply = server.request(
        "POST /v1/orders",
        "Transfer-Encoding: chunked",
        "Content-Length: 4",
        "Idempotency-Key: both",
        body=chunked(ORDER),
    )
    assert reply.status in (400, 411)
    refused = server.request(
        "POST /v1/orders", "Content-Length: 4", "Content-Length: 5", body=b"{}   "
    )
    assert refused.status == 400


@pytest.mark.parametrize("path", ["%", "%zz", "%ff", "%ed%a0%80", "../stock/tea", "x" * 8000])
def test_a_path_that_is_no_order_is_not_found(server: Server, path: str) -> None:
    assert server.request(f"GET /v1/orders/{path}").status == 404


def test_raw_bytes_in_a_path_are_the_clients_error(server: Server) -> None:
    assert server.request("GET /v1/orders/\xff").status in (400, 404)


@pytest.mark.parametrize("name", ["Authorization", "Idempotency-Key"])
def test_raw_bytes_in_a_header_are_the_clients_error(server: Server, name: str) -> None:
    reply = server.request(
        "POST /v1/orders", f"Content-Length: {len(ORDER)}", f"{name}: \xff\xfe", body=ORDER
    )
    assert reply.status in (400, 401)


def test_what_is_no_http_is_refused_and_the_next_request_served(server: Server) -> None:
    assert server.send(b"GET\r\n\r\n").status == 400
    assert server.request("GET /healthz").body == {"status": "ok"}


def test_head_has_no_body_and_options_names_methods(server: Server) -> None:
    head = server.request("HEAD /v1/orders")
    assert (head.status, head.body) == (200, b"")
    options = server.request("OPTIONS /v1/orders")
    assert {name.strip() for name in options.headers["allow"].split(",")} >= {"GET", "POST"}


# <throttling>
def test_slow_senders_do_not_take_every_thread(server: Server) -> None:
    """More of them than threads, with a valid key. Reading goes on; other writers are told."""
    headers = (f"Content-Length: {len(ORDER)}", "Idempotency-Key: meanwhile")

    def order() -> Reply:
        return server.request("POST /v1/orders", *headers, body=ORDER)

    with server.connected(20, server.slow_body()):
        wait_until(lambda: order().status == 503, "the slow senders to be read")
        refused = order()
        assert (refused.status, refused.body["code"]) == (503, "server_busy")
        assert refused.headers["retry-after"] == "1"
        assert server.seconds("GET /healthz") < bound(1)
        assert server.seconds("GET /v1/orders") < bound(1)
    wait_until(lambda: order().status == 201, "the slow senders to be gone")


# </throttling>


@pytest.mark.parametrize("request_", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
def test_silent_connections_are_closed_after_five_seconds(server: Server, request_: bytes) -> None:
    """More of them than the server takes."""
    with server.connected(300, request_):
        assert server.seconds("GET /healthz") < bound(7)
    assert server.seconds("GET /healthz") < bound(1)
